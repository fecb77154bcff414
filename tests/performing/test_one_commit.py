"""An election is one commit, and so is what is told of it: counted in the database itself."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

from effect_broker.direct import PostgresTransport, ring_for, settings_for
from effect_broker.sdk.errors import Body
from performing.conftest import Desk

TABLES = """
SELECT schemaname, tablename FROM pg_catalog.pg_tables
WHERE schemaname IN ('effect_broker', 'dbos') ORDER BY schemaname, tablename
"""
# No row is of the future, and none of these tests lasts until the counter is half way round.
WRITTEN = "SELECT xmin::text::bigint FROM {} WHERE xmin::text::bigint >= %s"


@pytest.fixture
async def transports(desk: Desk) -> AsyncIterator[tuple[PostgresTransport, PostgresTransport]]:
    """Two processes of the API, as far as what they remember goes."""
    settings = settings_for(desk.url())
    one, other = (
        PostgresTransport(settings, ring_for(settings, desk.ring), desk.api_key, answer_seconds=30)
        for _ in range(2)
    )
    yield one, other
    await one.close()
    await other.close()


def next_transaction(desk: Desk) -> int:
    """The number that no transaction has had yet."""
    (row,) = desk.rows("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS xid")
    return int(row["xid"]) % 2**32


def written(desk: Desk, since: int) -> dict[str, set[int]]:
    """The transactions that have written since then, by the table of what they have left."""
    found = {}
    with psycopg.connect(desk.database.superuser_url, autocommit=True) as superuser:
        for schema, table in superuser.execute(TABLES).fetchall():
            query = sql.SQL(WRITTEN).format(sql.Identifier(schema, table))
            numbers = {row[0] for row in superuser.execute(query, [since])}
            if numbers:
                found[f"{schema}.{table}"] = numbers
    return found


def one_commit(desk: Desk, since: int, *tables: str) -> None:
    """All that was written since then, by one transaction, these tables and the log among it."""
    found = written(desk, since)
    assert len(set().union(*found.values())) == 1, found
    assert set(found) >= {f"effect_broker.{table}" for table in ("effect_events", *tables)}, found


def wish(key: str, tool: str) -> dict[str, Any]:
    return {
        "operation_key": key,
        "tool": tool,
        "arguments": {"amount": 5},
        "election": secrets.token_urlsafe(32),
    }


async def tell(
    transport: PostgresTransport, elected: Body, election: str, outcome: str, **more: Any
) -> Body:
    effect_id = UUID(elected["effect"]["effect_id"])
    body = {"election": election, "outcome": outcome, "code": "told", **more}
    return await transport.attempt(
        effect_id, elected["ordinal"], "confirm", json.dumps(body).encode()
    )


@pytest.mark.parametrize("remembered", [True, False], ids=["same_process", "another_process"])
@pytest.mark.parametrize("safety", ["idempotent", "reconcilable", "unsafe"])
async def test_an_election_and_its_confirm_are_one_commit_each(
    desk: Desk,
    transports: tuple[PostgresTransport, PostgresTransport],
    safety: str,
    remembered: bool,
) -> None:
    elects, confirms = transports[0], transports[0 if remembered else 1]
    for transport in transports:
        await transport.home()  # what a process reads once in its life is no part of this
    asked = wish(f"order:{uuid4()}", f"shop.caller-{safety}")
    since = next_transaction(desk)
    elected = await elects.elect(json.dumps(asked).encode())
    assert elected["elected"] is True
    one_commit(desk, since, "effect_intents", "effect_attempts")
    since = next_transaction(desk)
    told = await tell(confirms, elected, asked["election"], "committed", result={"n": 1})
    assert told["state"] == "succeeded"
    one_commit(desk, since, "effect_intents", "effect_attempts", "effect_receipts")


async def test_a_later_election_of_the_same_effect_is_one_commit_too(
    desk: Desk, transports: tuple[PostgresTransport, PostgresTransport]
) -> None:
    transport, key = transports[0], f"order:{uuid4()}"
    first = wish(key, "shop.caller-unsafe")
    elected = await transport.elect(json.dumps(first).encode())
    await tell(transport, elected, first["election"], "not_sent")
    await asyncio.sleep(0.05)  # longer than the back-off of the contract
    second = wish(key, "shop.caller-unsafe")
    since = next_transaction(desk)
    elected = await transport.elect(json.dumps(second).encode())
    assert (elected["elected"], elected["ordinal"]) == (True, 2)
    one_commit(desk, since, "effect_intents", "effect_attempts")
