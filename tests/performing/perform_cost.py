"""What an empty `perform` costs on Postgres, against two bare commits in the same run.

    python tests/performing/perform_cost.py [COUNT]

Starts a durable server of its own (fsync on), and alternates the two, so that whatever else the
machine does meets both alike. Prints medians in milliseconds and their ratio.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

from psycopg import AsyncConnection

from effect_broker import AsyncBroker
from effect_broker.durable import migrate_dbos
from effect_broker.keyring import new_key_ring
from effect_broker.postgres.choice import resolve_server
from effect_broker.store.catalogue import Catalogue
from effect_broker.store.migrate import migrate
from effect_broker.store.pool import make_pool
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.tenants import Tenants
from effect_contracts.document import ContractDocument

CONTRACT = {
    "name": "bench",
    "version": "1",
    "tool": "bench.charge",
    "safety": "idempotent",
    "account": "acct",
    "key_retention_seconds": 86400,
    "arguments": {"type": "object"},
    "adapter": {"kind": "caller", "target": "bench.example"},
}


def as_role(url: str, role: DatabaseRole) -> str:
    parts = urlsplit(url)
    address = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{role.value}@{address}"))


async def measured(url: str, count: int) -> None:
    ring = new_key_ring("ring-1", development=True)
    admin = as_role(url, DatabaseRole.ADMIN)
    async with make_pool(admin, None, application_name="bench", size_max=1) as pool:
        await Catalogue(pool).apply(ContractDocument.parse_yaml(json.dumps(CONTRACT)))
        await Tenants(pool).create("bench", "ring-1")
        api_key = (await Tenants(pool).create_key("bench")).api_key
    api = as_role(url, DatabaseRole.API)
    bare = await AsyncConnection.connect(url, autocommit=True, prepare_threshold=0)
    await bare.execute("CREATE TABLE bare (id uuid PRIMARY KEY, text text)")
    commits, performs = [], []
    async with AsyncBroker.on_postgres(api, api_key=api_key, key_ring=ring) as broker:
        for turn in range(count + count // 10):
            began = perf_counter()
            for _ in range(2):
                await bare.execute("INSERT INTO bare VALUES (%s, %s)", [uuid4(), "x" * 200])
            between = perf_counter()
            async with broker.perform(
                "bench.charge", {"order": turn}, operation_key=f"order:{turn}"
            ) as effect:
                await effect.confirm()
            ended = perf_counter()
            if turn >= count // 10:  # what comes first warms up
                commits.append((between - began) * 1000)
                performs.append((ended - between) * 1000)
    for name, share in (("median", 0.5), ("quickest tenth", 0.1)):
        two, one = (sorted(times)[int(count * share)] for times in (commits, performs))
        print(f"{name}: two bare commits {two:.2f} ms, perform {one:.2f} ms, ratio {one / two:.2f}")


def main() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        server = resolve_server(Path(directory), {}).server
        url = server.start()
        try:
            migrate(url, migrate_dbos=migrate_dbos)
            asyncio.run(measured(url, int(sys.argv[1]) if len(sys.argv) > 1 else 300))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
