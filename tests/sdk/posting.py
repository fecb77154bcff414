"""A business that posts entries by its own statements, on each kind of connection, once.

What it needs is small, so that a process of its own can be made of it in little time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import psycopg
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from effect_broker import AsyncBroker, Broker

TOOL: Final = "shop.post"
INSERT: Final = "INSERT INTO orders VALUES (%s, %s)"
_INSERT: Final = text("INSERT INTO orders VALUES (:name, 5)")


@dataclass(frozen=True, slots=True)
class Poster:
    """What the process of a caller is given; `url` is where its own transactions go."""

    url: str
    api_url: str
    api_key: str
    ring: str

    @property
    def alchemy_url(self) -> str:
        return self.url.replace("postgresql://", "postgresql+psycopg://", 1)

    def broker(self) -> Broker:
        return Broker.on_postgres(self.api_url, api_key=self.api_key, key_ring=self.ring)

    def async_broker(self) -> AsyncBroker:
        return AsyncBroker.on_postgres(self.api_url, api_key=self.api_key, key_ring=self.ring)


@dataclass(frozen=True, slots=True)
class Post:
    """One entry, whose row is the effect.

    Attributes:
        also: a statement that the function executes after its own.
        fails: the function raises `LookupError` then.
    """

    name: str
    also: str | None = None
    fails: bool = False

    def asked(self) -> dict[str, Any]:
        return {"tool": TOOL, "arguments": entry(self.name), "operation_key": f"shop:{self.name}"}

    def end(self) -> None:
        if self.fails:
            raise LookupError(self.name)


Way: TypeAlias = Callable[[Poster, Post], bool]
"""Carries an entry out and commits; returns whether it was the first to do so."""


def entry(name: str, amount: int = 5) -> dict[str, object]:
    return {"debit": name, "credit": "sales", "amount": amount, "currency": "eur"}


def by_psycopg(poster: Poster, post: Post) -> bool:
    with poster.broker() as broker, psycopg.connect(poster.url) as connection:

        def body() -> None:
            connection.execute(INSERT, [post.name, 5])
            if post.also is not None:
                connection.execute(post.also.encode())
            post.end()

        first = broker.transact(connection, body, **post.asked()).first
        connection.commit()
        return first


def by_session(poster: Poster, post: Post) -> bool:
    engine = create_engine(poster.alchemy_url, poolclass=NullPool)
    with poster.broker() as broker, Session(engine) as session:

        def body() -> None:
            session.execute(_INSERT, {"name": post.name})
            if post.also is not None:
                session.execute(text(post.also))
            post.end()

        first = broker.transact(session, body, **post.asked()).first
        session.commit()
        return first


def by_async_psycopg(poster: Poster, post: Post) -> bool:
    async def work() -> bool:
        async with (
            poster.async_broker() as broker,
            await psycopg.AsyncConnection.connect(poster.url) as connection,
        ):

            async def body() -> None:
                await connection.execute(INSERT, [post.name, 5])
                if post.also is not None:
                    await connection.execute(post.also.encode())
                post.end()

            first = (await broker.transact(connection, body, **post.asked())).first
            await connection.commit()
            return first

    return asyncio.run(work())


def by_async_session(poster: Poster, post: Post) -> bool:
    async def work() -> bool:
        engine = create_async_engine(poster.alchemy_url, poolclass=NullPool)
        async with poster.async_broker() as broker, AsyncSession(engine) as session:

            async def body() -> None:
                await session.execute(_INSERT, {"name": post.name})
                if post.also is not None:
                    await session.execute(text(post.also))
                post.end()

            first = (await broker.transact(session, body, **post.asked())).first
            await session.commit()
            return first

    return asyncio.run(work())


WAYS: tuple[Way, ...] = (by_psycopg, by_session, by_async_psycopg, by_async_session)
