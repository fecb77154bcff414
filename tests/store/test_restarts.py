"""Sessions that a server has ended, and databases that came out of a dump."""

from __future__ import annotations

import asyncio
from uuid import UUID

import psycopg
import pytest

from effect_broker.store.api import PostgresApiStore
from effect_broker.store.pool import make_pool
from effect_broker.store.postgres import PostgresStore
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.runs import PostgresWorkerStore
from effect_contracts.facts import Hold
from postgres import Database
from store.samples import submission


@pytest.fixture
def shared_database(database: Database) -> Database:
    """Own, since its sessions are ended and its identity is changed."""
    return database


async def test_no_caller_pays_for_a_session_that_has_ended(
    shared_database: Database, api_store: PostgresApiStore, tenant_id: UUID
) -> None:
    """As after a restart: every pooled session is gone, and the server is well."""
    effect_id = (await api_store.submit(submission(tenant_id))).intent.effect_id
    url = shared_database.url_for(DatabaseRole.WORKER)
    async with make_pool(url, None, application_name="ended", size_min=5, size_max=5) as pool:
        await pool.wait()
        store = PostgresStore(pool)
        await asyncio.gather(*(store.load(tenant_id, effect_id) for _ in range(20)))
        with psycopg.connect(shared_database.superuser_url, autocommit=True) as superuser:
            superuser.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'ended'"
            )
            while superuser.execute(  # noqa: ASYNC110 - the server tells nobody
                "SELECT 1 FROM pg_stat_activity WHERE application_name = 'ended'"
            ).fetchone():
                await asyncio.sleep(0.01)
        for _ in range(10):
            await store.load(tenant_id, effect_id)


@pytest.mark.parametrize("column", ["database_oid", "relation_oid"])
async def test_what_came_out_of_a_dump_is_noticed_before_anything_is_sent(
    shared_database: Database,
    api_store: PostgresApiStore,
    worker_store: PostgresWorkerStore,
    tenant_id: UUID,
    column: str,
) -> None:
    """The row that remembers the ids comes with the dump; the tables get new ones."""
    effect_id = (await api_store.submit(submission(tenant_id, safety="unsafe"))).intent.effect_id
    assert not await worker_store.watch_database()
    with psycopg.connect(shared_database.superuser_url, autocommit=True) as superuser:
        superuser.execute(f"UPDATE effect_broker.database_identity SET {column} = 4711".encode())
    if column == "relation_oid":
        # Before any worker has looked: the facts of an attempt say it themselves.
        snapshot = await worker_store.load(tenant_id, effect_id)
        assert snapshot.facts.holds == {Hold.DATABASE_RESTORED}
    assert await worker_store.watch_database()
