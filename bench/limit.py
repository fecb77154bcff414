"""The limit: what the database alone permits, and the least that any two-commit protocol costs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from uuid import uuid4

import httpx
from psycopg import AsyncConnection

from bench.rounds import Load, Timed

_TABLE = "CREATE TABLE IF NOT EXISTS bare (id uuid PRIMARY KEY, text text, done boolean)"
_INSERT = "INSERT INTO bare VALUES (%s, %s, false)"
_DONE = "UPDATE bare SET done = true WHERE id = %s"
_TEXT = "x" * 200  # about what an intent's arguments are

Work = Callable[[AsyncConnection], Awaitable[None]]


async def _clients(url: str, load: Load, work: Work) -> Timed:
    connections = [
        await AsyncConnection.connect(url, autocommit=True, prepare_threshold=0)
        for _ in range(load.clients)
    ]
    try:
        return await load.run([lambda c=c: work(c) for c in connections])  # type: ignore[misc]
    finally:
        for connection in connections:
            await connection.close()


async def prepare(url: str) -> None:
    """Make the table."""
    async with await AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(_TABLE)
        shown = [
            (await (await connection.execute(f"SHOW {name}")).fetchone() or ("",))[0]
            for name in ("fsync", "synchronous_commit")
        ]
    assert shown == ["on", "on"], "only durable commits are compared"


async def commits(url: str, load: Load) -> Timed:
    """Bare durable commits: one INSERT each."""

    async def one(connection: AsyncConnection) -> None:
        await connection.execute(_INSERT, [uuid4(), _TEXT])

    return await _clients(url, load, one)


async def by_hand(url: str, target_url: str, load: Load) -> Timed:
    """Intent, POST, receipt: two commits and one request, without any protection."""
    async with httpx.AsyncClient(trust_env=False) as http:

        async def one(connection: AsyncConnection) -> None:
            effect_id = uuid4()
            await connection.execute(_INSERT, [effect_id, _TEXT])
            answer = await http.post(
                target_url,
                json={"order": str(effect_id), "amount": 1, "currency": "eur"},
                headers={"Idempotency-Key": str(effect_id)},
            )
            answer.raise_for_status()
            await connection.execute(_DONE, [effect_id])

        return await _clients(url, load, one)


async def two_commits(url: str, count: int) -> list[float]:
    """Return how long each of `count` pairs of commits took, in seconds."""
    async with await AsyncConnection.connect(url, autocommit=True, prepare_threshold=0) as bare:
        took = []
        for _ in range(count):
            began = perf_counter()
            for _ in range(2):
                await bare.execute(_INSERT, [uuid4(), _TEXT])
            took.append(perf_counter() - began)
        return took


def run(work: Awaitable[Timed]) -> Timed:
    """Run one measurement in an event loop of its own."""

    async def main() -> Timed:
        return await work

    return asyncio.run(main())
