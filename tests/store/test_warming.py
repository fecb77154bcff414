"""A worker's sessions before its first effect: all open, and acquainted with the hot path."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from uuid import UUID

import pytest

from effect_broker import assembly
from effect_broker.protocol.changes import GrantKind
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.pool import Connection, make_pool, session
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.runs import PostgresWorkerStore
from effect_broker.store.warming import warm
from postgres import Database
from store.samples import submission
from store.test_hot_path import Way

SESSIONS = 3


async def prepared(connection: Connection) -> dict[str, int]:
    """How often each statement that this session has prepared was run."""
    query = b"SELECT statement, generic_plans + custom_plans AS runs FROM pg_prepared_statements"
    rows = await (await connection.execute(query, prepare=False)).fetchall()
    names = ("version = 1", "start_first_attempt", "settle_success")
    return {name: row["runs"] for row in rows for name in names if name in row["statement"]}


async def test_every_session_knows_the_statements_of_an_effect_before_the_first_one(
    shared_database: Database,
) -> None:
    url = shared_database.url_for(DatabaseRole.WORKER)
    async with make_pool(url, None, application_name="warm", size_max=SESSIONS) as pool:
        await warm(pool)
        assert pool.get_stats()["pool_size"] == SESSIONS
        async with AsyncExitStack() as stack:
            for _ in range(SESSIONS):
                connection = await stack.enter_async_context(session(pool))
                assert set(await prepared(connection)) == {
                    "version = 1", "start_first_attempt", "settle_success",
                }  # fmt: skip


async def test_the_first_effect_prepares_nothing_that_the_session_has_met(
    shared_database: Database, api_store: PostgresApiStore, tenant_id: UUID
) -> None:
    """A session keeps a plan for each set of types; those that it has met are those of effects."""
    url = shared_database.url_for(DatabaseRole.WORKER)
    async with make_pool(url, None, application_name="warm", size_max=1) as pool:
        await warm(pool)
        effect = submission(tenant_id, "warmed")
        await api_store.submit(effect)
        way = Way(PostgresWorkerStore(pool), effect.tenant_id, effect.effect_id)
        async with session(pool) as connection:
            before = await prepared(connection)
        assert (await way.grant(new=True)).kind is GrantKind.GRANTED
        async with session(pool) as connection:
            after = await prepared(connection)
    assert {name: after[name] - before[name] for name in before} == {
        "version = 1": 1, "start_first_attempt": 1, "settle_success": 0,
    }  # fmt: skip


async def test_a_database_that_cannot_be_met_makes_the_first_effects_slower_and_no_more(
    shared_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    closed = make_pool(shared_database.superuser_url, None, application_name="closed")
    with caplog.at_level(logging.WARNING):
        await assembly._warm(closed)
    (record,) = caplog.records
    assert record.__dict__["event"] == "warming_failed"
