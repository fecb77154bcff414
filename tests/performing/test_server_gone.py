"""What stands between an election and its confirm when the database's server, or the engine, goes.

On a server of its own that keeps its promises as it ships: fsync is on, and commits are not waited
for by default, so that it is for the broker's own sessions to ask for that.
"""

from __future__ import annotations

import asyncio
from uuid import uuid4

import psycopg
import pytest

from effect_broker import ElectionLost, NotYet, Performed, Unknown
from effect_broker.durable import migrate_dbos
from effect_broker.postgres.embedded import EmbeddedPostgres
from effect_broker.store.migrate import migrate
from performing.conftest import LEASE, Desk, desk_in
from postgres import Database

CHARGE = {"amount": 5}


async def own_desk(server: EmbeddedPostgres) -> Desk:
    with psycopg.connect(server.url, autocommit=True) as superuser:
        for setting in ("synchronous_commit = off", "wal_writer_delay = '10s'"):
            superuser.execute(f"ALTER SYSTEM SET {setting}".encode())
        superuser.execute("SELECT pg_reload_conf()")
    made = Database("postgres", server.url)
    await asyncio.to_thread(migrate, made.superuser_url, migrate_dbos=migrate_dbos)
    return await desk_in(made)


async def test_an_election_outlives_its_server_and_its_engine(
    own_postgres: EmbeddedPostgres,
) -> None:
    desk = await own_desk(own_postgres)
    async with desk.broker() as broker:
        key = f"order:{uuid4()}"
        async with broker.perform("shop.caller-unsafe", CHARGE, operation_key=key) as effect:
            assert effect.elected
            await asyncio.to_thread(own_postgres.restart, "immediate")
            async with broker.perform("shop.caller-unsafe", CHARGE, operation_key=key) as second:
                assert isinstance(second.outcome, NotYet)
            desk.rows("DROP SCHEMA dbos CASCADE")
            await effect.confirm("done")
        assert effect.outcome == Performed(effect.effect_id, "done")
        async with broker.perform("shop.caller-unsafe", CHARGE, operation_key=key) as later:
            assert not later.elected
        assert isinstance(later.outcome, Performed)
        assert later.outcome.replayed
        # A lease that runs out without an engine: nobody performs it again, and a late word counts.
        lost = broker.perform("shop.brief-unsafe", CHARGE, operation_key=f"lost:{key}")
        async with lost:
            await asyncio.sleep(LEASE + 0.2)
            async with broker.perform(
                "shop.brief-unsafe", CHARGE, operation_key=f"lost:{key}"
            ) as second:
                assert isinstance(second.outcome, Unknown)
            with pytest.raises(ElectionLost) as late:
                await lost.confirm("done")
        assert late.value.state == "succeeded"
    assert await desk.violations() == []
