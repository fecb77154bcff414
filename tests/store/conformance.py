"""What every `EffectStore` promises, whatever it keeps effects in.

A store joins by a subclass of `StoreConformance` in a test module that defines the fixture
`world`: a store, a tenant in it, and the sample contracts applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Protocol
from uuid import UUID, uuid4

import pytest

from effect_adapters.base import Answer
from effect_broker.protocol.ports import (
    BindTarget,
    BindWire,
    Change,
    EffectMissing,
    EffectStore,
    FenceMutation,
    FreezeContract,
    LoseAttempt,
    Mutation,
    Requeue,
    Sealed,
    Snapshot,
    StaleWrite,
    StorePayload,
    Write,
)
from effect_broker.protocol.submission import ElectionStore, Submission, SubmitStore
from effect_contracts.facts import (
    CODE_OPERATION_GONE,
    EffectState,
    EvidenceSource,
    Hold,
    Outcome,
    Verdict,
)
from effect_contracts.life import LifeEvent
from store.samples import (
    TARGET,
    advance,
    effect_id_of,
    evidence,
    outcome,
    receipt,
    start,
    submission,
)


class Store(EffectStore, SubmitStore, Protocol):
    """What the suite drives."""


class Both:
    """Submits and elects as the API does, and changes as a worker does."""

    def __init__(
        self, api: SubmitStore, worker: EffectStore, electing: ElectionStore | None = None
    ) -> None:
        if electing is not None:
            self.elect_first = electing.elect_first
            self.settle_first = electing.settle_first
        self.submit = api.submit
        self.load = worker.load
        self.change = worker.change
        self.mutate = worker.mutate
        self.payload = worker.payload


@dataclass
class World:
    """A store with one tenant and the sample contracts; `runs` lists the runs that it started."""

    store: Store
    tenant_id: UUID
    runs: Callable[[UUID], list[tuple[UUID, int]]]
    submitted: list[UUID] = field(default_factory=list)

    async def submit(self, key: str = "order-1", safety: str = "idempotent", **more: Any) -> UUID:
        """Submit and return the effect's id."""
        wanted: Submission = submission(self.tenant_id, key, safety, **more)
        await self.store.submit(wanted)
        return wanted.effect_id

    async def write(self, effect_id: UUID, *writes: Write) -> Snapshot:
        """Change by fixed writes; return the snapshot that was planned on."""
        return await self.plan(effect_id, lambda _: writes)

    async def plan(
        self, effect_id: UUID, plan: Callable[[Snapshot], tuple[Write, ...]]
    ) -> Snapshot:
        """Change by writes that need the snapshot; return it."""
        return await self.store.change(
            self.tenant_id, effect_id, lambda snapshot: Change(snapshot, plan(snapshot))
        )

    async def load(self, effect_id: UUID) -> Snapshot:
        """Return the effect."""
        return await self.store.load(self.tenant_id, effect_id)

    async def dispatching(self, effect_id: UUID, ordinal: int = 1) -> UUID:
        """Grant an attempt and return its id."""
        attempt_id = uuid4()

        def plan(snapshot: Snapshot) -> tuple[Write, ...]:
            granted = start(snapshot, ordinal, attempt_id=attempt_id)
            bind = (BindTarget(TARGET),) if ordinal == 1 else ()
            until = granted.deadline_at
            move = advance(LifeEvent.ATTEMPT_STARTED, EffectState.DISPATCHING, until)
            return (granted, *bind, move)

        await self.plan(effect_id, plan)
        return attempt_id

    async def record(
        self, effect_id: UUID, attempt_id: UUID, result: Outcome, **more: Any
    ) -> Snapshot:
        """Record an outcome; the effect is unknown afterwards and acts at once."""
        return await self.plan(
            effect_id,
            lambda s: (
                outcome(attempt_id, s.now, result, **more),
                advance(LifeEvent.OUTCOME_LOST, EffectState.OUTCOME_UNKNOWN, s.now),
            ),
        )


class StoreConformance:
    """The suite."""

    async def test_a_submit_makes_a_prepared_intent_that_is_due(self, world: World) -> None:
        wanted = submission(world.tenant_id)
        submitted = await world.store.submit(wanted)
        assert submitted.created
        intent = submitted.intent
        for name in (
            "effect_id", "tenant_id", "operation_key", "tool", "request_hash", "contract_name",
            "contract_version", "contract_digest", "safety", "downstream_key", "wire_digest",
        ):  # fmt: skip
            assert getattr(intent, name) == getattr(wanted, name)
        assert (intent.state, intent.version, intent.reason) == ("prepared", 1, "submitted")
        assert (intent.generation, intent.progress_generation) == (1, 1)
        assert intent.next_action_at == intent.created_at
        assert intent.target_identity is None
        assert world.runs(intent.effect_id) == [(intent.effect_id, 1)]

    async def test_the_same_operation_key_returns_what_stands(self, world: World) -> None:
        first = await world.store.submit(submission(world.tenant_id))
        await world.dispatching(first.intent.effect_id)
        other = submission(world.tenant_id, request_hash=bytes(32), tool="other")
        second = await world.store.submit(other)
        assert not second.created
        assert second.intent.request_hash == first.intent.request_hash
        assert second.intent.state is EffectState.DISPATCHING
        assert world.runs(first.intent.effect_id) == [(first.intent.effect_id, 1)]

    async def test_a_snapshot_shows_the_whole_effect(self, world: World) -> None:
        effect_id = await world.submit()
        snapshot = await world.load(effect_id)
        assert snapshot.attempts == ()
        assert snapshot.evidence == ()
        assert snapshot.facts.attempts == ()
        assert snapshot.document.name == "idempotent"
        assert snapshot.wire == Sealed("k1", b"sealed wire")
        assert snapshot.operation is None
        assert snapshot.mutation_ordinal is None
        assert snapshot.facts.holds == frozenset()
        assert snapshot.now >= snapshot.intent.created_at
        assert snapshot.facts.jitter_seed == (await world.load(effect_id)).facts.jitter_seed

    async def test_another_tenant_has_no_such_effect(self, world: World) -> None:
        effect_id = await world.submit()
        for tenant_id, wanted in ((uuid4(), effect_id), (world.tenant_id, uuid4())):
            with pytest.raises(EffectMissing):
                await world.store.load(tenant_id, wanted)
            with pytest.raises(EffectMissing):
                await world.store.change(tenant_id, wanted, Change)

    async def test_a_plan_without_writes_changes_nothing(self, world: World) -> None:
        effect_id = await world.submit()
        before = await world.load(effect_id)
        await world.write(effect_id)
        assert (await world.load(effect_id)).intent == before.intent

    async def test_a_plan_that_raises_changes_nothing_and_frees_the_effect(
        self, world: World
    ) -> None:
        effect_id = await world.submit()

        def plan(_: Snapshot) -> Change[None]:
            raise ValueError("a mistake")

        with pytest.raises(ValueError, match="a mistake"):
            await world.store.change(world.tenant_id, effect_id, plan)
        await asyncio.wait_for(world.write(effect_id), 20)

    async def test_an_attempt_is_granted_with_state_version_and_target(self, world: World) -> None:
        effect_id = await world.submit()
        attempt_id = await world.dispatching(effect_id)
        snapshot = await world.load(effect_id)
        (row,) = snapshot.attempts
        assert (row.attempt_id, row.executor_id) == (attempt_id, "executor-1")
        assert row.fact.outcome is None
        assert row.fact.deadline_at - row.fact.started_at == timedelta(seconds=30)
        assert snapshot.facts.attempts == (row.fact,)
        intent = snapshot.intent
        assert (intent.state, intent.version, intent.reason) == ("dispatching", 2, "reason")
        assert intent.target_identity == TARGET
        assert intent.next_action_at == row.fact.deadline_at

    async def test_an_ordinal_is_granted_once(self, world: World) -> None:
        effect_id = await world.submit()
        first = await world.dispatching(effect_id)
        await world.record(effect_id, first, Outcome.AMBIGUOUS)
        with pytest.raises(StaleWrite):
            await world.dispatching(effect_id)
        snapshot = await world.load(effect_id)
        assert [a.attempt_id for a in snapshot.attempts] == [first]
        assert snapshot.intent.version == 3

    async def test_no_attempt_starts_while_another_is_open(self, world: World) -> None:
        effect_id = await world.submit()
        await world.dispatching(effect_id)
        with pytest.raises(StaleWrite):
            await world.dispatching(effect_id, ordinal=2)

    async def test_a_lost_attempt_makes_room_for_the_next_in_one_change(self, world: World) -> None:
        effect_id = await world.submit()
        await world.dispatching(effect_id)

        def plan(snapshot: Snapshot) -> tuple[Write, ...]:
            granted = start(snapshot, 2)
            until = granted.deadline_at
            move = advance(LifeEvent.ATTEMPT_STARTED, EffectState.DISPATCHING, until)
            return (LoseAttempt(1), granted, move)

        await world.plan(effect_id, plan)
        lost, following = (await world.load(effect_id)).facts.attempts
        assert lost.outcome is Outcome.PRESUMED_AMBIGUOUS
        assert lost.recorded_at is None
        assert following.outcome is None

    async def test_the_sender_overwrites_a_presumption_and_nothing_else(self, world: World) -> None:
        effect_id = await world.submit()
        attempt_id = await world.dispatching(effect_id)
        await world.plan(
            effect_id,
            lambda s: (
                LoseAttempt(1),
                advance(LifeEvent.OUTCOME_LOST, EffectState.OUTCOME_UNKNOWN, s.now),
            ),
        )
        digest = bytes(range(32))
        seen = await world.record(
            effect_id, attempt_id, Outcome.COMMITTED, external_id="ch_1",
            retry_after_seconds=1.5, operation=True, result_digest=digest,
        )  # fmt: skip
        (row,) = (await world.load(effect_id)).attempts
        assert row.fact.outcome is Outcome.COMMITTED
        assert (row.fact.recorded_at, row.fact.code) == (seen.now, "code")
        assert (row.fact.external_id, row.fact.retry_after_seconds) == ("ch_1", 1.5)
        assert row.fact.operation
        assert row.result_digest == digest
        with pytest.raises(StaleWrite):
            await world.record(effect_id, attempt_id, Outcome.REJECTED)
        assert (await world.load(effect_id)).attempts == (row,)

    async def test_decisive_evidence_is_shown_and_look_ups_are_counted(self, world: World) -> None:
        effect_id = await world.submit(safety="reconcilable")
        attempt_id = await world.dispatching(effect_id)
        await world.record(effect_id, attempt_id, Outcome.AMBIGUOUS)
        began = []

        def plan(verdict: Verdict, **more: Any) -> Callable[[Snapshot], tuple[Write, ...]]:
            def planned(s: Snapshot) -> tuple[Write, ...]:
                began.append(s.now)
                move = advance(LifeEvent.EVIDENCE_SOUGHT, EffectState.RECONCILING, s.now)
                return (evidence(s, verdict, **more), move)

            return planned

        await world.plan(effect_id, plan(Verdict.UNKNOWN))
        await world.plan(effect_id, plan(Verdict.NOT_COMMITTED))
        await world.plan(effect_id, plan(Verdict.MISMATCH, external_ids=("a", "b")))
        await world.plan(effect_id, plan(Verdict.NOT_COMMITTED, source=EvidenceSource.OPERATOR))
        snapshot = await world.load(effect_id)
        assert snapshot.facts.probes_since_attempt == 3
        assert snapshot.facts.probe_began_at == began[2]
        found = [(e.source.value, e.verdict.value) for e in snapshot.facts.evidence]
        assert found == [
            ("probe", "not_committed"), ("probe", "mismatch"), ("operator", "not_committed"),
        ]  # fmt: skip
        assert snapshot.facts.evidence[1].external_ids == ("a", "b")
        assert tuple(e.fact for e in snapshot.evidence) == snapshot.facts.evidence

    async def test_the_latest_poll_that_found_no_operation_is_shown(self, world: World) -> None:
        effect_id = await world.submit(safety="unsafe")
        attempt_id = await world.dispatching(effect_id)
        await world.record(effect_id, attempt_id, Outcome.AMBIGUOUS)

        def polled(s: Snapshot) -> tuple[Write, ...]:
            move = advance(LifeEvent.EVIDENCE_SOUGHT, EffectState.RECONCILING, s.now)
            return (evidence(s, Verdict.UNKNOWN, code=CODE_OPERATION_GONE), move)

        await world.plan(effect_id, polled)
        await world.plan(effect_id, polled)
        facts = (await world.load(effect_id)).facts
        latest = max(facts.evidence, key=lambda each: each.began_at)
        assert (latest.verdict, latest.code) == (Verdict.UNKNOWN, CODE_OPERATION_GONE)
        assert latest.began_at == facts.probe_began_at

    async def test_a_new_attempt_starts_the_count_of_look_ups_anew(self, world: World) -> None:
        effect_id = await world.submit(safety="reconcilable")
        first = await world.dispatching(effect_id)
        await world.record(effect_id, first, Outcome.AMBIGUOUS)
        await world.plan(
            effect_id,
            lambda s: (
                evidence(s, Verdict.NOT_COMMITTED),
                advance(LifeEvent.EVIDENCE_SOUGHT, EffectState.RECONCILING, s.now),
            ),
        )
        await world.dispatching(effect_id, ordinal=2)
        facts = (await world.load(effect_id)).facts
        assert (facts.probes_since_attempt, facts.probe_began_at) == (0, None)
        assert [e.covers_through for e in facts.evidence] == [1]

    async def test_payloads_are_kept_as_first_stored(self, world: World) -> None:
        effect_id = await world.submit(wire=None, wire_digest=None)
        assert (await world.load(effect_id)).wire is None
        first, second = Sealed("k1", b"first"), Sealed("k2", b"second")
        await world.write(effect_id, StorePayload("wire", "", first), BindWire(bytes(32)))
        await world.write(effect_id, StorePayload("wire", "", second))
        snapshot = await world.load(effect_id)
        assert snapshot.wire == first
        assert snapshot.intent.wire_digest == bytes(32)
        assert snapshot.intent.version == 1  # no fact was added
        read = world.store.payload
        assert await read(world.tenant_id, effect_id, "wire") == first
        arguments = await read(world.tenant_id, effect_id, "arguments")
        assert arguments == Sealed("k1", b"sealed arguments")
        assert await read(world.tenant_id, effect_id, "result", "nothing") is None

    async def test_a_snapshot_shows_the_operation_of_the_latest_attempt(self, world: World) -> None:
        effect_id = await world.submit()
        for ordinal in (1, 2):
            attempt_id = await world.dispatching(effect_id, ordinal)
            reference = Sealed("k1", b"operation %d" % ordinal)

            def plan(
                s: Snapshot, attempt_id: UUID = attempt_id, reference: Sealed = reference
            ) -> tuple[Write, ...]:
                return (
                    outcome(attempt_id, s.now, Outcome.IN_PROGRESS, operation=True),
                    StorePayload("operation", str(attempt_id), reference),
                    advance(LifeEvent.OUTCOME_LOST, EffectState.OUTCOME_UNKNOWN, s.now),
                )

            await world.plan(effect_id, plan)
        assert (await world.load(effect_id)).operation == Sealed("k1", b"operation 2")

    async def test_the_wire_and_the_target_are_bound_once(self, world: World) -> None:
        effect_id = await world.submit()
        await world.dispatching(effect_id)
        for write in (BindTarget("https://elsewhere"), BindWire(bytes(32))):
            with pytest.raises(StaleWrite):
                await world.write(effect_id, write)

    async def test_a_settled_effect_has_its_receipt_and_nothing_to_do(self, world: World) -> None:
        effect_id = await world.submit()
        attempt_id = await world.dispatching(effect_id)
        await world.plan(
            effect_id,
            lambda s: (
                outcome(attempt_id, s.now, Outcome.COMMITTED),
                receipt(),
                advance(LifeEvent.COMMIT_PROVED, EffectState.SUCCEEDED, None),
            ),
        )
        intent = (await world.load(effect_id)).intent
        assert (intent.state, intent.next_action_at) == (EffectState.SUCCEEDED, None)
        with pytest.raises(StaleWrite):
            await world.write(effect_id, receipt())

    async def test_nothing_is_settled_without_a_receipt(self, world: World) -> None:
        effect_id = await world.submit()
        await world.dispatching(effect_id)
        with pytest.raises(StaleWrite):
            await world.write(
                effect_id, advance(LifeEvent.COMMIT_PROVED, EffectState.SUCCEEDED, None)
            )
        assert (await world.load(effect_id)).intent.state is EffectState.DISPATCHING

    async def test_a_late_fact_is_stored_and_the_end_stays(self, world: World) -> None:
        effect_id = await world.submit()
        attempt_id = await world.dispatching(effect_id)
        await world.plan(
            effect_id,
            lambda s: (
                LoseAttempt(1),
                receipt(),
                advance(LifeEvent.FAILURE_PROVED, EffectState.FAILED_FINAL, None),
            ),
        )
        await world.plan(
            effect_id,
            lambda s: (
                outcome(attempt_id, s.now, Outcome.COMMITTED),
                advance(LifeEvent.LATE_FACT, EffectState.FAILED_FINAL, None),
            ),
        )
        snapshot = await world.load(effect_id)
        assert snapshot.intent.state is EffectState.FAILED_FINAL
        assert snapshot.intent.version == 4
        assert snapshot.facts.attempts[0].outcome is Outcome.COMMITTED

    async def test_a_parked_effect_waits_without_a_time(self, world: World) -> None:
        effect_id = await world.submit()
        await world.dispatching(effect_id)
        await world.write(
            effect_id,
            LoseAttempt(1),
            advance(LifeEvent.REVIEW_NEEDED, EffectState.MANUAL_REVIEW, None, parked=True),
        )
        intent = (await world.load(effect_id)).intent
        assert (intent.state, intent.next_action_at) == (EffectState.MANUAL_REVIEW, None)

    async def test_a_freeze_holds_every_effect_of_the_contract(self, world: World) -> None:
        first, second = await world.submit(), await world.submit("order-2")
        other = await world.submit("order-3", "unsafe")
        await world.write(first, FreezeContract("contract_violation"))
        await world.write(first, FreezeContract("again"))
        assert (await world.load(second)).facts.holds == {Hold.FROZEN}
        assert (await world.load(other)).facts.holds == frozenset()

    async def test_a_requeue_starts_the_next_generation_once(self, world: World) -> None:
        effect_id = await world.submit()
        await world.plan(effect_id, lambda s: (Requeue(1, s.now),))
        with pytest.raises(StaleWrite):
            await world.plan(effect_id, lambda s: (Requeue(1, s.now),))
        intent = (await world.load(effect_id)).intent
        assert (intent.generation, intent.progress_generation, intent.version) == (2, 1, 1)
        assert world.runs(effect_id) == [(effect_id, 1), (effect_id, 2)]

    async def test_a_fact_is_progress_of_its_generation(self, world: World) -> None:
        effect_id = await world.submit()
        await world.plan(effect_id, lambda s: (Requeue(1, s.now),))
        await world.dispatching(effect_id)
        assert (await world.load(effect_id)).intent.progress_generation == 2

    async def test_two_changes_at_once_see_each_other(self, world: World) -> None:
        effect_id = await world.submit()
        seen = await asyncio.gather(
            *(
                world.plan(
                    effect_id,
                    lambda s: (advance(LifeEvent.NOTHING_SENT, EffectState.PREPARED, s.now),),
                )
                for _ in range(8)
            )
        )
        assert sorted(s.intent.version for s in seen) == list(range(1, 9))
        assert (await world.load(effect_id)).intent.version == 9

    async def test_of_two_grants_at_once_one_wins(self, world: World) -> None:
        effect_id = await world.submit()

        def plan(snapshot: Snapshot) -> Change[bool]:
            if snapshot.attempts:
                return Change(False)
            granted = start(snapshot)
            move = advance(LifeEvent.ATTEMPT_STARTED, EffectState.DISPATCHING, granted.deadline_at)
            return Change(True, (granted, move))

        won = await asyncio.gather(
            *(world.store.change(world.tenant_id, effect_id, plan) for _ in range(8))
        )
        assert won.count(True) == 1

    async def test_concurrent_submits_of_one_key_make_one_intent(self, world: World) -> None:
        wanted = submission(world.tenant_id)
        submitted = await asyncio.gather(*(world.store.submit(wanted) for _ in range(20)))
        assert [s.created for s in submitted].count(True) == 1
        assert world.runs(wanted.effect_id) == [(wanted.effect_id, 1)]

    async def test_the_same_key_of_another_tenant_is_another_effect(self, world: World) -> None:
        assert effect_id_of(world.tenant_id, "k") != effect_id_of(uuid4(), "k")

    # Transactional mutations -----------------------------------------------------------------

    async def test_a_committed_mutation_leaves_its_key(self, world: World) -> None:
        effect_id = await world.submit(safety="transactional")
        attempt_id = await world.dispatching(effect_id)
        answer = await self._mutate(world, effect_id, attempt_id, Outcome.COMMITTED)
        assert answer.outcome is Outcome.COMMITTED
        snapshot = await world.load(effect_id)
        assert snapshot.mutation_ordinal == 1
        assert snapshot.facts.attempts[0].outcome is Outcome.COMMITTED

    async def test_a_refused_mutation_leaves_no_key(self, world: World) -> None:
        effect_id = await world.submit(safety="transactional")
        attempt_id = await world.dispatching(effect_id)
        await self._mutate(world, effect_id, attempt_id, Outcome.RETRYABLE)
        snapshot = await world.load(effect_id)
        assert snapshot.mutation_ordinal is None
        assert snapshot.facts.attempts[0].outcome is Outcome.RETRYABLE

    async def test_a_fenced_mutation_does_not_run(self, world: World) -> None:
        effect_id = await world.submit(safety="transactional")
        attempt_id = await world.dispatching(effect_id)
        await world.write(effect_id, FenceMutation(1))
        await world.write(effect_id, FenceMutation(1))  # as good as one
        ran: list[int] = []
        answer = await self._mutate(world, effect_id, attempt_id, Outcome.COMMITTED, ran)
        assert (answer.outcome, answer.code) == (Outcome.NOT_SENT, "fenced")
        assert not answer.bytes_may_have_left
        assert ran == []
        assert (await world.load(effect_id)).mutation_ordinal is None

    async def test_the_key_of_a_committed_mutation_cannot_be_fenced(self, world: World) -> None:
        effect_id = await world.submit(safety="transactional")
        attempt_id = await world.dispatching(effect_id)
        await self._mutate(world, effect_id, attempt_id, Outcome.COMMITTED)
        with pytest.raises(StaleWrite):
            await world.write(effect_id, FenceMutation(1))

    async def test_a_second_mutation_of_an_effect_does_not_run(self, world: World) -> None:
        effect_id = await world.submit(safety="transactional")
        first = await world.dispatching(effect_id)
        await self._mutate(world, effect_id, first, Outcome.COMMITTED)
        second = await world.dispatching(effect_id, 2)
        ran: list[int] = []
        answer = await self._mutate(world, effect_id, second, Outcome.COMMITTED, ran, ordinal=2)
        assert answer.outcome is Outcome.NOT_SENT
        assert ran == []
        assert (await world.load(effect_id)).mutation_ordinal == 1

    async def test_a_mutation_whose_plan_writes_nothing_is_undone(self, world: World) -> None:
        effect_id = await world.submit(safety="transactional")
        await world.dispatching(effect_id)

        async def run(_: Any) -> Answer:
            return Answer(Outcome.COMMITTED, "done")

        await world.store.mutate(
            world.tenant_id, effect_id, Mutation(1, run), lambda s, a: Change(None)
        )
        assert (await world.load(effect_id)).mutation_ordinal is None

    @staticmethod
    async def _mutate(
        world: World,
        effect_id: UUID,
        attempt_id: UUID,
        result: Outcome,
        ran: list[int] | None = None,
        ordinal: int = 1,
    ) -> Answer:
        async def run(_: Any) -> Answer:
            if ran is not None:
                ran.append(ordinal)
            return replace(Answer(result, "ran"), bytes_may_have_left=True)

        def plan(snapshot: Snapshot, answer: Answer) -> Change[Answer]:
            record = outcome(
                attempt_id,
                snapshot.now,
                answer.outcome,
                code=answer.code,
                bytes_may_have_left=answer.bytes_may_have_left,
            )
            move = advance(LifeEvent.OUTCOME_LOST, EffectState.OUTCOME_UNKNOWN, snapshot.now)
            return Change(answer, (record, move))

        return await world.store.mutate(world.tenant_id, effect_id, Mutation(ordinal, run), plan)
