"""One database for the tests of effects that callers perform, and clients that work on it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.rows import DictRow, dict_row

from api.deployment import Steps
from effect_adapters.registry import adapters
from effect_broker import AsyncBroker
from effect_broker.clock import SystemClock
from effect_broker.keyring import AesVault, new_key_ring, parse_key_ring
from effect_broker.process import WorkerProcess
from effect_broker.protocol.ports import Ports
from effect_broker.protocol.run import drive
from effect_broker.secretrefs import SecretReferences
from effect_broker.store.catalogue import Catalogue
from effect_broker.store.export import export_trace
from effect_broker.store.pool import make_pool
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.runs import PostgresWorkerStore
from effect_broker.store.tenants import Tenants
from effect_contracts.document import ContractDocument
from effect_contracts.trace import verify_lines
from migrated import MIGRATED
from postgres import Database, DatabaseTemplate, RunningServer, clone, drop_database


@pytest.fixture(scope="session")
def database_template() -> DatabaseTemplate:
    """Migrated, without tenants."""
    return MIGRATED


# Of the tools `shop.brief-<safety>`: their leases end while a test waits.
LEASE = 0.3


def caller_contract(safety: str, **changes: Any) -> ContractDocument:
    """A contract of a target that callers call themselves; the tool is named after its class."""
    name = changes.pop("name", f"caller-{safety}")
    fields: dict[str, Any] = {
        "name": name,
        "version": "1",
        "tool": f"shop.{name}",
        "safety": safety,
        "account": "acct_1",
        "arguments": {
            "type": "object",
            "required": ["amount"],
            "properties": {"amount": {"type": "integer"}},
        },
        "attempt_deadline_seconds": 30,
        "transit_seconds": 0.1,
        "retry": {"attempts_max": 4, "backoff_initial_seconds": 0.01, "backoff_cap_seconds": 0.01},
        "clock_margin_seconds": 0.05,
        "adapter": {"kind": "caller", "target": "shop.example"},
    }
    if safety == "idempotent":
        fields["key_retention_seconds"] = 86400
    if safety == "reconcilable":
        fields["settlement_bound_seconds"] = 0.05
        fields["adapter"]["probe"] = "shop"
        fields["probe"] = {"initial_seconds": 0.05, "cap_seconds": 0.05}
    adapter = fields["adapter"] | changes.pop("adapter", {})
    return ContractDocument.parse_yaml(json.dumps(fields | changes | {"adapter": adapter}))


@dataclass
class Desk:
    """A migrated database with one tenant and its key, and what tests do with it."""

    database: Database
    ring: str
    tenant_id: UUID
    api_key: str
    probes: dict[str, Any]

    def url(self, role: DatabaseRole = DatabaseRole.API) -> str:
        return self.database.url_for(role)

    def broker(self, api_key: str | None = None) -> AsyncBroker:
        return AsyncBroker.on_postgres(
            self.url(),
            api_key=api_key or self.api_key,
            key_ring=self.ring,
            patience=timedelta(seconds=5),
        )

    def rows(self, query: str, *values: object) -> list[DictRow]:
        with psycopg.connect(
            self.database.superuser_url, autocommit=True, row_factory=dict_row
        ) as connection:
            cursor = connection.execute(query.encode(), values)
            return cursor.fetchall() if cursor.description else []

    async def apply(self, *documents: ContractDocument) -> None:
        async with make_pool(
            self.url(DatabaseRole.ADMIN), None, application_name="test-admin", size_max=1
        ) as pool:
            for document in documents:
                await Catalogue(pool).apply(document)

    async def other_tenant(self) -> str:
        """Make a further tenant; return its key."""
        async with make_pool(
            self.url(DatabaseRole.ADMIN), None, application_name="test-admin", size_max=1
        ) as pool:
            name = f"t-{uuid4().hex[:12]}"
            await Tenants(pool).create(name, "ring-1")
            return (await Tenants(pool).create_key(name)).api_key

    async def run(self, effect_id: UUID) -> None:
        """Do what a run of a worker does, with the real store and adapters."""
        clock = SystemClock()
        process = WorkerProcess("worker-of-the-test", clock, 60.0)
        process.beaten(clock.boot_seconds())
        async with make_pool(
            self.url(DatabaseRole.WORKER), None, application_name="test-worker", size_max=2
        ) as pool:
            ports = Ports(
                store=PostgresWorkerStore(pool),
                adapters=adapters(SecretReferences("", None), self.probes),
                vault=AesVault(parse_key_ring(self.ring, source="the test", production=False)),
                clock=clock,
                process=process,
                new_id=uuid4,
                reach=lambda _: None,
            )
            await drive(Steps(ports, self.tenant_id, effect_id))

    async def violations(self) -> list[str]:
        """Check the whole log, as `effect-broker events verify` does."""
        return await violations_at(self.url(DatabaseRole.WORKER))


async def violations_at(url: str) -> list[str]:
    """Export the whole log of a database and check it."""
    lines: list[bytes] = []
    async with make_pool(url, None, application_name="test-export", size_max=1) as pool:
        await export_trace(pool, lines.append)
    return [str(one) for one in verify_lines(lines, whole=True).violations]


def checked_log(url: str) -> list[str]:
    """The same, where no event loop runs."""
    return asyncio.run(violations_at(url))


async def desk_in(database: Database) -> Desk:
    """Make the tenant, its key and the contracts in a migrated database."""
    ring = new_key_ring("ring-1", development=True)
    async with make_pool(
        database.url_for(DatabaseRole.ADMIN), None, application_name="test-admin", size_max=1
    ) as pool:
        tenant_id = (await Tenants(pool).create("acme", "ring-1")).tenant_id
        api_key = (await Tenants(pool).create_key("acme")).api_key
    made = Desk(database, ring, tenant_id, api_key, {})
    for safety in ("idempotent", "reconcilable", "unsafe"):
        brief = caller_contract(safety, name=f"brief-{safety}", attempt_deadline_seconds=LEASE)
        await made.apply(caller_contract(safety), brief)
    return made


@pytest.fixture(scope="session")
def desk(
    running_server: RunningServer, template_name: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Desk]:
    """The database that these tests share; each names its own operations."""
    database = clone(running_server, template_name)
    yield asyncio.run(desk_in(database))
    # Whatever the tests have done: the log of all of it is as it must be.
    assert checked_log(database.url_for(DatabaseRole.WORKER)) == []
    drop_database(running_server, database.name)


@pytest.fixture
async def broker(desk: Desk) -> AsyncIterator[AsyncBroker]:
    """A client directly on Postgres."""
    async with desk.broker() as made:
        yield made
