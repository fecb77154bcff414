"""What the check says of turns at a limited target: an honest account is clean."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from effect_broker.protocol.ports import KeepPace
from effect_contracts.facts import Verdict
from effect_contracts.pacing import Pace
from effect_contracts.receipts import receipt_time
from effect_contracts.trace import Rule, verify_lines
from effect_contracts.trace.kinds import TURN_MEMBER
from protocol.world import World
from trace_check.forging import Line, judged, parsed
from trace_check.staged import account, tell, world_of

TARGET = "simulated:ledger#acct_1"
LIMITS: dict[str, Any] = {"per_second_max": 0.05, "burst_max": 1}


def use_up_the_rate(world: World, seconds: float) -> None:
    """Others of the contract have been sent, so that there is room after a while only."""
    intent, now = world.snapshot.intent, world.clock.now()
    paces = world.memory.paces
    paces.of((intent.contract_name, TARGET), intent.tenant_id, {}, now, Counter())
    room_at = now + timedelta(seconds=seconds)
    paces.keep(KeepPace(TARGET, Pace(granted_at=now, rate_at=room_at)), intent)


async def waited() -> World:
    """An effect that waits for its turn, is told something meanwhile, and is sent then."""
    world = world_of("idempotent", limits=LIMITS)
    await world.submit()
    use_up_the_rate(world, 40.0)
    await world.run()
    assert world.state == ("prepared", "target_busy")
    assert world.target.sent == []
    await tell(world, Verdict.UNKNOWN)
    assert world.state == ("prepared", "target_busy")
    world.let_pass(60)
    await world.requeue_due()
    await world.run(world.snapshot.intent.generation)
    assert (world.state[0], len(world.target.sent)) == ("succeeded", 1)
    return world


async def test_an_honest_account_tells_the_turn_and_is_clean() -> None:
    world = await waited()
    assert verify_lines(account(world), whole=True).violations == ()
    (effect,) = (line for line in parsed(account(world)) if line["type"] == "effect")
    waits = [event for event in effect["events"] if event["reason"] == "target_busy"]
    assert [event["kind"] for event in waits] == ["wait", "evidence_added"]
    turns = {json.loads(event["metadata"])[TURN_MEMBER] for event in waits}
    assert len(turns) == 1
    assert min(turns) > waits[0]["at"]


async def test_turns_in_vain_leave_an_account_in_order() -> None:
    """They move the next action, far if the rate is low, and are no events."""
    world = world_of("idempotent", limits={"per_second_max": 0.0005})
    await world.submit()
    use_up_the_rate(world, 2000.0)
    await world.run()
    events, first_at = world.snapshot.intent.version, world.snapshot.intent.next_action_at
    world.let_pass(2001)
    use_up_the_rate(world, 2000.0)
    await world.requeue_due()
    await world.run(world.snapshot.intent.generation)
    intent = world.snapshot.intent
    assert (world.state, intent.version) == (("prepared", "target_busy"), events)
    assert first_at is not None
    assert intent.next_action_at is not None
    assert intent.next_action_at > first_at
    trace = parsed(account(world))
    assert verify_lines(account(world), whole=True).violations == ()

    def never(effect: Line) -> None:
        effect["intent"]["next_action_at"] = None

    found = judged(trace, never, rechain=False).violations
    assert Rule.NEXT_ACTION in {one.rule for one in found}


def _without(told: dict[str, Any], _at: str) -> None:
    del told[TURN_MEMBER]


def _past(told: dict[str, Any], at: str) -> None:
    told[TURN_MEMBER] = receipt_time(datetime.fromisoformat(at))


def _spelt_otherwise(told: dict[str, Any], _at: str) -> None:
    told[TURN_MEMBER] = told[TURN_MEMBER].replace("Z", "+00:00")


def _no_moment(told: dict[str, Any], _at: str) -> None:
    told[TURN_MEMBER] = True


@pytest.mark.parametrize(
    ("forge", "rule"),
    [
        (_without, Rule.KIND),
        (_past, Rule.TIME),
        (_spelt_otherwise, Rule.KIND),
        (_no_moment, Rule.KIND),
    ],
)
async def test_a_wait_without_a_turn_to_come_is_found(
    forge: Callable[[dict[str, Any], str], None], rule: Rule
) -> None:
    trace = parsed(account(await waited()))

    def forged(effect: Line) -> None:
        event = next(e for e in effect["events"] if e["kind"] == "wait")
        told = json.loads(event["metadata"])
        forge(told, event["at"])
        event["metadata"] = json.dumps(told, separators=(",", ":"), sort_keys=True)

    assert rule in {one.rule for one in judged(trace, forged, rechain=True).violations}


async def test_under_a_contract_that_limits_nothing_nobody_waits_for_a_turn() -> None:
    honest = parsed(account(await waited()))
    world = world_of("idempotent")
    await world.submit()
    await world.run()
    plain = parsed(account(world))
    contract = next(line for line in plain if line["type"] == "contract")

    def forged(effect: Line) -> None:
        effect["intent"]["contract_digest"] = contract["contract_digest"]
        told = json.loads(effect["events"][0]["metadata"])
        told["contract_digest"] = contract["contract_digest"]
        effect["events"][0]["metadata"] = json.dumps(told, separators=(",", ":"), sort_keys=True)

    header, _, effect, end = honest
    found = judged([header, contract, effect, end], forged, rechain=True).violations
    assert Rule.DECISION in {one.rule for one in found}
