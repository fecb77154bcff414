"""``python bench/no_op_ledger.py DATABASE_URL``: empty calls of agent-ledger, timed on demand.

A program of its own, since the peer is in another environment than the broker. Each line of its
input is a count and a prefix; it answers with the milliseconds of that many new calls, as JSON.
"""

# mypy: disable-error-code="import-not-found,misc,untyped-decorator"

from __future__ import annotations

import asyncio
import json
import sys
from time import perf_counter
from typing import Any

from agent_ledger import EffectLedger, EffectLedgerOptions, ToolCall
from agent_ledger.stores.postgres import SCHEMA_SQL, PostgresStore
from psycopg_pool import AsyncConnectionPool


async def serve(url: str) -> None:
    """Answer lines until the input ends."""
    async with AsyncConnectionPool(conninfo=url, min_size=2, open=False) as pool:
        async with pool.connection() as connection:
            await connection.execute(SCHEMA_SQL)
        ledger = EffectLedger(EffectLedgerOptions(store=PostgresStore(pool=pool)))

        async def nothing(_effect: Any) -> Any:
            return {"ok": True}

        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            count, prefix = line.split()
            took = []
            for number in range(int(count)):
                call = ToolCall(
                    workflow_id=f"{prefix}:{number}", tool="bench.charge", args={"order": number}
                )
                began = perf_counter()
                await ledger.run(call, handler=nothing)
                took.append((perf_counter() - began) * 1000)
            print(json.dumps(took), flush=True)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
