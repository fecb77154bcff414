"""What the check says of certificates: an honest account is clean, a send without one is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from effect_broker.proof.memory_certificates import MemoryCertificate
from effect_broker.protocol import changes
from effect_contracts import decide
from effect_contracts.facts import Certified
from effect_contracts.receipts import receipt_time
from effect_contracts.trace import Rule, verify_lines
from effect_contracts.trace.kinds import CERTIFICATE_MEMBER, CERTIFIED_MEMBER
from protocol.world import World, lost_answer
from trace_check.forging import Line, judged, parsed
from trace_check.staged import account, world_of

TARGET = "simulated:ledger#acct_1"
DEMAND: dict[str, Any] = {"oversight": {"certificate": {"age_seconds_max": 600}}}


def certify(world: World, seconds: float = 3600.0) -> datetime:
    """Store a certificate of the world's target; return when it expires."""
    now = world.clock.now()
    until = now + timedelta(seconds=seconds)
    said = Certified(f"certificate-{until:%M%S}", TARGET, frozenset(), now, until)
    digest = world.snapshot.document.digest()
    world.memory.certificates.store(MemoryCertificate(digest, said, now))
    return until


async def gone_on(world: World) -> None:
    """What waited for a certificate is found, and runs."""
    assert await world.memory.release_certified(1, lambda _: TARGET) == 1
    await world.requeue_due()
    await world.run(world.snapshot.intent.generation)


async def certified_twice() -> World:
    """An effect that waits, is sent and loses its answer, waits again, and is sent again."""
    world = world_of("idempotent", **DEMAND)
    await world.submit()
    await world.run()
    assert world.state == ("prepared", "awaiting_certificate")
    world.let_pass(5)
    certify(world, 0.1)  # the exchange is shorter, the back-off is longer
    world.target.answers.append(lost_answer())
    await gone_on(world)
    assert world.state == ("outcome_unknown", "awaiting_certificate")
    world.let_pass(60)
    certify(world)
    await gone_on(world)
    assert (world.state[0], len(world.target.sent)) == ("succeeded", 2)
    return world


async def test_an_honest_account_names_the_certificate_of_each_attempt_and_is_clean() -> None:
    world = await certified_twice()
    assert verify_lines(account(world), whole=True).violations == ()
    (effect,) = (line for line in parsed(account(world)) if line["type"] == "effect")
    started = [event for event in effect["events"] if event["kind"] == "attempt_started"]
    for event in started:
        told = json.loads(event["metadata"])
        assert told[CERTIFICATE_MEMBER].startswith("certificate-")
        assert receipt_time(datetime.fromisoformat(event["at"])) < told[CERTIFIED_MEMBER]
    # The second one is good for an hour, and the contract takes it for ten minutes.
    told = json.loads(started[1]["metadata"])
    ends_at = datetime.fromisoformat(told[CERTIFIED_MEMBER])
    assert ends_at - datetime.fromisoformat(started[1]["at"]) <= timedelta(seconds=600)


def _without(*members: str) -> Callable[[dict[str, Any]], None]:
    def forge(told: dict[str, Any]) -> None:
        for member in members:
            del told[member]

    return forge


def _over(told: dict[str, Any]) -> None:
    told[CERTIFIED_MEMBER] = receipt_time(datetime.fromisoformat("2026-01-01T00:00:00+00:00"))


def _no_text(told: dict[str, Any]) -> None:
    told[CERTIFIED_MEMBER] = 5


@pytest.mark.parametrize(
    "forge",
    [
        _without(CERTIFICATE_MEMBER, CERTIFIED_MEMBER),
        _without(CERTIFICATE_MEMBER),
        _without(CERTIFIED_MEMBER),
        _over,
        _no_text,
    ],
)
async def test_an_attempt_that_names_none_in_force_is_found(
    forge: Callable[[dict[str, Any]], None],
) -> None:
    trace = parsed(account(await certified_twice()))

    def forged(effect: Line) -> None:
        event = next(e for e in effect["events"] if e["kind"] == "attempt_started")
        told = json.loads(event["metadata"])
        forge(told)
        event["metadata"] = json.dumps(told, separators=(",", ":"), sort_keys=True)

    violations = judged(trace, forged, rechain=True).violations
    assert {one.rule for one in violations} == {Rule.CERTIFICATE}
    assert violations[0].sequence is not None


async def test_a_broker_that_forgets_to_ask_gives_itself_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = world_of("idempotent", **DEMAND)
    await world.submit()
    monkeypatch.setattr(decide._Case, "_certified", lambda _case: True)
    monkeypatch.setattr(changes, "certificate_named", lambda *_: {})
    await world.run()
    assert len(world.target.sent) == 1
    found = verify_lines(account(world), whole=True).violations
    assert [one.rule for one in found] == [Rule.CERTIFICATE]


async def test_a_certificate_that_nobody_asked_for_is_no_part_of_an_event() -> None:
    world = world_of("idempotent")
    await world.submit()
    await world.run()

    def forged(effect: Line) -> None:
        event = next(e for e in effect["events"] if e["kind"] == "attempt_started")
        told = {**json.loads(event["metadata"]), CERTIFICATE_MEMBER: "c", CERTIFIED_MEMBER: "z"}
        event["metadata"] = json.dumps(told, separators=(",", ":"), sort_keys=True)

    trace = parsed(account(world))
    assert [v.rule for v in judged(trace, forged, rechain=True).violations] == [Rule.KIND]
