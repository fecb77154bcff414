"""The adapter `nats` at Debian's own nats-server, read back with the library's own client."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import nats
import pytest
import yaml

from adapter_calls import KEY, budget, dispatch_call, merged
from effect_adapters.base import Answer, Budget, SecretUnavailable
from effect_adapters.nats import NatsAdapter
from effect_contracts.catalog import catalog_texts
from effect_contracts.document import ContractDocument
from effect_contracts.facts import Outcome
from peers import Arrival, peer, refused_port
from real_targets.nats_way import NatsWay
from real_targets.programs import NatsServer
from tools import requires_tool

EVENT: dict[str, Any] = {"order": "o-1", "event": "paid", "detail": {"amount": 700}}
PASSWORD = "never-print-me"
ADAPTER = NatsAdapter(lambda _reference: PASSWORD)


def _contract(server: str, **adapter: Any) -> ContractDocument:
    value = yaml.safe_load(catalog_texts()["nats-order-event"])
    changes = {"server": server, "auth": None, **adapter}
    return ContractDocument.parse_yaml(yaml.safe_dump(merged(value, {"adapter": changes})))


async def _send(
    document: ContractDocument,
    arguments: Any = None,
    within: Budget | None = None,
    adapter: NatsAdapter = ADAPTER,
) -> Answer:
    wire = adapter.render(document, EVENT if arguments is None else arguments, KEY)
    return await adapter.dispatch(dispatch_call(document, wire, within=within))


@pytest.fixture
async def stream(nats_server: NatsServer) -> AsyncIterator[Any]:
    """The library's own access to the empty stream ORDERS, with a window of ten minutes."""
    client = await nats.connect(nats_server.server)
    access = client.jetstream()
    await access.add_stream(name="ORDERS", subjects=["orders.>"], duplicate_window=600)
    yield access
    await access.delete_stream("ORDERS")
    await client.close()


async def test_a_lost_acknowledgement_is_settled_by_the_same_publish_again(
    nats_server: NatsServer, stream: Any
) -> None:
    way = NatsWay(nats_server.port)
    with peer(way) as running:
        document = _contract(f"nats://127.0.0.1:{running.port}")
        way.fate = "lose"
        lost = await _send(document)
        way.fate = "ok"
        again, third = await _send(document), await _send(document)
    assert (lost.outcome, lost.bytes_may_have_left) == (Outcome.AMBIGUOUS, True)
    assert {again.outcome, third.outcome} == {Outcome.COMMITTED}
    assert again.external_id == third.external_id == "ORDERS:1"
    assert isinstance(again.result, dict)
    assert again.result["duplicate"] is True
    assert way.keys() == [KEY] * 3, "one publish for each attempt, and no other connection's"
    message = await stream.get_msg("ORDERS", 1)
    assert (json.loads(message.data), message.subject) == (EVENT, "orders.events")
    assert nats_server.stored("ORDERS") == 1


async def test_the_stream_takes_another_text_under_a_known_id_and_keeps_the_first(
    nats_server: NatsServer, stream: Any
) -> None:
    """What JetStream does not promise, and why the broker binds arguments to keys itself."""
    document = _contract(nats_server.server)
    await _send(document)
    drifted = await _send(document, {**EVENT, "event": "shipped"})
    assert (drifted.outcome, drifted.external_id) == (Outcome.COMMITTED, "ORDERS:1")
    assert json.loads((await stream.get_msg("ORDERS", 1)).data) == EVENT


async def test_a_window_that_is_shorter_than_the_contract_believes_sends_nothing(
    nats_server: NatsServer, stream: Any
) -> None:
    await stream.update_stream(name="ORDERS", subjects=["orders.>"], duplicate_window=599)
    refused = await _send(_contract(nats_server.server))
    assert (refused.outcome, refused.code) == (Outcome.NOT_SENT, "duplicate_window_short")
    assert not refused.bytes_may_have_left
    assert nats_server.stored("ORDERS") == 0


async def test_what_another_stream_or_none_would_take_is_not_stored(
    nats_server: NatsServer, stream: Any
) -> None:
    missing = await _send(_contract(nats_server.server, stream="NOWHERE"))
    assert (missing.outcome, missing.code) == (Outcome.NOT_SENT, "stream_missing")
    nobody = await _send(_contract(nats_server.server, subject="elsewhere.events"))
    assert (nobody.outcome, nobody.code) == (Outcome.RETRYABLE, "stream_missing")
    await stream.add_stream(name="OTHER", subjects=["other.>"])
    other = await _send(_contract(nats_server.server, subject="other.events"))
    await stream.delete_stream("OTHER")
    assert (other.outcome, other.code) == (Outcome.REJECTED, "other_stream")
    assert nats_server.stored("ORDERS") == 0


async def test_a_stream_that_is_full_refuses_and_may_be_tried_again(
    nats_server: NatsServer, stream: Any
) -> None:
    full = {"max_msgs": 1, "discard": "new", "duplicate_window": 600}
    await stream.update_stream(name="ORDERS", subjects=["orders.>"], **full)
    await stream.publish("orders.events", b"theirs")
    refused = await _send(_contract(nats_server.server))
    assert (refused.outcome, refused.code) == (Outcome.RETRYABLE, "stream_full")


@pytest.mark.parametrize(
    ("fate", "outcome"), [("in_progress", "in_progress"), ("unlisted", "ambiguous")]
)
async def test_an_error_proves_what_it_is_listed_for(
    nats_server: NatsServer, stream: Any, fate: str, outcome: str
) -> None:
    way = NatsWay(nats_server.port)
    way.fate = fate
    with peer(way) as running:
        answered = await _send(_contract(f"nats://127.0.0.1:{running.port}"))
    assert answered.outcome.value == outcome


async def test_the_budget_ends_the_whole_attempt(nats_server: NatsServer, stream: Any) -> None:
    way = NatsWay(nats_server.port)
    way.fate = "silence"
    with peer(way) as running:
        document = _contract(f"nats://127.0.0.1:{running.port}")
        began = asyncio.get_running_loop().time()
        cut = await _send(document, within=budget(0.4))
        assert asyncio.get_running_loop().time() - began < 15
    assert (cut.outcome, cut.code) == (Outcome.AMBIGUOUS, "deadline")

    def drip(arrival: Arrival) -> None:
        # A greeting that never ends: nothing was published.
        while not arrival.stopping.wait(0.05):
            arrival.send(b"x")

    with peer(drip) as running:
        document = _contract(f"nats://127.0.0.1:{running.port}")
        cut = await _send(document, within=budget(0.3))
    assert (cut.outcome, cut.code) == (Outcome.NOT_SENT, "deadline")


GREETING = b'INFO {"server_id":"x","version":"2.9.10","headers":true,"max_payload":1048576}\r\n'
# Left to itself, the library connects again after two seconds, sixty times.
LONG_SECONDS = 6.0


@pytest.mark.parametrize("greets", [False, True])
async def test_a_server_that_breaks_the_connection_is_not_asked_again(greets: bool) -> None:
    def breaking(arrival: Arrival) -> None:
        if greets:
            arrival.send(GREETING)
            arrival.read_some()
        arrival.reset()

    with peer(breaking) as running:
        document = _contract(f"nats://127.0.0.1:{running.port}")
        unsent = await _send(document, within=budget(LONG_SECONDS))
        connections = len(running.arrivals)
    assert (unsent.outcome, unsent.bytes_may_have_left) == (Outcome.NOT_SENT, False)
    assert connections == 1


async def test_a_server_that_breaks_the_connection_at_the_publish_is_not_asked_again(
    nats_server: NatsServer, stream: Any
) -> None:
    way = NatsWay(nats_server.port)
    way.fate = "garbage"
    with peer(way) as running:
        document = _contract(f"nats://127.0.0.1:{running.port}")
        broken = await _send(document, within=budget(LONG_SECONDS))
        connections = len(running.arrivals)
    assert (broken.outcome, broken.bytes_may_have_left) == (Outcome.AMBIGUOUS, True)
    assert (connections, way.keys()) == (1, [KEY])


async def test_a_server_that_is_not_there_is_told_so() -> None:
    unsent = await _send(_contract(f"nats://127.0.0.1:{refused_port()}"))
    assert (unsent.outcome, unsent.code) == (Outcome.NOT_SENT, "connect_refused")


# Who may, and over what ------------------------------------------------------------------------

USERS = f"""
authorization {{ users = [
  {{user: broker, password: {PASSWORD}}}
  {{user: reader, password: {PASSWORD}, permissions: {{publish: {{deny: ["orders.>"]}}}}}}
] }}
"""


def _as(user: str, server: str, **adapter: Any) -> ContractDocument:
    auth = {"kind": "password", "username": user, "password": "env:EFFECT_BROKER_SECRET_X"}
    return _contract(server, auth=auth, **adapter)


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[NatsServer]:
    with NatsServer(tmp_path, requires_tool("nats-server"), USERS) as server:
        client = await nats.connect(server.server, user="broker", password=PASSWORD)
        await client.jetstream().add_stream(
            name="ORDERS", subjects=["orders.>"], duplicate_window=600
        )
        await client.close()
        yield server


async def test_only_the_contracts_own_credentials_open_the_stream(
    guarded: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    done = await _send(_as("broker", guarded.server))
    assert done.outcome is Outcome.COMMITTED
    nobody = await _send(_contract(guarded.server))
    wrong = await _send(_as("broker", guarded.server), adapter=NatsAdapter(lambda _: "wrong"))
    for refused in (nobody, wrong):
        assert (refused.outcome, refused.code) == (Outcome.NOT_SENT, "access_denied")

    def missing(reference: str) -> str:
        raise SecretUnavailable(reference)

    absent = await _send(_as("broker", guarded.server), adapter=NatsAdapter(missing))
    assert (absent.outcome, absent.code) == (Outcome.NOT_SENT, "secret_unavailable")
    assert guarded.stored("ORDERS") == 1
    assert PASSWORD not in caplog.text


async def test_a_publish_that_is_forbidden_by_name_is_a_refusal(guarded: NatsServer) -> None:
    denied = await _send(_as("reader", guarded.server), within=budget(1.0))
    assert (denied.outcome, denied.code) == (Outcome.REJECTED, "access_denied")
    assert guarded.stored("ORDERS") == 0


async def test_no_credentials_reach_a_server_without_the_tls_that_the_contract_asks_for(
    guarded: NatsServer,
) -> None:
    def carry(arrival: Arrival) -> None:
        NatsWay(guarded.port)(arrival)

    with peer(carry) as running:
        unsent = await _send(_as("broker", f"tls://127.0.0.1:{running.port}"))
        running.settle()
        [received] = running.received
    assert (unsent.outcome, unsent.code) == (Outcome.NOT_SENT, "tls_missing")
    assert received == b"", "the library by itself would have sent CONNECT in the clear"


async def test_tls_is_verified_and_then_carries_the_message(
    tmp_path: Path, certified: Callable[[Path], ssl.SSLContext]
) -> None:
    trusting = certified(tmp_path / "peer.pem")
    tls = f'tls {{ cert_file: "{tmp_path}/peer.pem", key_file: "{tmp_path}/peer.pem" }}\n'
    with NatsServer(tmp_path, requires_tool("nats-server"), tls) as server:
        place = f"tls://127.0.0.1:{server.port}"
        strange = await _send(_contract(place))
        client = await nats.connect(place, tls=trusting)
        await client.jetstream().add_stream(
            name="ORDERS", subjects=["orders.>"], duplicate_window=600
        )
        await client.close()
        known = await _send(_contract(place), adapter=NatsAdapter(lambda _: "", trusting))
    assert (strange.outcome, strange.code) == (Outcome.NOT_SENT, "tls_failed")
    assert known.outcome is Outcome.COMMITTED
