"""The adapter `sqs` at moto's FIFO queues, read back with the SDK's own client."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from adapter_calls import KEY, dispatch_call, merged
from effect_adapters.base import Answer, SecretUnavailable
from effect_adapters.sqs import SqsAdapter
from effect_contracts.catalog import catalog_texts
from effect_contracts.document import ContractDocument
from effect_contracts.facts import Outcome
from peers import Arrival, Peer, answer, peer, refused_port
from real_targets.programs import Moto
from real_targets.relay import relay

QUEUE = f"/{Moto.ACCOUNT}/orders.fifo"
EVENT: dict[str, Any] = {"order": "o-1", "event": "paid", "detail": {"amount": 700}}
KEYS = {
    "env:EFFECT_BROKER_SECRET_AWS_ACCESS_KEY_ID": "AKIACONTRACT",
    "env:EFFECT_BROKER_SECRET_AWS_SECRET_ACCESS_KEY": "never/print+me",
}


def _secret(reference: str) -> str:
    try:
        return KEYS[reference]
    except KeyError:
        raise SecretUnavailable(reference) from None


ADAPTER = SqsAdapter(_secret)


def _contract(origin: str, **changes: Any) -> ContractDocument:
    value = yaml.safe_load(catalog_texts()["sqs-order-event"])
    value["adapter"]["queue_url"] = origin + QUEUE
    return ContractDocument.parse_yaml(yaml.safe_dump(merged(value, changes)))


async def _send(document: ContractDocument, arguments: Any = None, key: str = KEY) -> Answer:
    wire = ADAPTER.render(document, EVENT if arguments is None else arguments, key)
    return await ADAPTER.dispatch(dispatch_call(document, wire))


@pytest.fixture
def queue(moto: Moto) -> Iterator[Any]:
    """The SDK's client of an empty queue."""
    moto.reset()
    sqs = moto.sdk("sqs")
    sqs.create_queue(QueueName="orders.fifo", Attributes={"FifoQueue": "true"})
    yield sqs
    sqs.close()


def _messages(moto: Moto, queue: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = queue.receive_message(
        QueueUrl=moto.origin + QUEUE, MaxNumberOfMessages=10, AttributeNames=["All"]
    ).get("Messages", [])
    return found


async def test_a_lost_answer_is_settled_by_the_same_send_again(moto: Moto, queue: Any) -> None:
    with relay(moto.port) as way:
        document = _contract(way.origin)
        way.losing = True
        lost = await _send(document)
        way.losing = False
        again, third = await _send(document), await _send(document)
        requests = way.requests
    assert (lost.outcome, lost.bytes_may_have_left) == (Outcome.AMBIGUOUS, True)
    assert {again.outcome, third.outcome} == {Outcome.COMMITTED}
    # moto gives each send a message id of its own, as SQS may; the effect has one id.
    assert again.external_id == third.external_id == KEY
    assert len(requests) == 3, "one request for each attempt"
    [message] = _messages(moto, queue)
    assert json.loads(message["Body"]) == EVENT
    assert message["Attributes"]["MessageDeduplicationId"] == KEY
    assert message["Attributes"]["MessageGroupId"] == "order-o-1"


async def test_the_queue_takes_another_text_under_a_known_id_and_keeps_the_first(
    moto: Moto, queue: Any
) -> None:
    """What SQS does not promise, and why the broker binds arguments to keys itself."""
    document = _contract(moto.origin)
    await _send(document)
    drifted = await _send(document, {**EVENT, "event": "shipped"})
    assert drifted.outcome is Outcome.COMMITTED
    [message] = _messages(moto, queue)
    assert json.loads(message["Body"]) == EVENT


def test_the_request_is_the_one_that_the_sdk_makes() -> None:
    seen: list[bytes] = []

    def script(arrival: Arrival) -> None:
        seen.append(arrival.read_request())
        arrival.send(answer(400, b'{"__type":"x#Nope"}'))

    with peer(script) as running:
        document = _contract(running.url)
        stored = json.loads(ADAPTER.render(document, EVENT, KEY))
        sqs = Moto.sdk(_At(running), "sqs")  # type: ignore[arg-type]
        message = json.loads(stored["body"])
        with pytest.raises(sqs.exceptions.ClientError):
            sqs.send_message(**message)
        sqs.close()
    head, _, body = seen[0].partition(b"\r\n\r\n")
    headers = {n.lower(): v.strip() for n, _, v in (h.partition(":") for h in _lines(head))}
    assert head.startswith(f"{stored['method']} / HTTP/1.1".encode())
    assert json.loads(body) == message
    for name, value in stored["headers"]:
        if name in {"Content-Type", "X-Amz-Target"}:
            assert headers[name.lower()] == value


class _At:
    """Where the SDK's client is sent instead of moto."""

    REGION = Moto.REGION

    def __init__(self, running: Peer) -> None:
        self.origin = running.url


def _lines(head: bytes) -> list[str]:
    return head.decode().split("\r\n")[1:]


@pytest.mark.parametrize(
    ("status", "body", "outcome", "code"),
    [
        (400, '{"__type":"com.amazonaws.sqs#QueueDoesNotExist"}', "retryable", "queue_missing"),
        (403, '{"__type":"com.amazon.coral#AccessDeniedException"}', "retryable", "access_denied"),
        (400, '{"__type":"com.amazonaws.sqs#Unheard"}', "rejected", "refused"),
        (400, '{"__type":"x#InvalidMessageContents"}', "rejected", "message_invalid"),
        (400, '{"__type":"com.amazonaws.sqs#RequestThrottled"}', "retryable", "throttled"),
        (403, '{"__type":"com.amazon.coral#RequestExpired"}', "retryable", "clock_skewed"),
        (503, '{"__type":"com.amazonaws.sqs#ServiceUnavailable"}', "ambiguous", None),
        (500, "<html>", "ambiguous", None),
        (400, "<html>of a proxy</html>", "ambiguous", "unmatched_status_400"),
        (400, '{"message":"of a gateway"}', "ambiguous", "unmatched_status_400"),
        (408, '{"__type":"com.amazonaws.sqs#Late"}', "ambiguous", "unmatched_status_408"),
        (302, "{}", "ambiguous", "unmatched_status_302"),
        (200, "", "ambiguous", "success_body_invalid"),
        (200, '{"MessageId":"m-1"}', "ambiguous", "digest_mismatch"),
        (200, '{"MessageId":"m-1","MD5OfMessageBody":"0"}', "ambiguous", "digest_mismatch"),
        (200, '{"MD5OfMessageBody":"0"}', "ambiguous", "success_body_invalid"),
    ],
)
async def test_an_answer_proves_what_the_service_itself_has_said(
    status: int, body: str, outcome: str, code: str | None
) -> None:
    with peer(lambda arrival: _reply(arrival, answer(status, body.encode()))) as running:
        answered = await _send(_contract(running.url))
        assert running.requests == 1
    assert answered.outcome.value == outcome
    assert code is None or answered.code == code
    assert answered.external_id is None


def _reply(arrival: Arrival, data: bytes) -> None:
    arrival.read_request()
    arrival.send(data)


async def test_only_the_contracts_own_keys_sign_and_none_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    profile = tmp_path / "credentials"
    profile.write_text("[default]\naws_access_key_id=AKIAPROFILE\naws_secret_access_key=x\n")
    ambient = {
        "AWS_ACCESS_KEY_ID": "AKIAAMBIENT",
        "AWS_SECRET_ACCESS_KEY": "ambient",
        "AWS_SESSION_TOKEN": "ambient-token",
        "AWS_SHARED_CREDENTIALS_FILE": str(profile),
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{refused_port()}",
        "HTTP_PROXY": f"http://127.0.0.1:{refused_port()}",
    }
    for name, value in ambient.items():
        monkeypatch.setenv(name, value)
    caplog.set_level(logging.DEBUG)
    with peer(lambda arrival: _reply(arrival, answer(500))) as metadata:
        # Where the SDK would ask the machine for a role.
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.url)
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", metadata.url)
        with peer(lambda arrival: _reply(arrival, answer(500))) as running:
            await _send(_contract(running.url))
            [request] = running.received
            monkeypatch.delitem(KEYS, "env:EFFECT_BROKER_SECRET_AWS_SECRET_ACCESS_KEY")
            unsent = await _send(_contract(running.url))
            assert running.requests == 1
        assert metadata.requests == 0
    assert b"Credential=AKIACONTRACT/" in request
    assert b"ambient" not in request.lower()
    assert (unsent.outcome, unsent.code) == (Outcome.NOT_SENT, "secret_unavailable")
    assert "never/print+me" not in caplog.text
    assert "CanonicalRequest" not in caplog.text


async def test_a_stored_request_is_sent_to_the_contracts_queue_only(moto: Moto) -> None:
    wire = ADAPTER.render(_contract(moto.origin), EVENT, KEY)
    with peer(lambda arrival: _reply(arrival, answer(200))) as elsewhere:
        other = _contract(elsewhere.url)
        refused = await ADAPTER.dispatch(dispatch_call(other, wire))
        assert elsewhere.requests == 0
        assert ADAPTER.identity(other) == f"{elsewhere.url}{QUEUE}#{Moto.ACCOUNT}"
    assert (refused.outcome, refused.code) == (Outcome.NOT_SENT, "origin_changed")
