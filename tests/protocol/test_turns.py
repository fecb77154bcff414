"""A turn at a limited target: a near one is waited for in the run, a later one ends it."""

from __future__ import annotations

import pytest

from effect_contracts.facts import EffectState
from protocol.world import World


async def _second(per_second_max: float) -> World:
    """A target that has just been asked once, and a second effect that wants it too."""
    world = World("idempotent", limits={"per_second_max": per_second_max, "burst_max": 1})
    await world.submit("order-1")
    await world.run()
    assert world.state == ("succeeded", "committed")
    await world.submit("order-2")
    return world


@pytest.mark.parametrize("per_second_max", [1.0, 1.25, 4.0])
async def test_a_turn_that_comes_within_a_second_is_slept_through(per_second_max: float) -> None:
    world = await _second(per_second_max)
    await world.run()
    assert world.state == ("succeeded", "committed")
    assert world.process.rested == [pytest.approx(1 / per_second_max, abs=0.002)]
    assert len(world.target.sent) == 2


@pytest.mark.parametrize("per_second_max", [0.5, 0.8, 0.99])
async def test_a_turn_that_comes_later_ends_the_run_and_is_stored(per_second_max: float) -> None:
    """Whoever sleeps holds a slot that others of its tenant may need."""
    world = await _second(per_second_max)
    await world.run()
    assert world.state == (EffectState.PREPARED.value, "target_busy")
    assert world.process.rested == []
    turn_at = world.snapshot.intent.next_action_at
    assert turn_at is not None
    waits = (turn_at - world.clock.now()).total_seconds()
    assert waits == pytest.approx(1 / per_second_max, abs=0.002)
    assert len(world.target.sent) == 1
    # It has its turn then, and is sent.
    await world.run_until_at_rest()
    assert world.state == ("succeeded", "committed")
