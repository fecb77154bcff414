"""Guards of the schema and of sessions, each switched off alone on a real Postgres.

The simulator cannot lose them (`docs/simulation.md`, the last rows of its guards). Each test shows
what the guard refuses, takes the guard away, and shows the harm that it prevents. What a test
drops it drops inside a transaction that is undone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import LiteralString
from uuid import UUID

import psycopg
import pytest
from psycopg import Connection, sql
from psycopg.rows import TupleRow

from effect_broker.protocol.ports import Change, Snapshot, StoreBusy
from effect_broker.store import pool as pools
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.pool import Pool, make_pool
from effect_broker.store.postgres import PostgresStore
from effect_broker.store.roles import DatabaseRole, session_options
from effect_broker.store.runs import PostgresWorkerStore
from effect_contracts.events import Event, EventChainBroken, verify_events
from effect_contracts.facts import EffectState
from effect_contracts.life import LifeEvent
from postgres import Database
from store.conformance import World
from store.samples import advance

TTL_SECONDS = 0.4
# Many times what a session may wait, or may stand still, under that TTL.
FOR_EVER_SECONDS = 2.0

ATTEMPT: LiteralString = (
    "INSERT INTO effect_broker.effect_attempts (attempt_id, tenant_id, effect_id, ordinal,"
    " executor_id, started_at, deadline_at, target_identity) SELECT gen_random_uuid(), tenant_id,"
    " effect_id, 2, 'e', now(), now() + interval '1 s', 't' FROM effect_broker.effect_intents"
    " WHERE effect_id = %(id)s"
)
CLOSED: LiteralString = (
    "UPDATE effect_broker.effect_attempts SET outcome = 'retryable', code = 'busy',"
    " recorded_at = now(), bytes_may_have_left = true"
    " WHERE effect_id = %(id)s AND outcome IS NULL"
)
RESOLVED: LiteralString = (
    "INSERT INTO effect_broker.effect_resolutions SELECT tenant_id, effect_id, 'd-1', evidence_id,"
    " 'not_committed', '{}', sha256('{}'), 'operator:o', now() FROM effect_broker.effect_evidence"
    " WHERE effect_id = %(id)s"
)


@pytest.fixture
async def effect_id(
    worker_store: PostgresWorkerStore, api_store: PostgresApiStore, tenant_id: UUID
) -> UUID:
    """An effect with an open attempt."""
    world = World(api_store, tenant_id, lambda _: [])
    effect_id = await world.submit()
    world.store = worker_store
    await world.dispatching(effect_id)
    return effect_id


@pytest.fixture
def undone(superuser: Connection[TupleRow]) -> Iterator[Connection[TupleRow]]:
    """A transaction of which nothing stays."""
    with superuser.transaction(force_rollback=True):
        yield superuser


def refused(connection: Connection[TupleRow], statement: LiteralString, effect_id: UUID) -> str:
    """Return what refuses a statement, which then has done nothing."""
    with pytest.raises(psycopg.Error) as caught, connection.transaction():
        connection.execute(statement, {"id": effect_id})
    return caught.value.diag.constraint_name or caught.value.sqlstate or ""


def count(connection: Connection[TupleRow], table: str, effect_id: UUID) -> int:
    found = connection.execute(
        sql.SQL("SELECT count(*) FROM effect_broker.{} WHERE effect_id = %s").format(
            sql.Identifier(table)
        ),
        [effect_id],
    ).fetchone()
    assert found is not None
    return int(found[0])


# Constraints --------------------------------------------------------------------------------------


def test_without_one_attempt_per_ordinal_an_attempt_has_two_rows(
    undone: Connection[TupleRow], effect_id: UUID
) -> None:
    for _ in range(2):  # another execution is granted the attempt that one has made already
        undone.execute(CLOSED, {"id": effect_id})
        if count(undone, "effect_attempts", effect_id) == 2:
            break
        undone.execute(ATTEMPT, {"id": effect_id})
    assert refused(undone, ATTEMPT, effect_id) == "one_attempt_per_ordinal"
    undone.execute(
        "ALTER TABLE effect_broker.effect_attempts DROP CONSTRAINT one_attempt_per_ordinal CASCADE"
    )
    undone.execute(ATTEMPT, {"id": effect_id})
    second = undone.execute(
        "SELECT count(*) FROM effect_broker.effect_attempts WHERE effect_id = %s AND ordinal = 2",
        [effect_id],
    ).fetchone()
    assert second == (2,)


def test_without_one_open_attempt_two_may_send_at_once(
    undone: Connection[TupleRow], effect_id: UUID
) -> None:
    assert refused(undone, ATTEMPT, effect_id) == "one_open_attempt"
    undone.execute("DROP INDEX effect_broker.one_open_attempt")
    undone.execute(ATTEMPT, {"id": effect_id})
    open_ = undone.execute(
        "SELECT count(*) FROM effect_broker.effect_attempts"
        " WHERE effect_id = %s AND outcome IS NULL",
        [effect_id],
    ).fetchone()
    assert open_ == (2,)


def test_without_its_triggers_an_event_is_rewritten_and_only_the_chain_tells(
    undone: Connection[TupleRow], effect_id: UUID
) -> None:
    rewritten: LiteralString = (
        "UPDATE effect_broker.effect_events SET reason = 'x' WHERE effect_id = %(id)s"
    )
    assert refused(undone, rewritten, effect_id) == "EB001"
    undone.execute("ALTER TABLE effect_broker.effect_events DISABLE TRIGGER refuse_update")
    undone.execute(rewritten, {"id": effect_id})
    rows = undone.execute(
        "SELECT tenant_id, effect_id, sequence, kind, event, from_state, to_state, reason, actor,"
        " at, metadata, digest FROM effect_broker.effect_events WHERE effect_id = %s"
        " ORDER BY sequence",
        [effect_id],
    ).fetchall()
    with pytest.raises(EventChainBroken):
        verify_events([(Event(*row[:-1]), row[-1]) for row in rows])


def test_without_its_key_a_decision_stands_twice(
    undone: Connection[TupleRow], effect_id: UUID
) -> None:
    undone.execute(
        "INSERT INTO effect_broker.effect_evidence (evidence_id, tenant_id, effect_id, source,"
        " verdict, code, began_at, recorded_at, covers_through, external_ids)"
        " SELECT gen_random_uuid(), tenant_id, effect_id, 'operator', 'not_committed', 'c', now(),"
        " now(), 1, '{}' FROM effect_broker.effect_intents WHERE effect_id = %s",
        [effect_id],
    )
    undone.execute(RESOLVED, {"id": effect_id})
    assert refused(undone, RESOLVED, effect_id) == "one_resolution_per_decision"
    undone.execute(
        "ALTER TABLE effect_broker.effect_resolutions DROP CONSTRAINT one_resolution_per_decision"
    )
    undone.execute(RESOLVED, {"id": effect_id})
    assert count(undone, "effect_resolutions", effect_id) == 2


# Sessions -----------------------------------------------------------------------------------------


def again(snapshot: Snapshot) -> Change[int]:
    """A small change."""
    move = advance(LifeEvent.ATTEMPT_OPEN, EffectState.DISPATCHING, snapshot.now)
    return Change(snapshot.intent.version, (move,))


def without_settings(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Sessions are opened without these settings from now on."""

    def options(role: DatabaseRole | None = None, ttl_seconds: float = TTL_SECONDS) -> str:
        words = [word.strip() for word in session_options(role, ttl_seconds).split("-c ") if word]
        kept = [word for word in words if word.partition("=")[0] not in names]
        assert len(kept) == len(words) - len(names)
        return " ".join(f"-c {word}" for word in kept)

    monkeypatch.setattr(pools, "session_options", options)


def pool_of(shared_database: Database, name: str) -> Pool:
    url = shared_database.url_for(DatabaseRole.WORKER)
    return make_pool(url, None, application_name=name, ttl_seconds=TTL_SECONDS)


@asynccontextmanager
async def holding(pool: Pool, effect_id: UUID) -> AsyncIterator[psycopg.AsyncConnection[object]]:
    """A process that stands still inside a transaction, with the lock of an effect."""
    async with pool, pool.connection() as connection:
        await connection.execute("BEGIN")
        await connection.execute(
            "SELECT 1 FROM effect_broker.effect_intents WHERE effect_id = %s FOR UPDATE",
            [effect_id],
        )
        yield connection


async def test_without_a_lock_timeout_a_successor_waits_for_as_long_as_the_lock_is_held(
    shared_database: Database,
    superuser: Connection[TupleRow],
    tenant_id: UUID,
    effect_id: UUID,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The statement's own timeout is a second lock: it ends the same wait, a little later.
    without_settings(monkeypatch, "lock_timeout", "statement_timeout")
    async with pool_of(shared_database, "patient") as pool:
        with superuser.transaction():
            superuser.execute(
                "SELECT 1 FROM effect_broker.effect_intents WHERE effect_id = %s FOR UPDATE",
                [effect_id],
            )
            waiting = asyncio.create_task(PostgresStore(pool).change(tenant_id, effect_id, again))
            done, _ = await asyncio.wait([waiting], timeout=FOR_EVER_SECONDS)
            assert not done, "with the timeout it is told `StoreBusy` within the TTL"
        await waiting


async def test_without_an_idle_timeout_a_stopped_process_keeps_its_lock(
    shared_database: Database,
    tenant_id: UUID,
    effect_id: UUID,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with pool_of(shared_database, "successor") as others:
        successor = PostgresStore(others)
        without_settings(monkeypatch, "idle_in_transaction_session_timeout")
        async with holding(pool_of(shared_database, "stopped"), effect_id) as stopped:
            await asyncio.sleep(FOR_EVER_SECONDS)
            with pytest.raises(StoreBusy):
                await successor.change(tenant_id, effect_id, again)
            await stopped.execute("COMMIT")  # with the timeout its session has ended long ago
        assert await successor.change(tenant_id, effect_id, again) > 0
