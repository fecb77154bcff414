"""The first step of a run: it reads and sends in one, and keeps every promise of the two."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from effect_adapters.base import Answer
from effect_broker.protocol import steps
from effect_broker.protocol.ports import Ports, StoreUnavailable
from effect_broker.protocol.run import StepResult, opened
from effect_contracts.facts import Hold, Outcome
from protocol.world import SeenCalls, Trouble, World


class SeenParts(SeenCalls):
    """The steps themselves, as `effect_broker.durable` calls them; the records are a test's own."""

    async def begin(self) -> StepResult:
        """See `run.Parts`."""
        step = partial(steps.begin, self._ports, self._tenant_id, self._effect_id)
        return await self._step("begin", step)


def parts(world: World, ports: Ports | None = None, generation: int = 1) -> SeenParts:
    return SeenParts(ports or world.ports, world.effect_id, generation, [])


async def opening(world: World, *, generation: int = 1) -> tuple[StepResult, list[str]]:
    made = parts(world, generation=generation)
    return await opened(made, new=generation == 1), made.names


async def test_a_new_effect_is_sent_without_being_read_first(idempotent: World) -> None:
    await idempotent.submit()
    seen, names = await opening(idempotent)
    assert (seen["next"], names) == ("end", ["begin"])
    assert idempotent.state == ("succeeded", "committed")
    assert len(idempotent.target.sent) == 1


@pytest.mark.parametrize("fixture", ["idempotent", "unsafe"])
async def test_a_first_step_that_is_entered_again_sends_nothing_again(
    request: pytest.FixtureRequest, fixture: str
) -> None:
    """The engine has lost its result."""
    world: World = request.getfixturevalue(fixture)
    await world.submit()
    await opening(world)
    seen, names = await opening(world)
    assert (seen["next"], names) == ("end", ["begin", "reserve"])
    assert len(world.target.sent) == 1


async def test_of_two_that_are_entered_at_once_one_sends(unsafe: World) -> None:
    """A zombie beside its successor."""
    await unsafe.submit()
    other = parts(unsafe, unsafe.ports_of(unsafe.new_process("worker-2")))
    await asyncio.gather(opened(parts(unsafe), new=True), opened(other, new=True))
    assert len(unsafe.target.sent) == 1


async def test_what_is_held_is_not_sent(idempotent: World) -> None:
    await idempotent.submit()
    idempotent.memory.holds.add(Hold.PAUSED)
    _, names = await opening(idempotent)
    assert names == ["begin", "reserve"]
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
    seen, names = await opening(idempotent, generation=2)
    assert (seen["next"], names) == ("end", ["reserve", "dispatch 1"])
    assert len(idempotent.target.sent) == 1


async def test_a_store_that_is_away_sends_nothing(idempotent: World) -> None:
    await idempotent.submit()
    idempotent.store.troubles.append(Trouble.UNAVAILABLE)
    with pytest.raises(StoreUnavailable):
        await opening(idempotent)
    assert idempotent.target.sent == []


async def test_the_fault_points_of_a_reserve_are_met_by_what_spares_it(idempotent: World) -> None:
    await idempotent.submit()
    idempotent.reached.clear()
    await opening(idempotent)
    assert idempotent.reached[:3] == ["before_reserve", "after_reserve", "before_attempt_commit"]
