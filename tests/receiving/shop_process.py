"""The shop over Postgres as a process of its own: `shop_process.py URL atomic|separate`.

It says its port, serves until it is killed, and says `entered` when an order waits (note `wait`).
"""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import uvicorn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from effect_broker.receiving import PostgresKeys, connecting
from receiving.shop import PostgresShop, covered

# So long a lease lasts where a crash is to be seen; the work of these tests takes no time.
LEASE_SECONDS = 1.0


async def main(url: str, way: str) -> None:
    """Serve on a free port."""
    atomic = way == "atomic"
    store = PostgresKeys(
        connecting(url), shares_transaction=atomic, lease_seconds=LEASE_SECONDS, wait_seconds=0.2
    )
    shop = PostgresShop(store, url)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(covered(shop), log_level="critical"))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started:  # noqa: ASYNC110 - the library has no event for it
            await asyncio.sleep(0.01)
        print(listening.getsockname()[1], flush=True)
        await shop.entered.wait()
        print("entered", flush=True)
        await serving


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
