"""The whole product at targets that nobody here wrote, with a worker killed in the middle.

The worker gets a SIGKILL with the target's answer in hand, or while it waits for it: the target has
done its work, and the broker has no word of it. Judged by what the target itself lists afterwards.
A relay before the target keeps every request that was sent.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import nats

from effect_broker.faultpoints import FaultPoint
from effect_contracts.document import ContractDocument
from hosting.scenes import Scene
from peers import peer
from real_targets.cases import ASKED, QUICK, Case, of_catalog, receipt_of, version
from real_targets.contracts import contract_text, stripe_contract_text
from real_targets.nats_way import NatsWay
from real_targets.programs import (
    Dovecot,
    Localstripe,
    MailServer,
    Moto,
    NatsServer,
    Radicale,
    StripeMock,
)
from real_targets.relay import carried, relay

TOKEN = {"currency": "eur", "source": "tok_visa"}
CHARGE = {"amount": 4200, **TOKEN, "metadata": {"order": "o-1"}}
EVENT = {
    "calendar": Radicale.CALENDAR,
    "title": "Stand-up",
    "starts_at": "20261005T080000Z",
    "ends_at": "20261005T081500Z",
}
PAYOUT = {"amount": 90000, "currency": "eur", "description": "September"}


def test_a_charge_whose_worker_was_killed_is_sent_again_and_made_once(
    scene: Scene, stripe_mock: StripeMock
) -> None:
    with relay(stripe_mock.port) as way:
        contract = stripe_contract_text(way.origin, version=version(way), **QUICK)
        case = Case(scene, contract, "order:1", CHARGE)
        effect_id = case.submit_and_kill(FaultPoint.AFTER_TARGET_ANSWER)
        [made] = stripe_mock.charges()
        assert scene.broker.receipt(effect_id) is None, "the worker died before it could tell"
        effect = scene.broker.settled(effect_id)
        assert case.resubmit() == (200, effect_id)
        sent = way.requests
    assert effect["state"] == "succeeded"
    assert [charge["id"] for charge in stripe_mock.charges()] == [made["id"]]
    receipt = receipt_of(scene, effect_id)
    assert (receipt["external_id"], receipt["attempts"]) == (made["id"], 2)
    # Sent twice, and byte for byte the same: it was the target that kept the charge to one.
    assert len(sent) == 2
    assert sent[0] == sent[1]


def test_a_refund_whose_worker_was_killed_is_sent_again_and_made_once(
    scene: Scene, stripe_mock: StripeMock
) -> None:
    charge = stripe_mock.http.post("/v1/charges", data={"amount": 4200, **TOKEN}).json()["id"]
    with relay(stripe_mock.port) as way:
        contract = stripe_contract_text(way.origin, "stripe-refund", version=version(way), **QUICK)
        case = Case(scene, contract, "order:1:refund", {"charge": charge, "amount": 1000})
        effect_id = case.submit_and_kill(FaultPoint.AFTER_TARGET_ANSWER)
        effect = scene.broker.settled(effect_id)
        assert case.resubmit() == (200, effect_id)
        sent = way.requests
    assert effect["state"] == "succeeded"
    listed = stripe_mock.http.get("/v1/refunds", params={"charge": charge}).json()["data"]
    [(made, amount)] = [(refund["id"], refund["amount"]) for refund in listed]
    receipt = receipt_of(scene, effect_id)
    assert (receipt["external_id"], receipt["attempts"], amount) == (made, 2, 1000)
    assert len(sent) == 2
    assert sent[0] == sent[1]


def test_an_event_whose_worker_was_killed_is_found_and_not_put_again(
    scene: Scene, radicale: Radicale
) -> None:
    with relay(radicale.port) as way:
        contract = contract_text("caldav-event", way.origin, version=version(way), **ASKED)
        case = Case(scene, contract, "stand-up:1", EVENT)
        effect_id = case.submit_and_kill(FaultPoint.AFTER_TARGET_ANSWER)
        assert len(radicale.events()) == 1
        effect = scene.broker.settled(effect_id)
        assert case.resubmit() == (200, effect_id)
    assert effect["state"] == "succeeded"
    receipt = receipt_of(scene, effect_id)
    assert (receipt["source"], receipt["attempts"]) == ("probe", 1)
    assert len(radicale.events()) == 1
    assert radicale.puts() == 1


def test_an_event_that_never_arrived_is_put_once_after_the_bound(
    scene: Scene, radicale: Radicale
) -> None:
    with relay(radicale.port) as way:
        contract = contract_text("caldav-event", way.origin, version=version(way), **ASKED)
        case = Case(scene, contract, "stand-up:2", EVENT)
        effect_id = case.submit_and_kill(FaultPoint.BEFORE_SOCKET_WRITE)
        assert radicale.events() == []
        effect = scene.broker.settled(effect_id)
        methods = [request.split(b" ", 1)[0] for request in way.requests]
    assert effect["state"] == "succeeded"
    assert len(radicale.events()) == 1
    assert methods.count(b"PUT") == 1
    assert methods.index(b"PUT") > 0, "it was asked for before it was put"


def test_a_payout_whose_worker_was_killed_stays_unknown_and_is_never_made_again(
    scene: Scene, localstripe: Localstripe
) -> None:
    with relay(localstripe.port) as way:
        contract = contract_text("localstripe-payout", way.origin, version=version(way), **QUICK)
        case = Case(scene, contract, "payout:2026-09", PAYOUT)
        effect_id = case.submit_and_kill(FaultPoint.AFTER_TARGET_ANSWER)
        effect = scene.broker.settled(effect_id)
        assert effect["state"] == "outcome_unknown"
        assert effect["waits_for_person"]
        assert case.resubmit() == (200, effect_id)
        assert scene.broker.effect(effect_id)["state"] == "outcome_unknown"
        assert scene.broker.receipt(effect_id) is None
        [sent] = way.requests
    assert len(localstripe.payouts()) == 1
    # What a retry would have done: the same bytes, the same key, and a second payout.
    assert b"idempotency-key: " in sent.lower()
    assert carried(sent, localstripe.port).startswith(b"HTTP/1.1 200 ")
    assert len(localstripe.payouts()) == 2


def test_a_contract_that_claims_idempotency_wrongly_pays_twice(
    scene: Scene, localstripe: Localstripe
) -> None:
    """The control: the same kill at the same target, and only the contract's word is another."""
    with relay(localstripe.port) as way:
        claim: dict[str, Any] = {
            "name": "wrong-payout",
            "tool": "wrong.payout",
            "version": version(way),
        }
        claim |= {"safety": "idempotent", "key_retention_seconds": 3600}
        contract = contract_text("localstripe-payout", way.origin, **claim, **QUICK)
        case = Case(scene, contract, "wrong:2026-09", PAYOUT)
        effect_id = case.submit_and_kill(FaultPoint.AFTER_TARGET_ANSWER)
        assert scene.broker.settled(effect_id)["state"] == "succeeded"
    assert len(localstripe.payouts()) == 2


def test_a_declined_card_is_a_final_failure_with_areceipt_of(
    scene: Scene, stripe_mock: StripeMock
) -> None:
    with relay(stripe_mock.port) as way:
        contract = stripe_contract_text(way.origin, version=version(way), **QUICK)
        document = ContractDocument.parse_yaml(contract)
        scene.broker.apply(document)
        scene.ensure_workers(1)
        declined = {**CHARGE, "source": "tok_chargeDeclined"}
        answer = scene.broker.submit("order:2", document.tool, declined)
        effect = scene.broker.settled(answer.json()["effect_id"])
        assert len(way.requests) == 1
    assert effect["state"] == "failed_final"
    assert receipt_of(scene, effect["effect_id"])["state"] == "failed_final"
    assert stripe_mock.charges() == []


def test_a_message_whose_worker_was_killed_is_in_the_queue_once(scene: Scene, moto: Moto) -> None:
    sqs = moto.sdk("sqs")
    queue = f"/{Moto.ACCOUNT}/orders.fifo"
    sqs.create_queue(QueueName="orders.fifo", Attributes={"FifoQueue": "true"})
    with relay(moto.port) as way:
        place = {"queue_url": way.origin + queue}
        contract = of_catalog("sqs-order-event", version(way), adapter=place, **QUICK)
        case = Case(scene, contract, "order:7:paid", {"order": "7", "event": "paid"})
        way.holding = True
        effect_id = case.submit_and_kill_all(lambda: _waiting(sqs, moto.origin + queue) == 1)
        assert scene.broker.receipt(effect_id) is None, "the worker died before it could tell"
        way.holding = False
        scene.ensure_workers(1)
        effect = scene.broker.settled(effect_id)
        assert case.resubmit() == (200, effect_id)
        bodies = [request.partition(b"\r\n\r\n")[2] for request in way.requests]
    assert effect["state"] == "succeeded"
    assert len(bodies) >= 2
    assert len(set(bodies)) == 1
    found = sqs.receive_message(QueueUrl=moto.origin + queue, MaxNumberOfMessages=10)
    sqs.close()
    [message] = found["Messages"]
    assert json.loads(message["Body"]) == {"order": "7", "event": "paid"}
    receipt = receipt_of(scene, effect_id)
    assert receipt["external_id"] == _deduplication_id(bodies[0])


def test_an_export_whose_worker_was_killed_is_found_and_not_written_again(
    scene: Scene, moto: Moto
) -> None:
    s3 = moto.sdk("s3")
    s3.create_bucket(
        Bucket="acme-exports", CreateBucketConfiguration={"LocationConstraint": Moto.REGION}
    )
    export = {"report": "orders", "day": "2026-10-05", "rows": [1, 2]}
    with relay(moto.port) as way:
        place = {"endpoint": way.origin}
        contract = of_catalog("s3-export", version(way), adapter=place, **ASKED)
        case = Case(scene, contract, "export:orders:1", export)
        way.holding = True
        effect_id = case.submit_and_kill_all(lambda: _objects(s3) == 1)
        way.holding = False
        scene.ensure_workers(1)
        effect = scene.broker.settled(effect_id)
        assert case.resubmit() == (200, effect_id)
        methods = [request.split(b" ", 1)[0] for request in way.requests]
    assert effect["state"] == "succeeded"
    assert receipt_of(scene, effect_id)["source"] == "probe"
    assert methods.count(b"PUT") == 1
    [listed] = s3.list_objects_v2(Bucket="acme-exports")["Contents"]
    assert (
        json.loads(s3.get_object(Bucket="acme-exports", Key=listed["Key"])["Body"].read()) == export
    )
    s3.close()


def test_an_event_whose_worker_was_killed_is_in_the_stream_once(
    scene: Scene, nats_server: NatsServer
) -> None:
    asyncio.run(_make_stream(nats_server))
    way = NatsWay(nats_server.port)
    with peer(way) as running:
        place = {"server": f"nats://127.0.0.1:{running.port}", "auth": None}
        contract = of_catalog("nats-order-event", str(running.port), adapter=place, **QUICK)
        case = Case(scene, contract, "order:8:paid", {"order": "8", "event": "paid"})
        way.fate = "hold"
        effect_id = case.submit_and_kill_all(lambda: nats_server.stored("ORDERS") == 1)
        assert scene.broker.receipt(effect_id) is None, "the worker died before it could tell"
        way.fate = "ok"
        scene.ensure_workers(1)
        effect = scene.broker.settled(effect_id)
        assert case.resubmit() == (200, effect_id)
    assert effect["state"] == "succeeded"
    # Published twice under one id and byte for byte the same: the stream kept it to one.
    assert len(way.publishes) >= 2
    assert len(set(map(_without_inbox, way.publishes))) == 1
    assert nats_server.stored("ORDERS") == 1
    receipt = receipt_of(scene, effect_id)
    assert receipt["external_id"] == "ORDERS:1"


async def _make_stream(server: NatsServer) -> None:
    client = await nats.connect(server.server)
    await client.jetstream().add_stream(name="ORDERS", subjects=["orders.>"], duplicate_window=600)
    await client.close()


def _without_inbox(publish: bytes) -> bytes:
    """A publish but for where its acknowledgement goes to, which is each connection's own."""
    line, _, rest = publish.partition(b"\r\n")
    verb, subject, _inbox, *lengths = line.split()
    return b" ".join([verb, subject, *lengths]) + rest


def _objects(s3: Any) -> int:
    """Return how many objects the bucket holds."""
    return int(s3.list_objects_v2(Bucket="acme-exports")["KeyCount"])


def _waiting(sqs: Any, queue_url: str) -> int:
    """Return how many messages the queue holds."""
    names = ["ApproximateNumberOfMessages"]
    held = sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=names)
    return int(held["Attributes"]["ApproximateNumberOfMessages"])


def _deduplication_id(body: bytes) -> str:
    return str(json.loads(body)["MessageDeduplicationId"])


def test_a_mail_whose_worker_was_killed_is_found_in_the_mailbox_and_not_sent_again(
    scene: Scene, mail_server: MailServer, dovecot: Dovecot
) -> None:
    plain = {"host": "127.0.0.1", "security": "none"}
    mailbox = {**plain, "port": dovecot.port}
    place = {**plain, "port": mail_server.port, "login": None, "mailbox": mailbox}
    contract = of_catalog("mail-send-archived", "2", adapter=place, **ASKED)
    mail = {"to": "ada@example.com", "subject": "Your order", "text": "It is on its way."}
    case = Case(scene, contract, "order:7:mail", mail)
    effect_id = case.submit_and_kill(FaultPoint.AFTER_TARGET_ANSWER)
    effect = scene.broker.settled(effect_id)
    assert case.resubmit() == (200, effect_id)
    assert effect["state"] == "succeeded"
    receipt = receipt_of(scene, effect_id)
    assert (receipt["source"], receipt["attempts"]) == ("probe", 1)
    assert mail_server.arrivals() == [receipt["external_id"]]
    assert len(mail_server.mails("ada@example.com")) == 1
