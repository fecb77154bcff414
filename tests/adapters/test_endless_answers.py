"""Targets that are no HTTP servers and do not stop talking: what they say is not kept without end.

Each stands on loopback and pours as fast as it is read; what counts is how much it got rid of
before it was left. The time of an attempt alone would let through a gigabyte.
"""

from __future__ import annotations

import contextlib
import json
import ssl
from collections.abc import Callable

import pytest
import yaml

from adapter_calls import KEY, budget, dispatch_call, merged
from effect_adapters.mailbox import look
from effect_adapters.nats import NatsAdapter
from effect_contracts.canonical import JsonValue
from effect_contracts.catalog import catalog_texts
from effect_contracts.document import ContractDocument
from effect_contracts.facts import Outcome, Verdict
from effect_contracts.smtp_settings import MailboxSettings
from peers import Arrival, peer

# What the kernel keeps of a loopback connection, and some more.
KEPT_BYTES_MAX = 32 << 20
PIECE = b"x" * 65536


def pour(arrival: Arrival, poured: list[int], piece: bytes = PIECE) -> None:
    """Send without end, until nobody is there."""
    sent = 0
    with contextlib.suppress(OSError):
        while not arrival.stopping.is_set() and sent < 8 * KEPT_BYTES_MAX:
            sent += arrival.sock.send(piece)
    poured.append(sent)


def imap(found: bytes, then: Callable[[Arrival], None]) -> Callable[[Arrival], None]:
    """A mailbox that finds something and then pours."""

    def script(arrival: Arrival) -> None:
        arrival.sock.sendall(b"* OK ready\r\n")
        while line := arrival.read_some():
            tag, _, command = line.partition(b" ")
            if command.startswith(b"CAPABILITY"):
                arrival.sock.sendall(b"* CAPABILITY IMAP4rev1\r\n")
            elif command.startswith(b"UID SEARCH"):
                arrival.sock.sendall(b"* SEARCH 1\r\n")
            elif command.startswith(b"UID FETCH"):
                arrival.sock.sendall(found)
                then(arrival)
                return
            arrival.sock.sendall(tag + b" OK done\r\n")

    return script


@pytest.mark.parametrize(
    ("found", "piece"),
    [
        (b"* 1 FETCH (UID 1 BODY[HEADER] {4000000000}\r\n", PIECE),
        (b"", b"* 1 EXISTS\r\n" * 5000),
    ],
    ids=["one literal", "lines"],
)
async def test_a_mailbox_that_does_not_stop_is_left(found: bytes, piece: bytes) -> None:
    poured: list[int] = []
    with peer(imap(found, lambda arrival: pour(arrival, poured, piece))) as running:
        settings = MailboxSettings.model_validate_json(
            json.dumps(
                {
                    "host": "127.0.0.1",
                    "port": running.port,
                    "security": "none",
                    "login": {"username": "u", "password": "env:EFFECT_BROKER_SECRET_MAIL"},
                    "copy_to": "copy@shop.example",
                }
            )
        )
        finding = await look(
            settings, ("u", "p"), ssl.create_default_context(), "<id@shop>", "digest", budget(5)
        )
        running.settle()
    assert (finding.verdict, finding.code) == (Verdict.UNKNOWN, "answer_too_large")
    assert poured[0] < KEPT_BYTES_MAX


async def test_a_server_of_nats_that_does_not_stop_is_left() -> None:
    poured: list[int] = []

    def script(arrival: Arrival) -> None:
        arrival.sock.sendall(b'INFO {"server_id":"x","version":"2","proto":1,"headers":true}\r\n')
        while b"PING" not in arrival.received and arrival.read_some():
            pass
        arrival.sock.sendall(b"PONG\r\nMSG x 1 4000000000\r\n")
        pour(arrival, poured)

    value = yaml.safe_load(catalog_texts()["nats-order-event"])
    with peer(script) as running:
        changes = {"server": f"nats://127.0.0.1:{running.port}", "auth": None}
        document = ContractDocument.parse_yaml(yaml.safe_dump(merged(value, {"adapter": changes})))
        adapter = NatsAdapter(lambda _: "")
        event: JsonValue = {"order": "o-1", "event": "paid", "detail": {"amount": 700}}
        wire = adapter.render(document, event, KEY)
        answer = await adapter.dispatch(dispatch_call(document, wire, within=budget(5)))
        running.settle()
    assert (answer.outcome, answer.code) == (Outcome.NOT_SENT, "answer_too_large")
    assert poured[0] < KEPT_BYTES_MAX
