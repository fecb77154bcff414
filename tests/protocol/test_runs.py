"""The run around the steps, its waits, and the repair that starts the next one: design §4."""

from __future__ import annotations

import asyncio
from dataclasses import fields, replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from effect_adapters.base import Answer
from effect_adapters.simulated import Fate
from effect_broker.clock import SystemClock
from effect_broker.process import WorkerProcess
from effect_broker.protocol import changes
from effect_broker.protocol.changes import (
    IDLE_GENERATIONS_FREE,
    IDLE_GENERATIONS_MAX,
    IDLE_WAIT_CAP_SECONDS,
)
from effect_broker.protocol.conclusion import Next, View
from effect_broker.protocol.ports import Change, Snapshot
from effect_broker.protocol.run import STEPS_MAX, StepResult, drive
from effect_contracts.facts import Outcome, Verdict
from protocol.world import TENANT, SeenCalls, Trouble, World, lost_answer, not_sent

# What the target does in a run: each leads through other branches of the body.
SCRIPTS: dict[str, tuple[str, list[Fate]]] = {
    "at once": ("idempotent", []),
    "refused": ("unsafe", [Fate.REFUSE]),
    "unknown": ("unsafe", [Fate.COMMIT_AND_LOSE]),
    "retried": ("idempotent", [Fate.UNREACHED, Fate.BUSY]),
    "found": ("reconcilable", [Fate.COMMIT_AND_LOSE, Fate.FAIL_LOOK_UP]),
    "absent": ("reconcilable", [Fate.LOSE]),
    "mutated": ("transactional", [Fate.BUSY]),
}


async def scripted(name: str) -> tuple[World, SeenCalls]:
    """One run under a script."""
    safety, fates = SCRIPTS[name]
    world = World(safety)
    world.target.add_fates(*fates)
    await world.submit()
    return world, await world.run()


# The body -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCRIPTS)
async def test_the_workflow_body_uses_only_step_results(name: str) -> None:
    """Replayed with what was recorded, it takes the same branches, whatever the time is now."""
    world, calls = await scripted(name)
    world.clock.seconds += 10**6
    before, sent = world.snapshot, len(world.target.sent)
    replayed = world.calls(recorded=list(calls.recorded))
    result = await drive(replayed)
    assert replayed.names == calls.names
    assert result == calls.recorded[-1]["state"]
    assert world.snapshot == replace(before, now=world.clock.now())
    assert len(world.target.sent) == sent


@pytest.mark.parametrize("name", SCRIPTS)
async def test_a_run_that_is_entered_again_after_any_step_does_no_harm(name: str) -> None:
    """The engine has lost the results after a step, or the process has died there."""
    _, whole = await scripted(name)
    for known in range(len(whole.recorded)):
        world, calls = await scripted(name)
        again = world.calls(recorded=calls.recorded[:known])
        await drive(again)
        await world.run_until_at_rest()
        assert again.names[: known + 1] == calls.names[: known + 1]
        assert len(world.target.entries) <= 1
        if name in {"at once", "found", "absent", "retried", "mutated"}:
            assert world.state == ("succeeded", "committed")


@pytest.mark.parametrize("name", SCRIPTS)
async def test_step_results_hold_ids_ordinals_states_and_codes_only(name: str) -> None:
    world, calls = await scripted(name)
    key = world.snapshot.intent.downstream_key
    for result in calls.recorded:
        assert set(result) == {f.name for f in fields(View)}
        text = str(result)
        assert "amount" not in text
        assert key not in text
        assert "sim_" not in text


async def test_a_run_ends_after_a_bounded_number_of_steps() -> None:
    class Restless:
        count = 0

        async def begin(self) -> StepResult:
            raise AssertionError

        async def reserve(self) -> StepResult:
            self.count += 1
            return {"next": "reload", "state": "retryable"}

        async def dispatch(self, version: int, ordinal: int) -> StepResult:
            raise AssertionError

        async def probe(self, version: int) -> StepResult:
            raise AssertionError

    steps = Restless()
    assert await drive(steps) == "retryable"
    assert steps.count == STEPS_MAX + 1


async def test_a_superseded_generation_ends(idempotent: World) -> None:
    await idempotent.submit()
    await idempotent.requeue_due()
    before = idempotent.snapshot
    assert (await idempotent.reserve(1)).next is Next.END
    calls = await idempotent.run(1)
    assert calls.names == ["reserve"]
    assert idempotent.snapshot == before
    assert (await idempotent.reserve(2)).next is Next.DISPATCH


# Waits --------------------------------------------------------------------------------------------


async def waiting(world: World) -> None:
    """Let the target ask for ten minutes."""
    await world.submit()
    world.target.answers.append(Answer(Outcome.RETRYABLE, "busy", retry_after_seconds=600.0))
    calls = await world.run()
    assert calls.names == ["reserve", "dispatch 1"]  # it does not come back for a long wait
    assert world.state == ("retryable", "backoff")


async def test_a_long_wait_ends_the_run_and_its_end_is_stored(idempotent: World) -> None:
    await waiting(idempotent)
    intent = idempotent.snapshot.intent
    recorded_at = idempotent.snapshot.facts.attempts[0].recorded_at
    assert recorded_at is not None
    assert intent.next_action_at == recorded_at + timedelta(seconds=600)
    assert idempotent.process.rested == []


async def test_a_run_that_comes_early_ends_without_a_new_generation(idempotent: World) -> None:
    await waiting(idempotent)
    before = idempotent.snapshot
    calls = await idempotent.run()
    assert calls.names == ["reserve"]
    assert await idempotent.requeue_due() == 0
    assert idempotent.snapshot == before
    assert idempotent.queue == [(idempotent.effect_id, 1)]


async def test_a_short_wait_is_slept_through(idempotent: World) -> None:
    await idempotent.submit()
    idempotent.target.answers.append(not_sent())
    calls = await idempotent.run()
    assert calls.names == ["reserve", "dispatch 1", "reserve", "dispatch 2"]
    assert len(idempotent.process.rested) == 1
    assert idempotent.process.rested[0] <= 5


async def test_a_drain_cuts_a_wait_and_hands_the_effect_back(idempotent: World) -> None:
    await idempotent.submit()
    idempotent.target.answers.append(not_sent())
    await idempotent.dispatch(1, 1)
    due_at = idempotent.snapshot.intent.next_action_at

    async def rest(seconds: float) -> None:
        idempotent.process.fit = False

    idempotent.process.rest = rest  # type: ignore[method-assign]
    assert (await idempotent.reserve()).next is Next.END
    assert idempotent.snapshot.intent.next_action_at == due_at
    assert idempotent.outcomes == ["not_sent"]


async def test_next_action_at_is_the_authority_on_the_database_clock(idempotent: World) -> None:
    await waiting(idempotent)
    idempotent.clock.database_ahead_seconds = 601
    assert await idempotent.requeue_due() == 1
    await idempotent.run(2)
    assert idempotent.state == ("succeeded", "committed")


async def test_a_database_clock_that_jumps_back_makes_no_hot_loop(reconcilable: World) -> None:
    await reconcilable.submit()
    reconcilable.target.answers.append(lost_answer())
    await reconcilable.dispatch(1, 1)
    reconcilable.clock.database_ahead_seconds = -3600
    calls = await reconcilable.run()
    assert len(calls.names) < 4
    assert await reconcilable.requeue_due() == 0
    reconcilable.clock.database_ahead_seconds = 0
    await reconcilable.run_until_at_rest()
    assert len(reconcilable.target.entries) == 1


# Requeue ------------------------------------------------------------------------------------------


async def test_an_effect_that_is_not_due_is_not_requeued(idempotent: World) -> None:
    await waiting(idempotent)
    plan = changes.requeue(idempotent.snapshot, expected_generation=1, actor="test")
    assert plan == Change(False)


async def test_of_two_reconcile_loops_one_starts_the_run(idempotent: World) -> None:
    await idempotent.submit()

    async def overtake() -> None:  # both have read that generation 1 is due and has no run
        plan = partial(changes.requeue, expected_generation=1, actor="worker:other")
        assert await idempotent.memory.change(TENANT.tenant_id, idempotent.effect_id, plan)

    idempotent.store.before = overtake
    assert await idempotent.requeue_due() == 0
    assert idempotent.queue == [(idempotent.effect_id, 1), (idempotent.effect_id, 2)]


@pytest.mark.parametrize("end", ["succeeded", "parked"])
async def test_what_is_at_rest_is_not_requeued(unsafe: World, end: str) -> None:
    await unsafe.submit()
    if end == "parked":
        unsafe.target.answers.append(lost_answer())
    await unsafe.run()
    unsafe.clock.seconds += 10**6
    assert await unsafe.requeue_due() == 0
    assert unsafe.queue == [(unsafe.effect_id, 1)]


async def test_runs_that_get_nowhere_back_off_and_are_then_shown_to_a_person(
    idempotent: World,
) -> None:
    await idempotent.submit()
    idempotent.break_wire()
    waits: list[float] = []
    while (due_at := idempotent.snapshot.intent.next_action_at) is not None:
        wait = max((due_at - idempotent.clock.now()).total_seconds(), 0.0)
        waits.append(wait)
        idempotent.clock.seconds += wait
        await idempotent.requeue_due()
    assert idempotent.state == ("manual_review", "run_failing")
    assert idempotent.memory.parked(idempotent.effect_id)
    assert idempotent.snapshot.intent.generation == IDLE_GENERATIONS_MAX + 1
    assert waits == sorted(waits)
    assert waits[IDLE_GENERATIONS_FREE] == 0
    assert waits[IDLE_GENERATIONS_FREE + 1] == 1
    assert max(waits) == pytest.approx(IDLE_WAIT_CAP_SECONDS)
    assert sum(waits) > 3600


async def test_a_probe_that_keeps_breaking_is_shown_to_a_person(reconcilable: World) -> None:
    """Beginning a probe is no fact: only what it finds is progress."""
    await reconcilable.submit()
    reconcilable.target.answers.append(lost_answer())
    await reconcilable.dispatch(1, 1)
    for _ in range(IDLE_GENERATIONS_MAX * 2):
        due_at = reconcilable.snapshot.intent.next_action_at
        assert due_at is not None
        wait = (due_at - reconcilable.clock.now()).total_seconds()
        reconcilable.clock.seconds += max(wait, 0.0)
        if not await reconcilable.requeue_due():
            break
        reconcilable.store.troubles.extend([Trouble.NONE, Trouble.UNAVAILABLE])
        with pytest.raises(Exception, match="scripted"):
            await reconcilable.probe(reconcilable.snapshot.intent.version)
        reconcilable.store.troubles.clear()
    assert reconcilable.state == ("manual_review", "run_failing")


async def test_a_fact_starts_the_count_of_idle_runs_anew(idempotent: World) -> None:
    await idempotent.submit()
    for _ in range(IDLE_GENERATIONS_MAX):
        idempotent.clock.seconds += IDLE_WAIT_CAP_SECONDS + 1
        assert await idempotent.requeue_due() == 1
    idempotent.target.answers.append(Answer(Outcome.RETRYABLE, "busy", retry_after_seconds=60.0))
    await idempotent.run(IDLE_GENERATIONS_MAX + 1)
    for _ in range(IDLE_GENERATIONS_MAX):
        idempotent.clock.seconds += IDLE_WAIT_CAP_SECONDS + 1
        assert await idempotent.requeue_due() == 1
    idempotent.clock.seconds += IDLE_WAIT_CAP_SECONDS + 1
    assert await idempotent.requeue_due() == 0
    assert idempotent.state == ("manual_review", "run_failing")


async def test_a_store_that_is_away_uses_up_no_generation(idempotent: World) -> None:
    await idempotent.submit()
    idempotent.store.troubles.extend([Trouble.UNAVAILABLE, Trouble.BUSY, Trouble.LOST_UNDONE] * 9)
    for _ in range(27):
        assert await idempotent.requeue_due() == 0
    assert idempotent.snapshot.intent.generation == 1
    assert await idempotent.requeue_due() == 1


async def test_a_fact_unparks_an_effect_whose_runs_failed(unsafe: World) -> None:
    await unsafe.submit()

    async def fail() -> None:
        unsafe.clock.seconds += 100
        for _ in range(IDLE_GENERATIONS_MAX + 1):
            await unsafe.requeue_due()
            unsafe.clock.seconds += IDLE_WAIT_CAP_SECONDS + 1
        assert unsafe.state == ("manual_review", "run_failing")

    unsafe.target.while_sending = fail
    await unsafe.dispatch(1, 1)
    assert unsafe.state == ("succeeded", "committed")


async def test_a_lost_commit_answer_of_a_requeue_starts_one_run(idempotent: World) -> None:
    await idempotent.submit()
    idempotent.store.troubles.append(Trouble.LOST_COMMITTED)
    assert await idempotent.requeue_due() == 0
    assert idempotent.queue == [(idempotent.effect_id, 1), (idempotent.effect_id, 2)]
    await idempotent.run(2)
    assert idempotent.state == ("succeeded", "committed")


# Conclusions --------------------------------------------------------------------------------------


async def test_waits_parks_and_ends_are_written_under_compare_and_set(unsafe: World) -> None:
    """A reader that has been overtaken writes nothing of what it decided."""
    await unsafe.submit()
    unsafe.target.answers.append(lost_answer())

    def die() -> None:
        raise KeyboardInterrupt

    unsafe.on_reach["after_attempt_commit"] = die
    with pytest.raises(KeyboardInterrupt):
        await unsafe.dispatch(1, 1)
    unsafe.clock.seconds += 31

    async def overtake() -> None:
        await unsafe.evidence(Verdict.COMMITTED, "sim_1")

    unsafe.store.before = overtake
    assert (await unsafe.reserve()).next is Next.END
    assert unsafe.state == ("succeeded", "committed")
    assert len(unsafe.memory.events(unsafe.effect_id)) == 2


async def test_a_conclusion_that_is_overtaken_is_left_to_the_reload(unsafe: World) -> None:
    """Nothing of it is written, and the run goes on: it must not leave it to another one."""
    await unsafe.submit()

    def die() -> None:
        raise KeyboardInterrupt

    unsafe.on_reach["after_attempt_commit"] = die
    with pytest.raises(KeyboardInterrupt):
        await unsafe.dispatch(1, 1)
    unsafe.clock.seconds += 31

    async def overtake() -> None:
        unsafe.clock.database_ahead_seconds = -5  # for this writer the attempt is still open
        await unsafe.evidence(Verdict.UNKNOWN)
        unsafe.clock.database_ahead_seconds = 0

    unsafe.store.before = overtake
    assert (await unsafe.reserve()).next is Next.RELOAD
    assert unsafe.outcomes == [None]
    await unsafe.run()
    assert unsafe.outcomes == ["presumed_ambiguous"]
    assert unsafe.state == ("outcome_unknown", "outcome_unknown")


@pytest.mark.parametrize(
    ("point", "written"), [("before_conclude_commit", False), ("after_conclude_commit", True)]
)
async def test_a_death_at_a_conclusion_leaves_all_of_it_or_nothing(
    unsafe: World, point: str, written: bool
) -> None:
    await unsafe.submit()

    def die() -> None:
        raise KeyboardInterrupt

    unsafe.on_reach["after_attempt_commit"] = die
    with pytest.raises(KeyboardInterrupt):
        await unsafe.dispatch(1, 1)
    unsafe.clock.seconds += 31
    unsafe.on_reach[point] = die
    with pytest.raises(KeyboardInterrupt):
        await unsafe.reserve()
    assert unsafe.memory.parked(unsafe.effect_id) is written
    assert unsafe.outcomes == (["presumed_ambiguous"] if written else [None])
    await unsafe.run()
    assert unsafe.state == ("outcome_unknown", "outcome_unknown")
    assert unsafe.reached.count("after_conclude_commit") == 1


async def test_what_needs_no_writing_reaches_no_commit(unsafe: World) -> None:
    await unsafe.submit()
    assert (await unsafe.reserve()).next is Next.DISPATCH
    assert unsafe.reached[-2:] == ["before_reserve", "after_reserve"]


async def test_a_conclusion_that_stands_is_not_written_again(unsafe: World) -> None:
    await unsafe.submit()
    unsafe.target.answers.append(lost_answer())
    await unsafe.run()
    before = unsafe.snapshot
    for _ in range(3):
        await unsafe.run()
    assert unsafe.snapshot == before


async def test_an_expired_effect_is_never_sent(unsafe: World) -> None:
    await unsafe.submit(send_before=unsafe.clock.now() + timedelta(seconds=10))
    unsafe.clock.seconds += 10
    await unsafe.run()
    assert unsafe.state == ("failed_final", "expired")
    assert unsafe.target.sent == []


async def test_send_before_binds_the_first_attempt_only(idempotent: World) -> None:
    await idempotent.submit(send_before=idempotent.clock.now() + timedelta(seconds=10))
    idempotent.target.answers.append(not_sent())
    await idempotent.dispatch(1, 1)
    idempotent.clock.seconds += 60
    await idempotent.run()
    assert idempotent.state == ("succeeded", "committed")


async def test_every_next_action_in_the_past_has_something_to_do() -> None:
    """Else it would be requeued for nothing, over and over."""
    for safety, fates in SCRIPTS.values():
        world = World(safety)
        world.target.add_fates(*fates)
        await world.submit()
        for _ in range(40):
            due_at = world.snapshot.intent.next_action_at
            if due_at is None:
                break
            world.clock.seconds += max((due_at - world.clock.now()).total_seconds(), 0.0)
            await world.requeue_due()
            before = world.snapshot
            await world.run(world.snapshot.intent.generation)
            assert world.snapshot.intent.version > before.intent.version


# The process of production ------------------------------------------------------------------------


def worker(ttl_seconds: float = 60.0) -> WorkerProcess:
    """A process that has just beaten."""
    clock = SystemClock()
    process = WorkerProcess("worker-1", clock, ttl_seconds)
    process.beaten(clock.boot_seconds())
    return process


async def test_a_process_that_has_not_beaten_does_not_dispatch() -> None:
    assert not WorkerProcess("worker-1", SystemClock(), 60).may_dispatch()
    process = worker()
    assert process.may_dispatch()
    process.beaten(SystemClock().boot_seconds() - 60)
    assert not process.may_dispatch()


async def test_the_health_of_a_process_ends_before_its_peers_take_it_for_dead() -> None:
    """It counts from the moment before the beat was sent."""
    process = worker(ttl_seconds=3.0)
    process.beaten(SystemClock().boot_seconds() - 2.999)
    await asyncio.sleep(0.002)
    assert not process.may_dispatch()


async def test_a_drain_cuts_rests_and_stops_dispatching() -> None:
    process = worker()
    resting = asyncio.create_task(process.rest(3600))
    await asyncio.sleep(0)
    process.drain()
    await asyncio.wait_for(resting, 20)
    assert not process.may_dispatch()
    await asyncio.wait_for(process.rest(3600), 20)


async def test_a_drain_waits_for_sends_and_says_if_some_are_left() -> None:
    process, go_on = worker(), asyncio.Event()
    send = asyncio.create_task(process.complete(go_on.wait))
    await asyncio.sleep(0)
    assert not await process.sends_ended(0.01)
    go_on.set()
    assert await process.sends_ended(2)
    assert await send is True


async def test_what_a_send_raises_reaches_the_run() -> None:
    async def fail() -> Any:
        raise ValueError("told")

    with pytest.raises(ValueError, match="told"):
        await worker().complete(fail)


def test_a_requeue_names_no_tenant_and_no_argument() -> None:
    """Its only event is the one of a park; what is in it ends up in front of a reader."""
    world = World("idempotent")
    asyncio.run(world.submit())
    snapshot: Snapshot = world.snapshot
    idle = replace(snapshot.intent, generation=IDLE_GENERATIONS_MAX + 1)
    plan = changes.requeue(
        replace(snapshot, intent=idle), expected_generation=idle.generation, actor="worker:w"
    )
    assert str(TENANT.tenant_id) not in str(plan)
    assert "amount" not in str(plan)
