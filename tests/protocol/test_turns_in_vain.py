"""A turn that comes in vain gives another one and writes no event, unless something else does."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest

from effect_broker.protocol.ports import KeepPace
from effect_contracts.decide import Reason
from effect_contracts.facts import Hold
from effect_contracts.pacing import Pace
from protocol.test_turns_told import _told
from protocol.world import World

TARGET = "simulated:ledger#acct_1"
LIMITS = {"per_second_max": 0.05, "burst_max": 1}


def others_use_up_the_rate(world: World) -> None:
    """Others of the contract were sent just now, so that there is room in 40 seconds only."""
    intent, now = world.snapshot.intent, world.clock.now()
    world.memory.paces.of((intent.contract_name, TARGET), intent.tenant_id, {}, now, Counter())
    pace = Pace(granted_at=now, rate_at=now + timedelta(seconds=40))
    turn = KeepPace(TARGET, pace)
    assert turn.wakes == 0, "a turn wakes nobody"
    world.memory.paces.keep(turn, intent)


async def comes_again(world: World) -> None:
    """It is picked up, and runs."""
    await world.requeue_due()
    await world.run(world.snapshot.intent.generation)


async def test_a_turn_in_vain_gives_another_turn_and_writes_no_event() -> None:
    world = World("idempotent", limits=LIMITS)
    await world.submit()
    others_use_up_the_rate(world)
    await world.run()
    first = world.snapshot
    assert world.state == ("prepared", "target_busy")
    world.let_pass(41)
    others_use_up_the_rate(world)
    await comes_again(world)
    second = world.snapshot
    assert world.state == ("prepared", "target_busy")
    assert second.intent.version == first.intent.version
    assert first.intent.next_action_at is not None
    assert second.intent.next_action_at is not None
    assert second.intent.next_action_at > world.clock.now() > first.intent.next_action_at
    assert second.facts.turn_at == second.intent.next_action_at
    assert world.target.sent == []


@pytest.mark.parametrize("hold", [Hold.PAUSED, Hold.TENANT_DISABLED])
async def test_who_waited_for_something_else_writes_that_it_waits_for_a_turn(hold: Hold) -> None:
    world = World("idempotent", limits=LIMITS)
    world.memory.holds.add(hold)
    await world.submit()
    others_use_up_the_rate(world)
    await world.run()
    held = world.snapshot
    assert world.state == ("prepared", hold.value)
    world.memory.holds.clear()
    await world.release_lifted(10)
    await comes_again(world)
    assert world.state == ("prepared", "target_busy")
    assert world.snapshot.intent.version > held.intent.version
    assert world.snapshot.facts.turn_at == world.snapshot.intent.next_action_at
    assert world.target.sent == []


async def test_who_waits_for_another_moment_names_no_turn() -> None:
    world = World("idempotent", limits=LIMITS)
    await world.submit()
    expires_at = world.clock.now() + timedelta(seconds=9)
    waits = replace(world.snapshot.facts, holds=frozenset({Hold.PAUSED}), send_before=expires_at)
    reason, advance = await _told(world, waits)
    assert (reason, advance.next_action_at) == (Reason.PAUSED, expires_at)
    assert "turn_at" not in advance.metadata
