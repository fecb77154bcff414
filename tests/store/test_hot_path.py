"""What nearly every effect costs in statements and round trips, and what its short way may skip.

The numbers are exact on purpose: a statement that is added to each effect is a decision. They are
counted where they leave the process, on a real database, and hold whatever else the machine does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import AsyncConnection, Connection
from psycopg.rows import TupleRow

from effect_adapters.base import Answer
from effect_broker.clock import SystemClock
from effect_broker.protocol import changes
from effect_broker.protocol.changes import Grant, GrantKind
from effect_broker.protocol.conclusion import View
from effect_broker.protocol.ports import Change, Requeue, Sealed, Snapshot
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.catalogue import Catalogue
from effect_broker.store.granted import Grants
from effect_broker.store.runs import PostgresWorkerStore
from effect_contracts.facts import EffectState, Outcome, SafetyClass
from effect_contracts.life import LifeEvent
from store.samples import TARGET, advance, contract, submission

ATTEMPT = {"identity": TARGET, "expected_version": 1, "ordinal": 1, "executor_id": "executor-1"}
COMMITTED = Answer(
    Outcome.COMMITTED, "ok", external_id="ch_1", status=201, response_digest="ab" * 32
)


@dataclass
class Sent:
    """What has left for the database."""

    statements: list[str] = field(default_factory=list)
    round_trips: int = 0

    def of(self) -> tuple[int, int]:
        """Return statements and round trips since the last look."""
        counted = len(self.statements), self.round_trips
        self.statements.clear()
        self.round_trips = 0
        return counted


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """Counts what every asynchronous connection sends."""
    seen = Sent()
    executed, pipelined = AsyncConnection.execute, AsyncConnection.pipeline
    inside: set[int] = set()

    async def execute(self: AsyncConnection[Any], query: Any, *rest: Any, **named: Any) -> Any:
        seen.statements.append(str(query))
        seen.round_trips += id(self) not in inside
        return await executed(self, query, *rest, **named)

    @asynccontextmanager
    async def pipeline(self: AsyncConnection[Any]) -> AsyncIterator[Any]:
        inside.add(id(self))
        try:
            async with pipelined(self) as made:
                yield made
        finally:
            inside.discard(id(self))
            seen.round_trips += 1

    monkeypatch.setattr(AsyncConnection, "execute", execute)
    monkeypatch.setattr(AsyncConnection, "pipeline", pipeline)
    return seen


@dataclass
class Way:
    """An effect on its way through one worker's store."""

    store: PostgresWorkerStore
    tenant_id: UUID
    effect_id: UUID
    attempt_id: UUID = field(default_factory=uuid4)
    planned: int = 0

    async def grant(self, new: bool = False, **changed: Any) -> Grant:
        """Transaction 1."""
        asked: dict[str, Any] = {**ATTEMPT, "attempt_id": self.attempt_id, **changed}
        plan = partial(changes.grant_attempt, **asked)
        return await self.store.change(self.tenant_id, self.effect_id, plan, new=new)

    async def record(self, answer: Answer = COMMITTED, store: Any = None) -> View:
        """Transaction 2."""
        receipt_id = uuid4()

        def plan(snapshot: Snapshot) -> Change[View]:
            self.planned += 1
            return changes.record_outcome(
                snapshot,
                attempt_id=self.attempt_id,
                answer=answer,
                result=Sealed("k1", b"result") if answer.outcome is Outcome.COMMITTED else None,
                result_digest=b"\x01" * 32 if answer.outcome is Outcome.COMMITTED else None,
                operation=None,
                receipt_id=receipt_id,
                executor_id="executor-1",
            )

        return await (store or self.store).change(self.tenant_id, self.effect_id, plan)

    async def state(self) -> EffectState:
        return (await self.store.load(self.tenant_id, self.effect_id)).intent.state


@pytest.fixture
def way(
    worker_store: PostgresWorkerStore, api_store: PostgresApiStore, tenant_id: UUID
) -> Callable[..., Any]:
    """Makes effects that have just been submitted."""

    async def submitted(key: str = "order-1") -> Way:
        made = await api_store.submit(submission(tenant_id, key))
        return Way(worker_store, tenant_id, made.intent.effect_id)

    return submitted


# What it costs ------------------------------------------------------------------------------------


async def test_a_submit_and_its_replay_are_one_statement_each(
    api_store: PostgresApiStore, tenant_id: UUID, sent: Sent
) -> None:
    first = await api_store.submit(submission(tenant_id))
    assert (sent.of(), first.created) == ((1, 1), True)
    again = await api_store.submit(submission(tenant_id))
    assert (sent.of(), again.created) == ((1, 1), False)
    # All that an answer shows is there without a second look.
    assert first.standing is not None
    assert again.standing is not None
    assert replace(again.standing, now=first.standing.now) == first.standing


@pytest.mark.parametrize(("new", "costs"), [(True, (2, 2)), (False, (7, 3))])
async def test_a_first_grant_takes_two_statements_any_other_seven_and_a_success_one(
    way: Callable[..., Any], sent: Sent, new: bool, costs: tuple[int, int]
) -> None:
    await (await way("warm")).grant()  # reads the contract, once per process
    effect = await way()
    sent.of()
    assert (await effect.grant(new)).kind is GrantKind.GRANTED
    assert sent.of() == costs
    await effect.record()
    assert sent.of() == (1, 1)
    assert await effect.state() is EffectState.SUCCEEDED


async def test_an_outcome_that_is_no_plain_success_is_planned_under_the_lock(
    way: Callable[..., Any], sent: Sent
) -> None:
    effect = await way()
    await effect.grant()
    sent.of()
    await effect.record(Answer(Outcome.AMBIGUOUS, "timeout"))
    assert "effect_broker.lock_effect" in "".join(sent.statements)
    assert await effect.state() is EffectState.OUTCOME_UNKNOWN


# What it may not change ---------------------------------------------------------------------------

_ROWS = {
    "intents": "SELECT state, reason, version, generation, progress_generation, latest_ordinal,"
    " next_action_at IS NULL, parked, target_identity, octet_length(receipt_digest), alert,"
    " key_expires_at, attempt_open_until, sender_lost FROM effect_broker.effect_intents",
    "attempts": "SELECT ordinal, executor_id, deadline_at - started_at, outcome, code,"
    " recorded_at >= started_at, external_id, operation, bytes_may_have_left, response_digest,"
    " status, result_digest, target_identity FROM effect_broker.effect_attempts",
    "events": "SELECT sequence, kind, event, from_state, to_state, reason, actor,"
    " metadata::jsonb - '{attempt_id,receipt_digest,fact_digest,request_hash}'::text[]"
    " FROM effect_broker.effect_events",
    "payloads": "SELECT kind, key_id, ciphertext FROM effect_broker.effect_payloads",
    "receipts": "SELECT count(*) FROM effect_broker.effect_receipts",
}


def _rows(superuser: Connection[TupleRow], effect_id: UUID) -> dict[str, list[TupleRow]]:
    return {
        name: superuser.execute(
            f"{query} WHERE effect_id = %s ORDER BY 1".encode(), [effect_id]
        ).fetchall()
        for name, query in _ROWS.items()
    }


async def test_the_short_way_writes_what_the_long_way_writes(
    way: Callable[..., Any], worker_pool: Any, superuser: Connection[TupleRow]
) -> None:
    short, long = await way("short"), await way("long")
    await short.grant(new=True)
    await long.grant()
    await short.record()
    # Another process of the same executor: it remembers no grant.
    await long.record(store=PostgresWorkerStore(worker_pool))
    assert (short.planned, long.planned) == (1, 1)
    assert _rows(superuser, short.effect_id) == _rows(superuser, long.effect_id)


@pytest.mark.parametrize("safety", list(SafetyClass))
async def test_what_a_grant_is_remembered_by_is_what_the_next_reader_sees(
    worker_store: PostgresWorkerStore,
    api_store: PostgresApiStore,
    admin_pool: Any,
    worker_pool: Any,
    tenant_id: UUID,
    safety: SafetyClass,
) -> None:
    """Of every class, of a first attempt and of one that follows on another."""
    again = contract(safety, "hot-path", retry={"backoff_initial_seconds": 0.000001})
    await Catalogue(admin_pool).apply(again)
    effect = submission(tenant_id, safety=safety, contract_digest=again.digest())
    made = await api_store.submit(replace(effect, contract_version=again.version))
    way = Way(worker_store, tenant_id, made.intent.effect_id)
    for ordinal in (1, 2):
        version = (await worker_store.load(tenant_id, way.effect_id)).intent.version
        way.attempt_id = uuid4()
        assert (await way.grant(expected_version=version, ordinal=ordinal)).kind is (
            GrantKind.GRANTED
        )
        left = worker_store._grants.take(tenant_id, way.effect_id)
        seen = await worker_store.load(tenant_id, way.effect_id)
        assert left is not None
        assert left.now <= seen.now
        # Neither the moment nor the request; urgency is made anew by whoever writes.
        assert replace(left, now=seen.now, wire=seen.wire, urgency=seen.urgency) == seen
        answer = Answer(Outcome.RETRYABLE, "busy", retry_after_seconds=0.0)
        other = PostgresWorkerStore(worker_pool)
        await way.record(answer, store=other)
        await other.change(tenant_id, way.effect_id, next_generation)


def next_generation(seen: Snapshot) -> Change[None]:
    """A run was lost, and another one goes on."""
    return Change(None, (Requeue(seen.intent.generation, seen.now),))


async def test_a_success_is_planned_anew_if_anything_has_happened_since_the_grant(
    way: Callable[..., Any], worker_pool: Any, sent: Sent
) -> None:
    effect = await way()
    await effect.grant()
    moved = advance(LifeEvent.ATTEMPT_OPEN, EffectState.DISPATCHING, None)
    other = PostgresWorkerStore(worker_pool)
    await other.change(effect.tenant_id, effect.effect_id, lambda seen: still_open(seen, moved))
    sent.of()
    await effect.record()
    assert effect.planned == 2
    assert sent.of()[0] > 1
    assert await effect.state() is EffectState.SUCCEEDED


def still_open(seen: Snapshot, moved: Any) -> Change[None]:
    """Somebody has looked at the open attempt and written that it waits."""
    return Change(None, (replace(moved, next_action_at=seen.intent.next_action_at),))


@pytest.mark.parametrize("seconds", [-3600.0, 3600.0], ids=["long ago", "in the future"])
async def test_a_moment_that_is_not_the_databases_settles_nothing(
    way: Callable[..., Any], sent: Sent, seconds: float
) -> None:
    """The process was stopped for long, or its clock is not what it should be."""
    effect = await way()
    await effect.grant()
    grants = effect.store._grants
    (left,) = grants._left.values()
    moved = replace(left.snapshot, now=left.snapshot.now + timedelta(seconds=seconds))
    grants._left[effect.effect_id] = replace(left, snapshot=moved)
    sent.of()
    await effect.record()
    assert effect.planned == 2
    snapshot = await effect.store.load(effect.tenant_id, effect.effect_id)
    assert snapshot.intent.state is EffectState.SUCCEEDED
    recorded = snapshot.attempts[0].fact.recorded_at
    assert recorded is not None
    assert abs((snapshot.now - recorded).total_seconds()) < 60


@pytest.mark.parametrize(
    ("granted", "generation", "guard"),
    [(True, 1, "start_attempt"), (False, 2, "update_intent")],
    ids=["the attempt is another's", "the row has moved"],
)
async def test_the_server_refuses_a_grant_on_what_is_no_longer_so(
    way: Callable[..., Any],
    superuser: Connection[TupleRow],
    granted: bool,
    generation: int,
    guard: str,
) -> None:
    effect = await way()
    if granted:
        await effect.grant()
    before = _rows(superuser, effect.effect_id)
    with pytest.raises(psycopg.Error, match=guard) as refused:
        superuser.execute(
            b"SELECT effect_broker.start_attempt(%s, %s, 1, %s, gen_random_uuid(), 1, 'other',"
            b" now(), now() + interval '1 s', 't', 't', 'k', 'attempt_started', 'prepared',"
            b" 'dispatching', 'r', 'a', '{}', now(), NULL, NULL, false)",
            [effect.tenant_id, effect.effect_id, generation],
        )
    assert refused.value.sqlstate == "EB001"
    assert _rows(superuser, effect.effect_id) == before


async def test_a_grant_that_is_remembered_no_more_only_costs_a_look(
    way: Callable[..., Any], worker_store: PostgresWorkerStore, sent: Sent
) -> None:
    worker_store._grants = Grants(SystemClock().boot_seconds, grants_max=1)
    first, second = await way("first"), await way("second")
    await first.grant()
    await second.grant()
    sent.of()
    await second.record()
    assert sent.of() == (1, 1)
    await first.record()
    assert sent.of()[0] > 1
    assert await first.state() is EffectState.SUCCEEDED
