"""A new effect is sent on the version that its submit has left, and keeps every promise."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from effect_adapters.base import Answer
from effect_broker.protocol.ports import Ports, StoreUnavailable
from effect_broker.protocol.run import GENERATION_FIRST, drive
from effect_contracts.facts import Hold, Outcome
from protocol.world import Trouble, World


async def opening(
    world: World, ports: Ports | None = None, *, generation: int = GENERATION_FIRST
) -> list[str]:
    """Drive a run as the engine does; return the steps that it has entered."""
    calls = world.calls(generation, ports)
    await drive(calls, new=generation == GENERATION_FIRST)
    return calls.names


async def test_a_new_effect_is_sent_without_being_read_first(idempotent: World) -> None:
    await idempotent.submit()
    assert await opening(idempotent) == ["begin", "dispatch 1"]
    assert idempotent.state == ("succeeded", "committed")
    assert len(idempotent.target.sent) == 1


@pytest.mark.parametrize("fixture", ["idempotent", "unsafe"])
async def test_a_first_run_that_is_entered_again_sends_nothing_again(
    request: pytest.FixtureRequest, fixture: str
) -> None:
    """The engine has lost its results."""
    world: World = request.getfixturevalue(fixture)
    await world.submit()
    await opening(world)
    assert await opening(world) == ["begin", "dispatch 1", "reserve"]
    assert len(world.target.sent) == 1


async def test_of_two_that_are_entered_at_once_one_sends(unsafe: World) -> None:
    """A zombie beside its successor."""
    await unsafe.submit()
    other = unsafe.ports_of(unsafe.new_process("worker-2"))
    await asyncio.gather(opening(unsafe), opening(unsafe, other))
    assert len(unsafe.target.sent) == 1


async def test_what_is_held_is_not_sent(idempotent: World) -> None:
    await idempotent.submit()
    idempotent.memory.holds.add(Hold.PAUSED)
    assert await opening(idempotent) == ["begin", "dispatch 1", "reserve"]
    assert idempotent.target.sent == []
    assert idempotent.state[1] == "paused"


async def test_a_lost_answer_is_left_to_the_steps_that_follow(unsafe: World) -> None:
    await unsafe.submit()
    unsafe.target.answers.append(Answer(Outcome.AMBIGUOUS, "timeout"))
    await opening(unsafe)
    assert unsafe.state[0] == "outcome_unknown"
    await unsafe.run()
    assert len(unsafe.target.sent) == 1


async def test_a_later_generation_reads_before_it_sends(idempotent: World) -> None:
    await idempotent.submit()
    await idempotent.requeue_due()
    assert await opening(idempotent, generation=2) == ["reserve", "dispatch 1"]
    assert len(idempotent.target.sent) == 1


async def test_a_store_that_is_away_sends_nothing(idempotent: World) -> None:
    await idempotent.submit()
    idempotent.store.troubles.append(Trouble.UNAVAILABLE)
    with pytest.raises(StoreUnavailable):
        await opening(idempotent)
    assert idempotent.target.sent == []


async def test_the_fault_points_of_a_reserve_are_met_without_a_read(idempotent: World) -> None:
    await idempotent.submit()
    idempotent.reached.clear()
    await opening(idempotent)
    assert idempotent.reached[:3] == ["before_reserve", "after_reserve", "before_attempt_commit"]


async def test_only_a_first_attempt_on_the_first_version_is_asked_for_as_new(
    idempotent: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may look at it without a lock first; for any other that look would be in vain."""
    change = idempotent.store.change
    asked: list[bool] = []

    async def told(
        tenant_id: UUID, effect_id: UUID, plan: Any, paced: Any = None, new: bool = False
    ) -> Any:
        if paced is not None:  # it would send: transaction 1
            asked.append(new)
        return await change(tenant_id, effect_id, plan, paced, new)

    monkeypatch.setattr(idempotent.store, "change", told)
    await idempotent.submit()
    for version, ordinal in ((1, 2), (2, 1), (2, 2), (1, 1)):
        await idempotent.dispatch(version, ordinal)
    assert asked == [False, False, False, True]
