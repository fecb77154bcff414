"""Transaction 1, the send, and transaction 2: design §4, "dispatch"."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from effect_adapters.simulated import Fate
from effect_broker.clock import SystemClock
from effect_broker.process import WorkerProcess
from effect_broker.protocol.conclusion import Next
from effect_broker.protocol.ports import StoreError, VaultError
from effect_contracts.facts import Hold, Outcome, Verdict
from protocol.world import EPOCH, Trouble, World, lost_answer, not_sent

CLASSES = ["idempotent", "reconcilable", "unsafe", "transactional"]


@pytest.fixture(params=CLASSES)
async def world(request: pytest.FixtureRequest) -> World:
    """A submitted effect of each class."""
    made = World(request.param)
    await made.submit()
    return made


# At most once per attempt row ---------------------------------------------------------------------


async def test_a_step_entered_twice_sends_once_per_attempt_row(world: World) -> None:
    await world.dispatch(1, 1)
    again = await world.dispatch(1, 1)
    assert len(world.target.sent) == 1
    assert again.next is Next.RELOAD
    assert world.outcomes == ["committed"]


async def test_two_executions_at_once_send_once(world: World) -> None:
    other = world.ports_of(world.new_process("worker-2"))
    await asyncio.gather(world.dispatch(1, 1), world.dispatch(1, 1, other))
    assert len(world.target.sent) == 1


async def test_a_zombie_that_enters_after_losing_the_run_sends_nothing(world: World) -> None:
    zombie = world.ports_of(world.new_process("zombie"))
    world.target.answers.append(not_sent())
    await world.dispatch(1, 1)
    world.clock.seconds += 10
    version = world.snapshot.intent.version
    await world.dispatch(version, 2)
    before = world.memory.events(world.effect_id)
    await world.dispatch(1, 1, zombie)  # what it was to do when it was stopped
    await world.dispatch(version, 2, zombie)
    assert len(world.target.sent) == 2
    assert world.memory.events(world.effect_id) == before


async def test_an_ordinal_that_exists_is_never_sent_and_never_runs_transaction_2(
    unsafe: World,
) -> None:
    await unsafe.submit()

    def die() -> None:
        raise KeyboardInterrupt  # as SIGKILL: nothing of the process runs any more

    unsafe.on_reach["after_attempt_commit"] = die
    with pytest.raises(KeyboardInterrupt):
        await unsafe.dispatch(1, 1)
    changes_before, before = unsafe.store.changes, unsafe.snapshot
    other = unsafe.ports_of(unsafe.new_process("worker-2"))
    for version in (1, 2):
        assert (await unsafe.dispatch(version, 1, other)).next is Next.RELOAD
    assert unsafe.target.sent == []
    assert unsafe.snapshot == before  # still open: only its own process may write an outcome
    assert unsafe.store.changes == changes_before + 2  # transaction 1 each, and no other


async def test_the_attempt_stands_before_a_byte_leaves(world: World) -> None:
    seen: list[list[str | None]] = []

    async def look() -> None:
        seen.append(world.outcomes)
        seen.append([world.snapshot.intent.state.value])

    world.target.while_sending = look
    await world.dispatch(1, 1)
    assert seen == [[None], ["dispatching"]]


@pytest.mark.parametrize("trouble", [Trouble.UNAVAILABLE, Trouble.BUSY, Trouble.BUG])
async def test_without_transaction_1_nothing_is_sent(world: World, trouble: Trouble) -> None:
    world.store.troubles.append(trouble)
    with pytest.raises(StoreError):
        await world.dispatch(1, 1)
    assert world.target.sent == []
    assert world.outcomes == []


# The decision is made again -----------------------------------------------------------------------


async def test_a_stale_version_writes_nothing_and_reloads(world: World) -> None:
    await world.evidence(Verdict.UNKNOWN)  # a fact that changes nothing but the version
    before = world.snapshot
    assert (await world.dispatch(1, 1)).next is Next.RELOAD
    assert world.target.sent == []
    assert world.snapshot == before
    calls = await world.run()
    assert calls.names == ["reserve", "dispatch 1"]
    assert len(world.target.sent) == 1


async def test_transaction_1_decides_again_with_the_holds_of_now(world: World) -> None:
    seen = await world.reserve()
    assert seen.next is Next.DISPATCH
    world.memory.holds.add(Hold.PAUSED)
    assert (await world.dispatch(seen.version, 1)).next is Next.RELOAD
    assert world.target.sent == []
    assert world.outcomes == []


async def test_only_the_plan_that_the_store_commits_is_a_permission(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may plan on what it remembers first, and then on what it finds."""
    await world.submit()
    remembered, change = world.snapshot, world.memory.change

    async def planned_twice(
        tenant_id: UUID, effect_id: UUID, plan: Any, paced: Any = None, *, new: bool = False
    ) -> Any:
        plan(remembered)
        return await change(tenant_id, effect_id, plan, paced, new=new)

    monkeypatch.setattr(world.memory, "change", planned_twice)
    world.memory.holds.add(Hold.PAUSED)
    assert (await world.dispatch(1, 1)).next is Next.RELOAD
    assert (world.target.sent, world.outcomes) == ([], [])


async def test_transaction_1_decides_again_on_the_database_clock(world: World) -> None:
    await world.submit("late", send_before=EPOCH + timedelta(seconds=100))
    seen = await world.reserve()
    assert seen.next is Next.DISPATCH
    world.clock.database_ahead_seconds = 100  # the process's own clock has not moved
    assert (await world.dispatch(seen.version, 1)).next is Next.RELOAD
    assert world.target.sent == []
    await world.run()
    assert world.state == ("failed_final", "expired")


async def test_a_retry_is_not_granted_before_its_time_on_the_database_clock(
    idempotent: World,
) -> None:
    await idempotent.submit()
    idempotent.target.answers.append(not_sent())
    await idempotent.dispatch(1, 1)
    version = idempotent.snapshot.intent.version
    assert (await idempotent.dispatch(version, 2)).next is Next.RELOAD
    assert len(idempotent.target.sent) == 1
    idempotent.clock.database_ahead_seconds = 2
    await idempotent.dispatch(version, 2)
    assert len(idempotent.target.sent) == 2


async def test_another_ordinal_than_the_decided_one_is_not_granted(world: World) -> None:
    assert (await world.dispatch(1, 2)).next is Next.RELOAD
    assert world.outcomes == []
    assert world.target.sent == []


async def test_an_open_attempt_within_its_deadline_is_never_closed_by_a_successor(
    world: World,
) -> None:
    def die() -> None:
        raise KeyboardInterrupt

    world.on_reach["after_attempt_commit"] = die
    with pytest.raises(KeyboardInterrupt):
        await world.dispatch(1, 1)
    world.clock.seconds += 30.4  # its margin is half a second more
    other = world.ports_of(world.new_process("worker-2"))
    await world.dispatch(2, 2, other)
    await world.probe(2, other)
    assert world.outcomes == [None]
    assert world.target.sent == []
    assert world.memory.fences(world.effect_id) == ()


async def test_a_successor_presumes_an_attempt_past_its_deadline_and_says_when(
    idempotent: World,
) -> None:
    await idempotent.submit()
    idempotent.target.add_fates(Fate.COMMIT_AND_LOSE)

    def die() -> None:
        raise KeyboardInterrupt

    idempotent.on_reach["after_target_answer"] = die
    with pytest.raises(KeyboardInterrupt):
        await idempotent.dispatch(1, 1)
    await idempotent.run_until_at_rest()
    assert idempotent.outcomes == ["presumed_ambiguous", "committed"]
    first = idempotent.snapshot.facts.attempts[0]
    assert first.recorded_at is None  # it keeps its own deadline
    assert len(idempotent.target.entries) == 1


# The budget ---------------------------------------------------------------------------------------


async def test_the_budget_is_read_before_transaction_1(world: World) -> None:
    """A slow transaction 1 eats the budget: the attempt is not sent, and proves it."""
    world.on_reach["before_attempt_commit"] = lambda: world.let_pass(30)
    await world.dispatch(1, 1)
    assert world.target.sent == []
    assert world.outcomes == ["not_sent"]


async def test_the_last_gate_vetoes_what_a_stopped_process_wakes_up_to(world: World) -> None:
    world.on_reach["after_attempt_commit"] = lambda: world.let_pass(3600)  # SIGSTOP, SIGCONT
    await world.dispatch(1, 1)
    assert world.target.sent == []
    assert world.outcomes == ["not_sent"]


async def test_a_process_that_may_not_dispatch_grants_nothing(world: World) -> None:
    world.process.fit = False
    assert (await world.dispatch(1, 1)).next is Next.END
    assert world.outcomes == []
    assert world.snapshot.intent.next_action_at == EPOCH  # still due, for another one


# The answer to COMMIT is lost ---------------------------------------------------------------------


async def test_a_lost_commit_answer_reads_the_attempt_back_by_id(world: World) -> None:
    world.store.troubles.append(Trouble.LOST_COMMITTED)
    await world.dispatch(1, 1)
    assert len(world.target.sent) == 1
    assert world.outcomes == ["committed"]


async def test_a_commit_that_did_not_happen_sends_nothing(world: World) -> None:
    world.store.troubles.append(Trouble.LOST_UNDONE)
    assert (await world.dispatch(1, 1)).next is Next.RELOAD
    assert world.target.sent == []
    assert world.outcomes == []


async def test_reading_back_goes_on_until_it_is_known(world: World) -> None:
    world.store.troubles.extend([Trouble.LOST_COMMITTED, *[Trouble.UNAVAILABLE] * 3])
    await world.dispatch(1, 1)
    assert len(world.target.sent) == 1


async def test_reading_back_does_not_lengthen_the_budget(world: World) -> None:
    world.store.troubles.extend([Trouble.LOST_COMMITTED, *[Trouble.UNAVAILABLE] * 40])
    await world.dispatch(1, 1)
    assert world.clock.seconds > 30
    assert world.target.sent == []
    assert world.outcomes == ["not_sent"]


async def test_an_attempt_of_another_process_is_not_taken_for_the_lost_one(world: World) -> None:
    other = world.ports_of(world.new_process("worker-2"), world.memory)

    async def overtake() -> None:
        await world.dispatch(1, 1, other)

    world.store.troubles.append(Trouble.LOST_UNDONE)
    world.on_reach["before_attempt_commit"] = lambda: setattr(world.store, "before", overtake)
    await world.dispatch(1, 1)
    assert len(world.target.sent) == 1
    assert [a.executor_id for a in world.snapshot.attempts] == ["worker-2"]


# Transaction 2 ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trouble",
    [Trouble.UNAVAILABLE, Trouble.BUSY, Trouble.LOST_COMMITTED, Trouble.LOST_UNDONE, Trouble.BUG],
)
async def test_transaction_2_is_retried_until_it_stands(unsafe: World, trouble: Trouble) -> None:
    await unsafe.submit()
    unsafe.store.troubles.extend([Trouble.NONE, *[trouble] * 50])
    seen = await unsafe.dispatch(1, 1)
    assert unsafe.state == ("succeeded", "committed")
    assert seen.next is Next.END
    assert len(unsafe.target.sent) == 1
    assert len(unsafe.memory.events(unsafe.effect_id)) == 2  # granted, recorded
    assert max(unsafe.clock.slept, default=0) <= 1.0


async def test_cancelling_the_run_does_not_lose_the_outcome(unsafe: World) -> None:
    """On a real event loop, with the process of production."""
    await unsafe.submit()
    clock = SystemClock()
    process = WorkerProcess("worker-1", clock, 60)
    process.beaten(clock.boot_seconds())
    ports = replace(unsafe.ports, process=process, clock=clock)
    out, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        out.set()
        await go_on.wait()

    unsafe.target.while_sending = wait
    run = asyncio.create_task(unsafe.dispatch(1, 1, ports))
    await out.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert unsafe.outcomes == [None]
    go_on.set()
    assert await process.sends_ended(5)
    assert unsafe.state == ("succeeded", "committed")


async def test_cancelling_the_run_in_transaction_1_leaves_no_attempt_without_its_sender(
    unsafe: World,
) -> None:
    """Its commit may stand although the cancelled task never hears of it."""
    await unsafe.submit()
    clock = SystemClock()
    process = WorkerProcess("worker-1", clock, 60)
    process.beaten(clock.boot_seconds())
    in_commit, committed = asyncio.Event(), asyncio.Event()
    store = unsafe.store

    async def slow_commit() -> None:
        in_commit.set()
        await committed.wait()

    store.after = slow_commit
    ports = replace(unsafe.ports, process=process, clock=clock)
    run = asyncio.create_task(unsafe.dispatch(1, 1, ports))
    await in_commit.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    committed.set()
    assert await process.sends_ended(5)
    assert unsafe.state == ("succeeded", "committed")


async def test_an_outcome_is_recorded_however_the_effect_stands_by_then(unsafe: World) -> None:
    await unsafe.submit()

    async def take_over() -> None:
        unsafe.clock.seconds += 31
        await unsafe.run(1, unsafe.ports_of(unsafe.new_process("worker-2")))
        assert unsafe.state == ("outcome_unknown", "outcome_unknown")
        assert unsafe.memory.parked(unsafe.effect_id)

    unsafe.target.while_sending = take_over
    await unsafe.dispatch(1, 1)
    assert unsafe.state == ("succeeded", "committed")
    assert not unsafe.memory.parked(unsafe.effect_id)


async def test_a_wire_that_cannot_be_opened_burns_no_attempt(world: World) -> None:
    world.break_wire()
    with pytest.raises(VaultError):
        await world.dispatch(1, 1)
    assert world.outcomes == []
    assert world.snapshot.intent.version == 1
    assert world.target.sent == []


# The same request on every attempt ----------------------------------------------------------------


async def test_the_wire_is_sent_as_stored_on_every_attempt(idempotent: World) -> None:
    await idempotent.submit()
    idempotent.target.answers.extend([not_sent(), lost_answer()])
    await idempotent.run_until_at_rest()
    assert [ordinal for ordinal, _, _ in idempotent.target.sent] == [1, 2, 3]
    assert len({(key, wire) for _, key, wire in idempotent.target.sent}) == 1
    assert idempotent.target.sent[0][1] == idempotent.snapshot.intent.downstream_key
    assert idempotent.adapter.renderings == 1


async def test_a_wire_that_is_not_the_bound_one_is_not_sent(world: World) -> None:
    """Even if it can be opened: the digest was fixed when it was rendered."""
    world.replace_wire(b"{}")
    with pytest.raises(VaultError):
        await world.dispatch(1, 1)
    assert world.outcomes == []


async def test_an_effect_without_a_wire_gets_one_before_its_first_attempt(world: World) -> None:
    await world.submit_unrendered()
    assert world.snapshot.wire is None
    calls = await world.run()
    assert calls.names == ["reserve", "dispatch 1"]
    assert world.state == ("succeeded", "committed")
    assert world.adapter.renderings == 2  # one for the fixture's own effect


async def test_of_two_renderings_the_first_is_sent(world: World) -> None:
    await world.submit_unrendered()
    other = world.ports_of(world.new_process("worker-2"))

    async def overtake() -> None:
        await world.reserve(1, other)

    world.store.before = overtake  # when this one has rendered (2), and has not stored it yet
    seen = await world.reserve()
    await world.dispatch(seen.version, 1)
    assert b'"rendering": 3' in world.target.sent[0][2]
    assert world.state == ("succeeded", "committed")


async def test_an_erased_wire_ends_the_run_at_once(world: World) -> None:
    """Nothing can be sent any more; the run must not go round until its steps are used up."""
    world.erase("wire")
    with pytest.raises(VaultError):
        await world.reserve()
    assert world.target.sent == []


# The target's identity ----------------------------------------------------------------------------


async def test_target_changed_sends_nothing(world: World) -> None:
    world.target.answers.append(not_sent())
    await world.dispatch(1, 1)
    assert world.snapshot.intent.target_identity == "simulated:ledger#acct_1"
    sent = len(world.target.sent)
    world.adapter.moved_to = "simulated:elsewhere#acct_2"
    world.clock.seconds += 60
    await world.run()
    assert world.state == ("manual_review", "target_changed")
    assert len(world.target.sent) == sent
    assert world.target.looked == []


async def test_a_target_that_changes_after_the_decision_gets_no_attempt(world: World) -> None:
    world.target.answers.append(not_sent())
    await world.dispatch(1, 1)
    world.clock.seconds += 60
    seen = await world.reserve()
    assert seen.next is Next.DISPATCH
    world.adapter.moved_to = "simulated:elsewhere#acct_2"
    assert (await world.dispatch(seen.version, 2)).next is Next.RELOAD
    assert len(world.target.sent) == 1
    assert world.outcomes == ["not_sent"]


async def test_a_target_that_changes_after_the_decision_is_not_asked(reconcilable: World) -> None:
    await reconcilable.submit()
    reconcilable.target.answers.append(lost_answer())
    seen = await reconcilable.dispatch(1, 1)
    assert seen.next is Next.PROBE
    reconcilable.adapter.moved_to = "simulated:elsewhere#acct_2"
    assert (await reconcilable.probe(seen.version)).next is Next.RELOAD
    assert reconcilable.target.looked == []


# Who may write an outcome -------------------------------------------------------------------------


@pytest.mark.parametrize("late", [Outcome.NOT_SENT, Outcome.COMMITTED, Outcome.REJECTED])
async def test_only_the_sender_writes_an_outcome_and_only_over_presumed_ambiguous(
    unsafe: World, late: Outcome
) -> None:
    await unsafe.submit()

    async def take_over() -> None:
        unsafe.clock.seconds += 31
        await unsafe.run(1, unsafe.ports_of(unsafe.new_process("worker-2")))
        assert unsafe.outcomes == ["presumed_ambiguous"]

    unsafe.target.while_sending = take_over
    unsafe.target.answers.append(replace(lost_answer(), outcome=late, bytes_may_have_left=False))
    await unsafe.dispatch(1, 1)
    assert unsafe.outcomes == [late.value]
    recorded = unsafe.memory.events(unsafe.effect_id)[-1].advance
    assert (recorded.kind, recorded.metadata["late"]) == ("outcome_recorded", True)
    row = unsafe.snapshot.attempts[0]
    before = unsafe.snapshot
    await unsafe.record_again(row.attempt_id, Outcome.AMBIGUOUS)
    assert unsafe.snapshot == before


async def test_a_late_not_sent_lets_an_unsafe_effect_be_sent_for_the_first_time(
    unsafe: World,
) -> None:
    await unsafe.submit()

    async def take_over() -> None:
        unsafe.clock.seconds += 31
        await unsafe.run(1, unsafe.ports_of(unsafe.new_process("worker-2"), unsafe.memory))
        assert unsafe.memory.parked(unsafe.effect_id)

    # Stopped between transaction 1 and the last gate; the veto is the proof.
    def stop() -> None:
        unsafe.store.before = take_over
        unsafe.clock.seconds += 31

    unsafe.on_reach["before_socket_write"] = stop
    await unsafe.dispatch(1, 1)
    assert unsafe.outcomes == ["not_sent"]
    assert not unsafe.memory.parked(unsafe.effect_id)
    await unsafe.run_until_at_rest()
    assert unsafe.state == ("succeeded", "committed")
    assert len(unsafe.target.sent) == 1


async def test_evidence_of_an_open_attempt_settles_and_its_answer_is_a_late_fact(
    reconcilable: World,
) -> None:
    await reconcilable.submit()

    async def tell() -> None:
        await reconcilable.evidence(Verdict.COMMITTED, "sim_1")

    reconcilable.target.while_sending = tell
    await reconcilable.dispatch(1, 1)
    assert reconcilable.state == ("succeeded", "committed")
    receipt = reconcilable.receipt
    assert receipt is not None
    assert receipt["source"] == "operator"
    last = reconcilable.memory.events(reconcilable.effect_id)[-1].advance
    assert (last.kind, last.metadata["contradicts"]) == ("late_fact", False)
