"""A page of the listing costs the same however long the history is, and nothing old drops out.

`UNRESOLVED_HISTORY=1000000 pytest -s tests/unresolved/test_cost.py` measures with a history of a
million and prints what docs/performance.md shows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from time import perf_counter
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import TupleRow

from effect_broker.store.pool import make_pool
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.unresolved import UnresolvedStore, _Position, page_query
from effect_broker.unresolved import UnresolvedFilter
from postgres import Database, RunningServer, clone, drop_database
from store.samples import contract
from unresolved.history import add, buffers_of, indexes_of, plan_of

TENANT = UUID(int=78)
SHORT, LONG = 1_000, int(os.environ.get("UNRESOLVED_HISTORY", "100000"))
WAITING, OVERDUE, IN_BACK_OFF = 2_000, 500, 5_000
PAGE = 51  # of 50, and one to tell whether there are more

# Two scans go down an index that is a level higher perhaps; a page's rows are all else.
LEVELS = 6

# One for each kind of page: the first, one far behind, and those that filters thin out.
PAGES: dict[str, tuple[UnresolvedFilter, str | None]] = {
    "first": (UnresolvedFilter(), None),
    "deep": (UnresolvedFilter(), f"unknown/{WAITING // 4}"),
    "last": (UnresolvedFilter(), "unknown/2"),
    "reason": (UnresolvedFilter(reason="outcome_unknown"), None),
    "stale": (UnresolvedFilter(reason="stale_in_flight"), None),
    "prefix": (UnresolvedFilter(operation_prefix="settled/"), None),
    "age": (UnresolvedFilter(older_than_seconds=WAITING / 2), None),
}

Costs = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def database(running_server: RunningServer, template_name: str) -> Iterator[Database]:
    """One database for the module: it takes a while to fill."""
    made = clone(running_server, template_name)
    yield made
    drop_database(running_server, made.name)


@pytest.fixture(scope="module")
def costs(database: Database) -> Iterator[tuple[Costs, Costs]]:
    """Plans of every page with a short and with a long history; the rest is the same."""
    digest = contract("unsafe").digest()
    with psycopg.connect(database.superuser_url, autocommit=True) as superuser:
        document = contract("unsafe").canonical().decode()
        superuser.execute(
            "INSERT INTO effect_broker.tenants (tenant_id, name, hmac_key_id)"
            " VALUES (%s, 't', 'h')",
            [TENANT],
        )
        superuser.execute(
            "INSERT INTO effect_broker.contracts (digest, name, version, tool, safety, document)"
            " VALUES (%s, 'unsafe', '1', 'tool.unsafe', 'unsafe', %s)",
            [digest, document],
        )
        for standing, count in (
            ("unknown", WAITING), ("expiring", WAITING), ("overdue", OVERDUE),
            ("in_back_off", IN_BACK_OFF), ("on_its_way", OVERDUE), ("settled", SHORT),
        ):  # fmt: skip
            add(superuser, TENANT, standing, count, digest=digest)
        # Older than all of the history, and without a key that could expire.
        add(superuser, TENANT, "unknown", LONG * 10, LONG * 10, digest=digest)
        superuser.execute("VACUUM ANALYZE")
        short = _measured(superuser)
        add(superuser, TENANT, "settled", LONG, SHORT + 1, digest=digest)
        superuser.execute("VACUUM ANALYZE")
        yield short, _measured(superuser)


def _measured(superuser: Connection[TupleRow]) -> Costs:
    plans = {}
    for name, (filters, after) in PAGES.items():
        cursor = None
        if after is not None:
            row = superuser.execute(
                "SELECT key_expires_at, created_at, effect_id FROM effect_broker.effect_intents"
                " WHERE operation_key = %s",
                [after],
            ).fetchone()
            assert row is not None
            cursor = _Position(*row).cursor()
        query, parameters = page_query(filters, cursor)
        asked = {**parameters, "limit": PAGE}
        plan_of(superuser, TENANT, query, asked)  # the first one warms the cache
        plans[name] = plan_of(superuser, TENANT, query, asked)
    return plans


@pytest.mark.parametrize("name", PAGES)
def test_a_page_touches_no_more_for_a_longer_history(costs: tuple[Costs, Costs], name: str) -> None:
    short, long = (cost[name] for cost in costs)
    print(
        f"\n{name:8} buffers {buffers_of(short):5} -> {buffers_of(long):5}, "
        f"ms {short['Execution Time']:.2f} -> {long['Execution Time']:.2f}"
    )
    assert indexes_of(long) == {
        "unresolved_effects", "effects_on_their_way", "open_effects_by_state",
    }  # fmt: skip
    assert buffers_of(long) <= buffers_of(short) + LEVELS


def test_a_deep_page_costs_no_more_than_the_first(costs: tuple[Costs, Costs]) -> None:
    for cost in costs:
        assert buffers_of(cost["deep"]) <= buffers_of(cost["first"]) + PAGE
        assert buffers_of(cost["last"]) <= buffers_of(cost["first"]) + PAGE


def test_what_is_not_overdue_is_passed_over_without_a_look_at_the_table(
    costs: tuple[Costs, Costs],
) -> None:
    """Thousands are in back-off before the first that is overdue; each would be a page's read."""
    assert buffers_of(costs[1]["first"]) < 4 * PAGE < IN_BACK_OFF


@pytest.mark.usefixtures("costs")
async def test_the_oldest_unresolved_effect_is_first_of_those_that_never_expire(
    database: Database,
) -> None:
    oldest = f"unknown/{LONG * 10}"
    url = database.url_for(DatabaseRole.API)
    async with make_pool(url, None, application_name="test-api", size_max=1) as pool:
        store = UnresolvedStore(pool)
        filters = UnresolvedFilter(reason="outcome_unknown")
        page = await store.unresolved(TENANT, filters, None, 50)
        began = perf_counter()
        for _ in range(20):
            await store.unresolved(TENANT, UnresolvedFilter(), None, 50)
        print(
            f"\na page of 50 with all that it shows: {(perf_counter() - began) / 20 * 1000:.1f} ms"
        )
        assert page.effects[0].intent.operation_key == oldest
        # Without a filter it comes after every key that expires, and is met all the same.
        seen: list[str] = []
        cursor: str | None = None
        while oldest not in seen:
            page = await store.unresolved(TENANT, UnresolvedFilter(), cursor, 200)
            seen += [effect.intent.operation_key for effect in page.effects]
            cursor = page.cursor
            assert cursor is not None, "the listing has ended without it"
        assert len(seen) == len(set(seen))
        assert seen.index(oldest) == WAITING
