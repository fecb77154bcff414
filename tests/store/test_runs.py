"""What repair asks: who lives, whose runs are lost, which effects are due and driven by nobody."""

from __future__ import annotations

from typing import LiteralString
from uuid import UUID

import pytest
from psycopg import Connection
from psycopg.rows import TupleRow

from effect_broker import hosting
from effect_broker.protocol.ports import Requeue
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.health import database_health
from effect_broker.store.migrate import latest_version
from effect_broker.store.pool import Pool
from effect_broker.store.runs import PostgresWorkerStore
from effect_broker.worker import WorkerStore
from postgres import Database
from store.conformance import World
from store.samples import submission

TTL_SECONDS = 3.0


@pytest.fixture
def shared_database(database: Database) -> Database:
    """Own, since these questions are asked of the whole database."""
    return database


@pytest.fixture
async def effect_id(api_store: PostgresApiStore, tenant_id: UUID) -> UUID:
    """An effect that has just been submitted."""
    return (await api_store.submit(submission(tenant_id))).intent.effect_id


def _run(superuser: Connection[TupleRow], change: LiteralString) -> None:
    superuser.execute(b"UPDATE dbos.workflow_status SET " + change.encode())


def test_the_store_is_all_that_a_worker_needs(worker_store: PostgresWorkerStore) -> None:
    store: WorkerStore = worker_store
    assert store is worker_store


async def test_an_executor_lives_while_it_beats(
    worker_store: PostgresWorkerStore, superuser: Connection[TupleRow], effect_id: UUID
) -> None:
    _run(superuser, "status = 'PENDING', executor_id = 'e1'")
    assert await worker_store.dead_executors() == ["e1"]  # it has never beaten
    await worker_store.beat("e1", TTL_SECONDS)
    assert await worker_store.dead_executors() == []
    assert await worker_store.live_executors() == 1
    superuser.execute("UPDATE effect_broker.workers SET beat_at = beat_at - interval '3.1 seconds'")
    assert await worker_store.dead_executors() == ["e1"]
    assert await worker_store.live_executors() == 0
    await worker_store.beat("e1", TTL_SECONDS)
    assert await worker_store.dead_executors() == []


async def test_an_executor_that_has_said_goodbye_is_dead_at_once(
    worker_store: PostgresWorkerStore, superuser: Connection[TupleRow], effect_id: UUID
) -> None:
    _run(superuser, "status = 'PENDING', executor_id = 'e1'")
    await worker_store.beat("e1", TTL_SECONDS)
    await worker_store.drain_executor("e1")
    assert await worker_store.dead_executors() == []  # it still holds its sends
    assert await worker_store.live_executors() == 0
    await worker_store.stop_executor("e1")
    assert await worker_store.dead_executors() == ["e1"]


@pytest.mark.parametrize("foreign", ["application_name = 'other'", "application_version = 'other'"])
async def test_runs_of_other_applications_are_not_ours(
    worker_store: PostgresWorkerStore,
    superuser: Connection[TupleRow],
    effect_id: UUID,
    foreign: LiteralString,
) -> None:
    _run(superuser, "status = 'PENDING', executor_id = 'e1', started_at_epoch_ms = 0")
    assert await worker_store.pending_runs("e1", 1.0) == [hosting.workflow_id(effect_id, 1)]
    _run(superuser, foreign)
    assert await worker_store.dead_executors() == []
    assert await worker_store.pending_runs("e1", 1.0) == []
    assert [d.effect_id for d in await worker_store.due_effects(10)] == [effect_id]


async def test_a_run_that_has_just_begun_is_no_orphan(
    worker_store: PostgresWorkerStore, superuser: Connection[TupleRow], effect_id: UUID
) -> None:
    _run(
        superuser,
        "status = 'PENDING', executor_id = 'e1',"
        " started_at_epoch_ms = extract(epoch FROM clock_timestamp()) * 1000",
    )
    assert await worker_store.pending_runs("e1", 3.0) == []
    assert await worker_store.pending_runs("e2", 0.0) == []


@pytest.mark.parametrize(
    ("run", "live"),
    [
        ("status = 'ENQUEUED'", True),
        ("status = 'ENQUEUED', queue_partition_key = NULL", False),
        ("status = 'ENQUEUED', queue_name = '_dbos_internal_queue'", False),
        ("status = 'SUCCESS'", False),
        ("status = 'ERROR'", False),
        ("status = 'CANCELLED'", False),
        ("status = 'MAX_RECOVERY_ATTEMPTS_EXCEEDED'", False),
        ("status = 'PENDING', executor_id = 'alive'", True),
        ("status = 'PENDING', executor_id = 'silent'", False),
        ("status = 'PENDING', executor_id = 'stopped'", False),
        ("status = 'PENDING', executor_id = 'never-seen'", False),
        ("status = 'DELAYED', delay_until_epoch_ms = extract(epoch FROM now()) * 1000", True),
        ("status = 'DELAYED', delay_until_epoch_ms = 1", False),
        ("workflow_uuid = 'another'", False),
    ],
)
async def test_a_due_effect_without_a_live_run_is_found(
    worker_store: PostgresWorkerStore,
    superuser: Connection[TupleRow],
    tenant_id: UUID,
    effect_id: UUID,
    run: LiteralString,
    live: bool,
) -> None:
    for executor in ("alive", "silent", "stopped"):
        await worker_store.beat(executor, TTL_SECONDS)
    await worker_store.stop_executor("stopped")
    superuser.execute(
        "UPDATE effect_broker.workers SET beat_at = beat_at - interval '9 seconds'"
        " WHERE executor_id = 'silent'"
    )
    _run(superuser, run)
    due = await worker_store.due_effects(10)
    found = [(d.tenant_id, d.effect_id, d.generation) for d in due]
    assert found == ([] if live else [(tenant_id, effect_id, 1)])


async def test_a_run_that_hangs_far_past_its_time_is_not_live(
    worker_store: PostgresWorkerStore, superuser: Connection[TupleRow], effect_id: UUID
) -> None:
    await worker_store.beat("alive", TTL_SECONDS)
    _run(superuser, "status = 'PENDING', executor_id = 'alive'")
    superuser.execute(
        "UPDATE effect_broker.effect_intents SET next_action_at = now() - interval '61 seconds'"
    )
    assert [d.effect_id for d in await worker_store.due_effects(10)] == [effect_id]


async def test_an_effect_that_is_not_due_is_left_alone(
    worker_store: PostgresWorkerStore, superuser: Connection[TupleRow], effect_id: UUID
) -> None:
    superuser.execute("DELETE FROM dbos.workflow_status")
    superuser.execute(
        "UPDATE effect_broker.effect_intents SET next_action_at = now() + interval '1 minute'"
    )
    assert await worker_store.due_effects(10) == []
    superuser.execute(
        "UPDATE effect_broker.effect_intents SET next_action_at = NULL, parked = true"
    )
    assert await worker_store.due_effects(10) == []


async def test_a_backlog_of_live_runs_hides_no_lost_one(
    worker_store: PostgresWorkerStore,
    api_store: PostgresApiStore,
    superuser: Connection[TupleRow],
    tenant_id: UUID,
) -> None:
    made = [
        (await api_store.submit(submission(tenant_id, f"k{n}"))).intent.effect_id for n in range(5)
    ]
    superuser.execute(
        "DELETE FROM dbos.workflow_status WHERE workflow_uuid = %s",
        [hosting.workflow_id(made[4], 1)],
    )
    assert [d.effect_id for d in await worker_store.due_effects(1)] == [made[4]]


async def test_a_requeued_effect_is_driven_by_its_new_generation(
    worker_store: PostgresWorkerStore,
    superuser: Connection[TupleRow],
    tenant_id: UUID,
    effect_id: UUID,
) -> None:
    superuser.execute("DELETE FROM dbos.workflow_status")
    world = World(worker_store, tenant_id, lambda _: [])
    await world.plan(effect_id, lambda s: (Requeue(1, s.now),))
    assert await worker_store.due_effects(10) == []
    row = superuser.execute("SELECT workflow_uuid, status FROM dbos.workflow_status").fetchone()
    assert row == (hosting.workflow_id(effect_id, 2), "ENQUEUED")


async def test_without_the_engine_nothing_is_taken_up_and_nothing_fails(
    worker_store: PostgresWorkerStore,
    superuser: Connection[TupleRow],
    worker_pool: Pool,
    effect_id: UUID,
) -> None:
    superuser.execute("DELETE FROM dbos.workflow_status")
    assert [d.effect_id for d in await worker_store.due_effects(10)] == [effect_id]
    superuser.execute("DROP SCHEMA dbos CASCADE")
    # A run could not be put anywhere; a generation spent without one would count as a failure.
    assert await worker_store.due_effects(10) == []
    assert await worker_store.dead_executors() == []
    assert await worker_store.pending_runs("e1", 0) == []
    assert await worker_store.queue_registered()  # there is nowhere to register it
    await worker_store.forget_executors()
    assert not (await database_health(worker_pool)).engine_present


async def test_a_missing_queue_is_noticed(
    worker_store: PostgresWorkerStore, superuser: Connection[TupleRow]
) -> None:
    assert not await worker_store.queue_registered()
    # As a worker of an older release does: undivided, so that it has to be registered again.
    superuser.execute("INSERT INTO dbos.queues (name) VALUES (%s)", [hosting.QUEUE_NAME])
    assert not await worker_store.queue_registered()
    superuser.execute("UPDATE dbos.queues SET partition_worker_concurrency = 1")
    assert await worker_store.queue_registered()


async def test_executors_that_are_long_gone_are_forgotten(
    worker_store: PostgresWorkerStore, superuser: Connection[TupleRow], effect_id: UUID
) -> None:
    for executor in ("young", "old", "holds-a-run"):
        await worker_store.beat(executor, TTL_SECONDS)
        await worker_store.describe_executor(executor, "host", 7, "0.1.0")
    superuser.execute(
        "UPDATE effect_broker.workers SET beat_at = now() - interval '2 days'"
        " WHERE executor_id <> 'young'"
    )
    _run(superuser, "status = 'PENDING', executor_id = 'holds-a-run'")
    await worker_store.forget_executors()
    rows = superuser.execute(
        "SELECT executor_id, host, pid, version FROM effect_broker.workers ORDER BY 1"
    ).fetchall()
    assert rows == [("holds-a-run", "host", 7, "0.1.0"), ("young", "host", 7, "0.1.0")]


async def test_health_tells_what_the_database_is_fit_for(
    worker_store: PostgresWorkerStore, api_pool: Pool, superuser: Connection[TupleRow]
) -> None:
    await worker_store.beat("e1", TTL_SECONDS)
    health = await database_health(api_pool)
    assert not health.read_only
    assert health.schema_version == latest_version()
    assert health.engine_present
    assert health.live_workers == 1
    assert health.synchronous_commit == "on"
