"""The connections that a caller may have, each used as its documentation shows it.

A way makes an order and submits it in the same transaction, and ends that as it is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

import psycopg
import sqlalchemy
from sqlalchemy import NullPool, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from effect_broker import AsyncBroker, Broker, Effect
from effect_broker.proof.contracts import charge
from sdk.callers import Business
from sdk.conftest import Access

End: TypeAlias = Literal["commit", "rollback", "savepoint"]
Way: TypeAlias = Callable[[Business, Broker, Access, str, str, End], Effect]

ENDS: tuple[End, ...] = ("rollback", "savepoint", "commit")
INSERT = "INSERT INTO orders VALUES (%s, 5)"


def psycopg_connection(
    shop: Business, direct: Broker, access: Access, tool: str, name: str, end: End
) -> Effect:
    with shop.connect() as connection:
        if end == "savepoint":
            with connection.transaction(force_rollback=True):
                connection.execute(INSERT, [name])
                return _submit(direct, tool, name, connection)
        connection.execute(INSERT, [name])
        effect = _submit(direct, tool, name, connection)
        if end == "rollback":
            connection.rollback()
    return effect


def psycopg_block(
    shop: Business, direct: Broker, access: Access, tool: str, name: str, end: End
) -> Effect:
    """In autocommit mode, a block is a transaction all the same."""
    with (
        shop.connect(autocommit=True) as connection,
        connection.transaction(force_rollback=end == "rollback"),
        connection.transaction(force_rollback=end == "savepoint"),
    ):
        connection.execute(INSERT, [name])
        return _submit(direct, tool, name, connection)


def alchemy_session(
    shop: Business, direct: Broker, access: Access, tool: str, name: str, end: End
) -> Effect:
    engine = sqlalchemy.create_engine(shop.alchemy_url, poolclass=NullPool)
    with Session(engine) as session:
        nested = session.begin_nested() if end == "savepoint" else None
        session.execute(text("INSERT INTO orders VALUES (:name, 5)"), {"name": name})
        effect = _submit(direct, tool, name, session)
        if nested is not None:
            nested.rollback()
        session.rollback() if end == "rollback" else session.commit()
    return effect


def alchemy_connection(
    shop: Business, direct: Broker, access: Access, tool: str, name: str, end: End
) -> Effect:
    """The submit comes first, so that it is what begins the transaction."""
    engine = sqlalchemy.create_engine(shop.alchemy_url, poolclass=NullPool)
    with engine.connect() as connection:
        nested = connection.begin_nested() if end == "savepoint" else None
        effect = _submit(direct, tool, name, connection)
        connection.execute(text("INSERT INTO orders VALUES (:name, 5)"), {"name": name})
        if nested is not None:
            nested.rollback()
        connection.rollback() if end == "rollback" else connection.commit()
    return effect


def alchemy_scoped(
    shop: Business, direct: Broker, access: Access, tool: str, name: str, end: End
) -> Effect:
    engine = sqlalchemy.create_engine(shop.alchemy_url, poolclass=NullPool)
    session = scoped_session(sessionmaker(engine))
    nested = session.begin_nested() if end == "savepoint" else None
    session.execute(text("INSERT INTO orders VALUES (:name, 5)"), {"name": name})
    effect = _submit(direct, tool, name, session)
    if nested is not None:
        nested.rollback()
    session.rollback() if end == "rollback" else session.commit()
    session.remove()
    return effect


def psycopg_async(
    shop: Business, direct: Broker, access: Access, tool: str, name: str, end: End
) -> Effect:
    async def work(broker: AsyncBroker) -> Effect:
        async with await psycopg.AsyncConnection.connect(shop.url) as connection:
            if end == "savepoint":
                async with connection.transaction(force_rollback=True):
                    await connection.execute(INSERT, [name])
                    return await _submit_async(broker, tool, name, connection)
            await connection.execute(INSERT, [name])
            effect = await _submit_async(broker, tool, name, connection)
            if end == "rollback":
                await connection.rollback()
        return effect

    return _with_async_broker(access, work)


def alchemy_async_session(
    shop: Business, direct: Broker, access: Access, tool: str, name: str, end: End
) -> Effect:
    async def work(broker: AsyncBroker) -> Effect:
        engine = create_async_engine(shop.alchemy_url, poolclass=NullPool)
        async with AsyncSession(engine) as session:
            nested = await session.begin_nested() if end == "savepoint" else None
            await session.execute(text("INSERT INTO orders VALUES (:name, 5)"), {"name": name})
            effect = await _submit_async(broker, tool, name, session)
            if nested is not None:
                await nested.rollback()
            await (session.rollback() if end == "rollback" else session.commit())
        await engine.dispose()
        return effect

    return _with_async_broker(access, work)


def alchemy_async_connection(
    shop: Business, direct: Broker, access: Access, tool: str, name: str, end: End
) -> Effect:
    async def work(broker: AsyncBroker) -> Effect:
        engine = create_async_engine(shop.alchemy_url, poolclass=NullPool)
        connection: AsyncConnection
        async with engine.connect() as connection:
            nested = await connection.begin_nested() if end == "savepoint" else None
            effect = await _submit_async(broker, tool, name, connection)
            await connection.execute(text("INSERT INTO orders VALUES (:name, 5)"), {"name": name})
            if nested is not None:
                await nested.rollback()
            await (connection.rollback() if end == "rollback" else connection.commit())
        await engine.dispose()
        return effect

    return _with_async_broker(access, work)


WAYS: tuple[Way, ...] = (
    psycopg_connection,
    psycopg_block,
    alchemy_session,
    alchemy_connection,
    alchemy_scoped,
    psycopg_async,
    alchemy_async_session,
    alchemy_async_connection,
)


def _submit(broker: Broker, tool: str, name: str, connection: object) -> Effect:
    return broker.submit(tool, charge(name), operation_key=f"{tool}:{name}", connection=connection)


async def _submit_async(broker: AsyncBroker, tool: str, name: str, connection: object) -> Effect:
    return await broker.submit(
        tool, charge(name), operation_key=f"{tool}:{name}", connection=connection
    )


def _with_async_broker(access: Access, work: Callable[[AsyncBroker], Awaitable[Effect]]) -> Effect:
    """Over HTTP, with the key ring of the environment."""

    async def run() -> Effect:
        async with access.async_broker() as broker:
            return await work(broker)

    return asyncio.run(run())
