"""The whole product at targets that nobody here wrote, with a worker killed in the middle.

The worker gets a SIGKILL with the target's answer in hand: the target has done its work, and the
broker has no word of it. Judged by what the target itself lists afterwards. A relay before the
target keeps every request that was sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from adapter_calls import merged
from effect_broker.faultpoints import FaultPoint
from effect_broker.proof.broker import ProofBroker
from effect_contracts.catalog import catalog_texts
from effect_contracts.document import ContractDocument
from migrated import MIGRATED
from postgres import RunningServer, clone, drop_database, ensure_template
from real_targets.contracts import contract_text, stripe_contract_text
from real_targets.programs import Dovecot, Localstripe, MailServer, Moto, Radicale, StripeMock
from real_targets.relay import Relay, carried, relay

# Shorter than in the contracts and the default, so that nobody waits; the ratios stay.
TTL_SECONDS = 2.0
BOUND_SECONDS = 1.5
QUICK: Mapping[str, Any] = {
    "attempt_deadline_seconds": 1.5,
    "transit_seconds": 0.2,
    "clock_margin_seconds": 0.2,
    "retry": {"backoff_initial_seconds": 0.1, "backoff_cap_seconds": 1.0},
}
ASKED: Mapping[str, Any] = {
    **QUICK,
    "settlement_bound_seconds": BOUND_SECONDS,
    "probe": {"initial_seconds": 0.2, "cap_seconds": 1.0},
}

CHARGE = {"amount": 4200, "currency": "eur", "source": "tok_visa", "metadata": {"order": "o-1"}}
EVENT = {
    "calendar": Radicale.CALENDAR,
    "title": "Stand-up",
    "starts_at": "20261005T080000Z",
    "ends_at": "20261005T081500Z",
}
PAYOUT = {"amount": 90000, "currency": "eur", "description": "September"}


@pytest.fixture(scope="module")
def broker(
    running_server: RunningServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProofBroker]:
    """A broker of processes: an API and two workers."""
    database = clone(running_server, ensure_template(running_server, MIGRATED))
    environment = {
        "EFFECT_BROKER_HEARTBEAT_TTL_SECONDS": str(TTL_SECONDS),
        "EFFECT_BROKER_SECRET_STRIPE": StripeMock.SECRET,
        "EFFECT_BROKER_SECRET_CALDAV": Radicale.SECRET,
        "EFFECT_BROKER_SECRET_LOCALSTRIPE": Localstripe.SECRET,
        "EFFECT_BROKER_SECRET_AWS_ACCESS_KEY_ID": "test",
        "EFFECT_BROKER_SECRET_AWS_SECRET_ACCESS_KEY": "test",
        "EFFECT_BROKER_SECRET_IMAP": Dovecot.SECRET,
    }
    directory = tmp_path_factory.mktemp("broker")
    with ProofBroker(
        directory, database.superuser_url, environment=environment, migrated=True
    ) as running:
        running.prepare()
        workers = [running.stack.worker() for _ in range(2)]
        running.start_api()
        for worker in workers:
            worker.wait_ready()
        yield running
    drop_database(running_server, database.name)


class Case:
    """One effect that is submitted, and whose worker is killed at `point`."""

    def __init__(
        self, broker: ProofBroker, contract: str, key: str, arguments: Mapping[str, Any]
    ) -> None:
        self._broker = broker
        document = ContractDocument.parse_yaml(contract)
        broker.apply(document)
        self._request = (key, document.tool, arguments)

    def submit_and_kill(self, point: FaultPoint) -> str:
        """Submit, wait until the worker is dead, start another; return the effect's id."""
        self._broker.arm(point)
        answer = self._broker.submit(*self._request)
        assert answer.status_code == 202, answer.text
        self._broker.wait_fired(point)
        self._broker.stack.worker()
        return str(answer.json()["effect_id"])

    def resubmit(self) -> tuple[int, str]:
        """Submit the same again; return the status and the effect's id."""
        answer = self._broker.submit(*self._request)
        return answer.status_code, answer.json()["effect_id"]


def _version(way: Relay) -> str:
    """A published version never changes, and every test has a target at another port."""
    return way.origin.rpartition(":")[2]


def _receipt(broker: ProofBroker, effect_id: str) -> dict[str, Any]:
    found = broker.receipt(effect_id)
    assert found is not None
    receipt: dict[str, Any] = found["receipt"]
    return receipt


def test_a_charge_whose_worker_was_killed_is_sent_again_and_made_once(
    broker: ProofBroker, stripe_mock: StripeMock
) -> None:
    with relay(stripe_mock.port) as way:
        contract = stripe_contract_text(way.origin, version=_version(way), **QUICK)
        case = Case(broker, contract, "order:1", CHARGE)
        effect_id = case.submit_and_kill(FaultPoint.AFTER_TARGET_ANSWER)
        [made] = stripe_mock.charges()
        assert broker.receipt(effect_id) is None, "the worker died before it could tell"
        effect = broker.settled(effect_id)
        assert case.resubmit() == (200, effect_id)
        sent = way.requests
    assert effect["state"] == "succeeded"
    assert [charge["id"] for charge in stripe_mock.charges()] == [made["id"]]
    receipt = _receipt(broker, effect_id)
    assert (receipt["external_id"], receipt["attempts"]) == (made["id"], 2)
    # Sent twice, and byte for byte the same: it was the target that kept the charge to one.
    assert len(sent) == 2
    assert sent[0] == sent[1]


def test_an_event_whose_worker_was_killed_is_found_and_not_put_again(
    broker: ProofBroker, radicale: Radicale
) -> None:
    with relay(radicale.port) as way:
        contract = contract_text("caldav-event", way.origin, version=_version(way), **ASKED)
        case = Case(broker, contract, "stand-up:1", EVENT)
        effect_id = case.submit_and_kill(FaultPoint.AFTER_TARGET_ANSWER)
        assert len(radicale.events()) == 1
        effect = broker.settled(effect_id)
        assert case.resubmit() == (200, effect_id)
    assert effect["state"] == "succeeded"
    receipt = _receipt(broker, effect_id)
    assert (receipt["source"], receipt["attempts"]) == ("probe", 1)
    assert len(radicale.events()) == 1
    assert radicale.puts() == 1


def test_an_event_that_never_arrived_is_put_once_after_the_bound(
    broker: ProofBroker, radicale: Radicale
) -> None:
    with relay(radicale.port) as way:
        contract = contract_text("caldav-event", way.origin, version=_version(way), **ASKED)
        case = Case(broker, contract, "stand-up:2", EVENT)
        effect_id = case.submit_and_kill(FaultPoint.BEFORE_SOCKET_WRITE)
        assert radicale.events() == []
        effect = broker.settled(effect_id)
        methods = [request.split(b" ", 1)[0] for request in way.requests]
    assert effect["state"] == "succeeded"
    assert len(radicale.events()) == 1
    assert methods.count(b"PUT") == 1
    assert methods.index(b"PUT") > 0, "it was asked for before it was put"


def test_a_payout_whose_worker_was_killed_stays_unknown_and_is_never_made_again(
    broker: ProofBroker, localstripe: Localstripe
) -> None:
    with relay(localstripe.port) as way:
        contract = contract_text("localstripe-payout", way.origin, version=_version(way), **QUICK)
        case = Case(broker, contract, "payout:2026-09", PAYOUT)
        effect_id = case.submit_and_kill(FaultPoint.AFTER_TARGET_ANSWER)
        effect = broker.settled(effect_id)
        assert effect["state"] == "outcome_unknown"
        assert effect["waits_for_person"]
        assert case.resubmit() == (200, effect_id)
        assert broker.effect(effect_id)["state"] == "outcome_unknown"
        assert broker.receipt(effect_id) is None
        [sent] = way.requests
    assert len(localstripe.payouts()) == 1
    # What a retry would have done: the same bytes, the same key, and a second payout.
    assert b"idempotency-key: " in sent.lower()
    assert carried(sent, localstripe.port).startswith(b"HTTP/1.1 200 ")
    assert len(localstripe.payouts()) == 2


def test_a_contract_that_claims_idempotency_wrongly_pays_twice(
    broker: ProofBroker, localstripe: Localstripe
) -> None:
    """The control: the same kill at the same target, and only the contract's word is another."""
    with relay(localstripe.port) as way:
        claim: dict[str, Any] = {
            "name": "wrong-payout",
            "tool": "wrong.payout",
            "version": _version(way),
        }
        claim |= {"safety": "idempotent", "key_retention_seconds": 3600}
        contract = contract_text("localstripe-payout", way.origin, **claim, **QUICK)
        case = Case(broker, contract, "wrong:2026-09", PAYOUT)
        effect_id = case.submit_and_kill(FaultPoint.AFTER_TARGET_ANSWER)
        assert broker.settled(effect_id)["state"] == "succeeded"
    assert len(localstripe.payouts()) == 2


def test_a_declined_card_is_a_final_failure_with_a_receipt(
    broker: ProofBroker, stripe_mock: StripeMock
) -> None:
    with relay(stripe_mock.port) as way:
        contract = stripe_contract_text(way.origin, version=_version(way), **QUICK)
        document = ContractDocument.parse_yaml(contract)
        broker.apply(document)
        declined = {**CHARGE, "source": "tok_chargeDeclined"}
        answer = broker.submit("order:2", document.tool, declined)
        effect = broker.settled(answer.json()["effect_id"])
        assert len(way.requests) == 1
    assert effect["state"] == "failed_final"
    assert _receipt(broker, effect["effect_id"])["state"] == "failed_final"
    assert stripe_mock.charges() == []


def _of_catalog(name: str, version: str, **changes: Any) -> str:
    value = yaml.safe_load(catalog_texts()[name])
    return yaml.safe_dump(merged(value, {"version": version, **changes}), sort_keys=False)


def test_a_message_whose_worker_was_killed_is_in_the_queue_once(
    broker: ProofBroker, moto: Moto
) -> None:
    sqs = moto.sdk("sqs")
    queue = f"/{Moto.ACCOUNT}/orders.fifo"
    sqs.create_queue(QueueName="orders.fifo", Attributes={"FifoQueue": "true"})
    with relay(moto.port) as way:
        place = {"queue_url": way.origin + queue}
        contract = _of_catalog("sqs-order-event", _version(way), adapter=place, **QUICK)
        case = Case(broker, contract, "order:7:paid", {"order": "7", "event": "paid"})
        effect_id = case.submit_and_kill(FaultPoint.AFTER_TARGET_ANSWER)
        assert broker.receipt(effect_id) is None, "the worker died before it could tell"
        effect = broker.settled(effect_id)
        assert case.resubmit() == (200, effect_id)
        bodies = [request.partition(b"\r\n\r\n")[2] for request in way.requests]
    assert effect["state"] == "succeeded"
    assert len(bodies) == 2
    assert bodies[0] == bodies[1]
    found = sqs.receive_message(QueueUrl=moto.origin + queue, MaxNumberOfMessages=10)
    sqs.close()
    [message] = found["Messages"]
    assert json.loads(message["Body"]) == {"order": "7", "event": "paid"}
    receipt = _receipt(broker, effect_id)
    assert (receipt["external_id"], receipt["attempts"]) == (_deduplication_id(bodies[0]), 2)


def _deduplication_id(body: bytes) -> str:
    return str(json.loads(body)["MessageDeduplicationId"])


def test_a_mail_whose_worker_was_killed_is_found_in_the_mailbox_and_not_sent_again(
    broker: ProofBroker, mail_server: MailServer, dovecot: Dovecot
) -> None:
    plain = {"host": "127.0.0.1", "security": "none"}
    mailbox = {**plain, "port": dovecot.port}
    place = {**plain, "port": mail_server.port, "login": None, "mailbox": mailbox}
    contract = _of_catalog("mail-send-archived", "2", adapter=place, **ASKED)
    mail = {"to": "ada@example.com", "subject": "Your order", "text": "It is on its way."}
    case = Case(broker, contract, "order:7:mail", mail)
    effect_id = case.submit_and_kill(FaultPoint.AFTER_TARGET_ANSWER)
    effect = broker.settled(effect_id)
    assert case.resubmit() == (200, effect_id)
    assert effect["state"] == "succeeded"
    receipt = _receipt(broker, effect_id)
    assert (receipt["source"], receipt["attempts"]) == ("probe", 1)
    assert mail_server.arrivals() == [receipt["external_id"]]
    assert len(mail_server.mails("ada@example.com")) == 1
