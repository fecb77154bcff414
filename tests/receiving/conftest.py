"""A shop whose orders are counted, over each kind of store."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from effect_broker.receiving import PostgresKeys, SqliteKeys, connecting
from postgres import EMPTY, RunningServer, clone, drop_database, ensure_template
from receiving.shop import ORDERS, PostgresShop, Shop, SqliteShop

_NUMBERS = count(1)
# Whoever waits in these tests waits in vain, but for one test that says so.
WAIT = 0.05


@pytest.fixture(scope="session")
def shop_url(running_server: RunningServer) -> Iterator[str]:
    """A database with the shop's table of orders; tests use orders and keys of their own."""
    database = clone(running_server, ensure_template(running_server, EMPTY))
    with psycopg.connect(database.superuser_url, autocommit=True) as connection:
        connection.execute(ORDERS.format(id="bigserial PRIMARY KEY"))
    yield database.superuser_url
    drop_database(running_server, database.name)


@pytest.fixture(params=["postgres", "sqlite"])
def shop_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Shop]:
    """Makes a shop over the store of this run: `shop_of(shares_transaction=False, …)`."""
    if request.param == "postgres":
        url = request.getfixturevalue("shop_url")

        def over_postgres(**settings: Any) -> Shop:
            store = PostgresKeys(connecting(url), **{"wait_seconds": WAIT, **settings})
            return PostgresShop(store, url)

        return over_postgres
    path = tmp_path / "shop.sqlite"
    with sqlite3.connect(path) as file:
        file.execute(ORDERS.format(id="INTEGER PRIMARY KEY"))
    file.close()

    def over_sqlite(**settings: Any) -> Shop:
        return SqliteShop(SqliteKeys(path, **{"wait_seconds": WAIT, **settings}), path)

    return over_sqlite


@pytest.fixture
def order() -> str:
    """An order, and a key, that no other test has."""
    return f"o-{next(_NUMBERS)}"
