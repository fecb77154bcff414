"""A shop that takes orders: an ASGI application over any store, whose own table is the truth.

An order says in its note how it is to go wrong:

    fail, raise      5xx, or an exception, after the order was written
    refuse           422 after the order was written
    busy             429 before anything was written
    nothing          raises NothingDone before anything was written
    wait             the order is written, and then waits for `Shop.go_on`
    large            an answer that is larger than the store keeps
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any, Protocol

import psycopg

from effect_broker.receiving import (
    IdempotentASGI,
    KeyStore,
    NothingDone,
    PostgresKeys,
    SqliteKeys,
    current_claim,
)

ORDERS = 'CREATE TABLE orders (id {id}, "order" text NOT NULL, amount integer NOT NULL)'
TENANTS = {"Bearer ada": "ada", "Bearer bob": "bob"}


def tenant_of(scope: Any) -> str | None:
    """The tenant of a request, by its token."""
    return TENANTS.get(dict(scope["headers"]).get(b"authorization", b"").decode())


class Shop(Protocol):
    """What tests know of a shop."""

    store: Any
    entered: asyncio.Event
    go_on: asyncio.Event

    async def write(self, order: str, amount: int) -> int:
        """Write an order where the store's way wants it; return its id."""

    def orders(self, order: str) -> int:
        """How many orders of this name were committed: what the owner would call effects."""


class _Shop:
    def __init__(self, store: KeyStore) -> None:
        self.store: Any = store
        self.entered = asyncio.Event()
        self.go_on = asyncio.Event()


class PostgresShop(_Shop):
    """Its orders are in the database of its keys."""

    _SQL = 'INSERT INTO orders ("order", amount) VALUES (%s, %s) RETURNING id'

    def __init__(self, store: PostgresKeys, url: str) -> None:
        super().__init__(store)
        self._url = url

    async def write(self, order: str, amount: int) -> int:
        if self.store.atomic:
            cursor = await current_claim().connection.execute(self._SQL, [order, amount])
            return int((await cursor.fetchone())[0])
        async with await psycopg.AsyncConnection.connect(self._url, autocommit=True) as own:
            row = await (await own.execute(self._SQL, [order, amount])).fetchone()
            assert row is not None
            return int(row[0])

    def orders(self, order: str) -> int:
        with psycopg.connect(self._url) as connection:
            row = connection.execute(
                'SELECT count(*) FROM orders WHERE "order" = %s', [order]
            ).fetchone()
        assert row is not None
        return int(row[0])


class SqliteShop(_Shop):
    """Its orders are in the file of its keys."""

    _SQL = 'INSERT INTO orders ("order", amount) VALUES (?, ?)'

    def __init__(self, store: SqliteKeys, path: Path) -> None:
        super().__init__(store)
        self._path = path

    async def write(self, order: str, amount: int) -> int:
        if self.store.atomic:
            return int(current_claim().connection.execute(self._SQL, [order, amount]).lastrowid)
        own = sqlite3.connect(self._path, isolation_level=None)
        try:
            return int(own.execute(self._SQL, [order, amount]).lastrowid or 0)
        finally:
            own.close()

    def orders(self, order: str) -> int:
        own = sqlite3.connect(self._path)
        try:
            row = own.execute('SELECT count(*) FROM orders WHERE "order" = ?', [order]).fetchone()
            return int(row[0])
        finally:
            own.close()


def application(shop: Shop) -> Any:
    """Return the shop's application, without the middleware."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        status, value = await _answer(shop, json.loads(body or b"{}"))
        said = json.dumps(value).encode()
        headers = [(b"content-type", b"application/json"), (b"set-cookie", b"seen=1")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        # In two pieces, as a streamed answer comes.
        await send({"type": "http.response.body", "body": said[:1], "more_body": True})
        await send({"type": "http.response.body", "body": said[1:]})

    return app


async def _answer(shop: Shop, asked: dict[str, Any]) -> tuple[int, Any]:
    note = asked.get("note")
    if note == "busy":
        return 429, {"error": "too many"}
    if note == "nothing":
        raise NothingDone("the kitchen is closed")
    number = await shop.write(asked["order"], asked["amount"])
    if note == "raise":
        raise LookupError("a mistake of the shop")
    if note == "wait":
        shop.entered.set()
        await shop.go_on.wait()
    if note == "fail":
        return 503, {"error": "overloaded"}
    if note == "refuse":
        return 422, {"error": "no such article"}
    filler = "x" * 400_000 if note == "large" else ""
    return 201, {
        "id": str(number), "order": asked["order"], "amount": asked["amount"], "filler": filler,
    }  # fmt: skip


def covered(shop: Shop, **settings: Any) -> IdempotentASGI:
    """Return the shop's application under the middleware."""
    return IdempotentASGI(
        application(shop), shop.store, **{"scope_of": tenant_of, "paths": ["/orders"], **settings}
    )
