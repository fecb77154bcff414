"""The edges of a run: its generation, the longest wait it sleeps through, how it tries again."""

from __future__ import annotations

import pytest

from effect_adapters.base import Answer, Finding
from effect_broker.protocol import steps
from effect_broker.protocol.conclusion import Next
from effect_contracts.facts import Outcome, Verdict
from protocol.world import Trouble, World, lost_answer


@pytest.mark.parametrize("generation", [1, 3])
async def test_a_run_of_another_generation_drives_nothing(
    idempotent: World, generation: int
) -> None:
    await idempotent.submit()
    idempotent.let_pass(1000)
    await idempotent.requeue_due()
    assert idempotent.snapshot.intent.generation == 2
    before = idempotent.snapshot.intent
    assert (await idempotent.reserve(generation)).next is Next.END
    assert idempotent.snapshot.intent == before
    assert (await idempotent.reserve(2)).next is Next.DISPATCH


async def refused_for(world: World, seconds: float) -> None:
    await world.submit()
    world.target.answers.append(Answer(Outcome.RETRYABLE, "busy", retry_after_seconds=seconds))
    await world.dispatch(1, 1)
    due_at = world.snapshot.intent.next_action_at
    assert due_at is not None
    assert (due_at - world.clock.now()).total_seconds() == seconds


@pytest.mark.parametrize(
    ("seconds", "slept"), [(0.5, [0.5]), (4.5, [4.5]), (5.0, [5.0]), (5.5, []), (60.0, [])]
)
async def test_a_run_sleeps_through_five_seconds_and_no_more(
    seconds: float, slept: list[float]
) -> None:
    idempotent = World("idempotent", retry={"backoff_initial_seconds": 0.1})
    assert steps.SHORT_WAIT_SECONDS == 5.0
    await refused_for(idempotent, seconds)
    seen = await idempotent.reserve()
    assert idempotent.process.rested == slept
    assert seen.next is (Next.DISPATCH if slept else Next.END)


async def test_a_process_that_drains_hands_a_short_wait_back(idempotent: World) -> None:
    await refused_for(idempotent, 3.0)
    idempotent.process.fit = False
    assert (await idempotent.reserve()).next is Next.END
    assert idempotent.process.rested == [3.0]


async def test_what_must_stand_is_tried_again_ever_later_up_to_a_second(unsafe: World) -> None:
    await unsafe.submit()

    async def store_goes_away() -> None:
        unsafe.store.troubles.extend([Trouble.UNAVAILABLE] * 8)

    unsafe.target.while_sending = store_goes_away
    await unsafe.dispatch(1, 1)
    assert unsafe.clock.slept == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    assert unsafe.state == ("succeeded", "committed")


@pytest.mark.parametrize(("deadline", "allowed"), [(10, 10.0), (30, 30.0), (45, 30.0)])
async def test_a_look_up_has_the_attempts_deadline_and_thirty_seconds_at_most(
    deadline: int, allowed: float
) -> None:
    world = World("reconcilable", attempt_deadline_seconds=deadline)
    await world.submit()
    world.target.answers.append(lost_answer())
    seen = await world.dispatch(1, 1)
    began = world.clock.now()
    due_at = []

    async def look() -> None:
        due_at.append(world.snapshot.intent.next_action_at)

    world.target.while_looking = look
    world.target.findings.append(Finding(Verdict.UNKNOWN, "busy"))
    await world.probe(seen.version)
    assert [(at - began).total_seconds() for at in due_at if at] == [allowed]
    (call,) = world.target.looked
    assert call.budget.remaining_seconds() == pytest.approx(allowed, abs=0.01)
