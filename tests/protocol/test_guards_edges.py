"""The guards from both sides: an older view and a newer one, one row too early and one too late."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from effect_adapters.base import Finding
from effect_broker.protocol import changes
from effect_broker.protocol.changes import (
    IDLE_GENERATIONS_FREE,
    IDLE_GENERATIONS_MAX,
    IDLE_WAIT_CAP_SECONDS,
    Grant,
    GrantKind,
)
from effect_broker.protocol.conclusion import Next
from effect_broker.protocol.ports import Advance, Change, FenceMutation, Requeue, Snapshot
from effect_contracts.facts import EffectState, Verdict
from protocol.world import Trouble, World, lost_answer, not_sent

IDENTITY = "simulated:ledger#acct_1"
OLDER_AND_NEWER = pytest.mark.parametrize("step", [-1, 1])
ACTOR = "worker:worker-1"


def written(change: Change[Any]) -> Advance:
    """The one advance among the writes."""
    (advance,) = [write for write in change.writes if isinstance(write, Advance)]
    return advance


def conclude(snapshot: Snapshot, version: int) -> Change[Any]:
    return changes.conclude(
        snapshot, identity=IDENTITY, expected_version=version, receipt_id=uuid4(), actor=ACTOR
    )


def grant(snapshot: Snapshot, version: int, ordinal: int = 1) -> Change[Grant]:
    return changes.grant_attempt(
        snapshot,
        identity=IDENTITY,
        expected_version=version,
        ordinal=ordinal,
        attempt_id=uuid4(),
        executor_id="worker-1",
    )


def probe(snapshot: Snapshot, version: int, identity: str = IDENTITY) -> Change[Any]:
    return changes.begin_probe(
        snapshot,
        identity=identity,
        expected_version=version,
        timeout_seconds=7.0,
        executor_id="worker-1",
    )


def fence(snapshot: Snapshot, version: int) -> Change[Any]:
    return changes.settle_transaction(
        snapshot,
        identity=IDENTITY,
        expected_version=version,
        evidence_id=uuid4(),
        receipt_id=uuid4(),
        actor=ACTOR,
    )


async def in_doubt(world: World) -> Snapshot:
    await world.submit()
    world.target.answers.append(lost_answer())
    await world.dispatch(1, 1)
    return world.snapshot


@OLDER_AND_NEWER
async def test_another_version_than_the_one_decided_on_writes_nothing(
    idempotent: World, reconcilable: World, step: int
) -> None:
    await idempotent.submit()
    fresh = idempotent.snapshot
    assert grant(fresh, fresh.intent.version + step) == Change(Grant(GrantKind.STALE))
    doubtful = await in_doubt(reconcilable)
    for change in (conclude, probe):
        refused = change(doubtful, doubtful.intent.version + step)
        assert refused.writes == ()
        seen = getattr(refused.result, "view", refused.result)
        assert seen.next is Next.RELOAD


@OLDER_AND_NEWER
async def test_a_fence_of_another_version_is_not_written(transactional: World, step: int) -> None:
    await transactional.submit()
    transactional.store.troubles.extend([Trouble.NONE, Trouble.LOST_UNDONE])
    await transactional.dispatch(1, 1)
    transactional.let_pass(31)
    snapshot = transactional.snapshot
    assert snapshot.attempts
    refused = fence(snapshot, snapshot.intent.version + step)
    assert (refused.writes, refused.result.next) == ((), Next.RELOAD)
    assert FenceMutation(1) in fence(snapshot, snapshot.intent.version).writes


@pytest.mark.parametrize("ordinal", [0, 2, 3])
async def test_only_the_next_attempt_is_granted(idempotent: World, ordinal: int) -> None:
    await idempotent.submit()
    snapshot = idempotent.snapshot
    refused = grant(snapshot, snapshot.intent.version, ordinal)
    assert refused == Change(Grant(GrantKind.STALE))


async def test_an_attempt_begins_now_ends_by_its_deadline_and_is_no_park(idempotent: World) -> None:
    await idempotent.submit()
    snapshot = idempotent.snapshot
    advance = written(grant(snapshot, snapshot.intent.version))
    assert (advance.kind, advance.parked) == ("attempt_started", False)
    assert advance.next_action_at == snapshot.now + timedelta(seconds=30.5)
    assert advance.metadata["wire_digest"] is not None


@pytest.mark.parametrize("sought", [UUID(int=1), UUID(int=3)])
async def test_a_grant_is_confirmed_by_its_own_id_alone(idempotent: World, sought: UUID) -> None:
    snapshot = await in_doubt(idempotent)
    row = replace(snapshot.attempts[0], attempt_id=UUID(int=2))
    there = replace(snapshot, attempts=(row,))
    assert changes.confirm_grant(there, attempt_id=UUID(int=2)).result is True
    assert changes.confirm_grant(there, attempt_id=sought).result is False
    assert changes.confirm_grant(replace(snapshot, attempts=()), attempt_id=sought).result is False


async def test_a_look_up_covers_every_attempt_so_far(reconcilable: World) -> None:
    await reconcilable.submit()
    for ordinal, answer in ((1, not_sent()), (2, not_sent()), (3, lost_answer())):
        reconcilable.let_pass(1000)
        reconcilable.target.answers.append(answer)
        seen = await reconcilable.reserve()
        assert seen.next is Next.DISPATCH
        await reconcilable.dispatch(seen.version, ordinal)
    snapshot = reconcilable.snapshot
    begun = probe(snapshot, snapshot.intent.version)
    assert begun.result.covers_through == 3
    assert begun.result.began_at == snapshot.now
    assert begun.result.view.version == snapshot.intent.version + 1
    advance = written(begun)
    assert advance.metadata == {"covers_through": 3}
    assert advance.next_action_at == snapshot.now + timedelta(seconds=7)
    assert not advance.parked


@pytest.mark.parametrize("identity", ["a:before#it", "z:after#it"])
async def test_a_count_asks_no_other_target(reconcilable: World, identity: str) -> None:
    snapshot = await counted(reconcilable)
    given_up = probe(snapshot, snapshot.intent.version, identity)
    assert given_up.result.began_at is None
    advance = written(given_up)
    assert (advance.kind, advance.next_action_at) == ("count_given_up", None)
    assert advance.metadata["why"] == "target_changed"
    assert not advance.parked
    begun = probe(snapshot, snapshot.intent.version)
    assert begun.result.began_at == snapshot.now
    assert begun.result.covers_through == len(snapshot.attempts) == 2
    assert begun.result.view.version == snapshot.intent.version + 1
    assert written(begun).metadata == {"covers_through": 2}


async def counted(world: World) -> Snapshot:
    """A settled effect of which two attempts may have been sent, due to be counted."""
    await world.submit()
    world.target.answers.append(lost_answer())
    world.target.findings.extend([Finding(Verdict.NOT_COMMITTED, "absent")] * 40)
    while len(world.target.sent) < 2:
        await next_step(world)
    world.target.findings.clear()
    due_at = world.snapshot.intent.next_action_at
    assert due_at is not None
    world.let_pass((due_at - world.clock.now()).total_seconds())
    return world.snapshot


async def next_step(world: World) -> None:
    """Wait for the next action and run it."""
    due_at = world.snapshot.intent.next_action_at
    assert due_at is not None
    world.let_pass(max((due_at - world.clock.now()).total_seconds(), 0.0))
    await world.requeue_due()
    await world.run(world.snapshot.intent.generation)


def idle(snapshot: Snapshot, generations: int) -> Snapshot:
    """The effect, due, after so many runs without a fact."""
    intent = replace(
        snapshot.intent,
        generation=snapshot.intent.progress_generation + generations,
        next_action_at=snapshot.now,
    )
    return replace(snapshot, intent=intent)


def requeued(snapshot: Snapshot, step: int = 0) -> Change[bool]:
    generation = snapshot.intent.generation + step
    return changes.requeue(snapshot, expected_generation=generation, actor=ACTOR)


async def test_the_first_runs_come_at_once_and_later_ones_ever_later(idempotent: World) -> None:
    await idempotent.submit()
    snapshot = idempotent.snapshot
    waits = []
    for generations in range(IDLE_GENERATIONS_MAX):
        change = requeued(idle(snapshot, generations))
        assert change.result is True
        (write,) = change.writes
        assert isinstance(write, Requeue)
        waits.append((write.next_action_at - snapshot.now).total_seconds())
    free, grown = waits[:IDLE_GENERATIONS_FREE], waits[IDLE_GENERATIONS_FREE:]
    assert free == [0.0] * IDLE_GENERATIONS_FREE
    assert grown == [min(2.0**step, IDLE_WAIT_CAP_SECONDS) for step in range(len(grown))]
    assert (IDLE_GENERATIONS_FREE, IDLE_GENERATIONS_MAX, IDLE_WAIT_CAP_SECONDS) == (3, 20, 900.0)


@pytest.mark.parametrize("more", [0, 1, 5])
async def test_runs_that_get_nowhere_end_at_a_person(idempotent: World, more: int) -> None:
    await idempotent.submit()
    stopped = requeued(idle(idempotent.snapshot, IDLE_GENERATIONS_MAX + more))
    assert stopped.result is False
    advance = written(stopped)
    assert (advance.kind, advance.parked, advance.next_action_at) == ("parked", True, None)
    assert advance.state is EffectState.MANUAL_REVIEW


async def test_only_what_is_due_of_the_known_generation_gets_a_run(idempotent: World) -> None:
    await idempotent.submit()
    due = idle(idempotent.snapshot, 0)
    for step in (-1, 1):
        assert requeued(due, step) == Change(False)
    for seconds, starts in ((-5, True), (0, True), (5, False)):
        at = due.now + timedelta(seconds=seconds)
        moved = replace(due, intent=replace(due.intent, next_action_at=at))
        assert requeued(moved).result is starts
    at_rest = replace(due, intent=replace(due.intent, next_action_at=None))
    assert requeued(at_rest) == Change(False)
