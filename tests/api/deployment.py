"""A broker's database with contracts, tenants and keys, and what tests of the API do with it."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest
from fastapi import FastAPI

from effect_adapters.registry import adapters
from effect_broker import assembly
from effect_broker.api.app import create_app
from effect_broker.api.limits import RequestLimits
from effect_broker.clock import SystemClock
from effect_broker.config import Settings, load_settings
from effect_broker.keyring import ENV_KEY_RING_FILE, AesVault, key_ring, new_key_ring, ring_signer
from effect_broker.process import WorkerProcess
from effect_broker.protocol import steps
from effect_broker.protocol.ports import Ports
from effect_broker.protocol.run import StepResult, drive
from effect_broker.secretrefs import SecretReferences
from effect_broker.store.catalogue import Catalogue
from effect_broker.store.pool import make_pool
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.runs import PostgresWorkerStore
from effect_broker.store.tenants import Tenants
from effect_contracts.catalog import catalog_documents
from effect_contracts.document import ContractDocument
from postgres import Database

TENANTS = ("acme", "globex")
CHARGE = catalog_documents()["demo-charge-idempotent"]
LEDGER = catalog_documents()["demo-ledger-transactional"]

# The ledger that the transactional demo contract posts to.
_LEDGER_SQL = """
CREATE SCHEMA effect_broker_demo;
CREATE TABLE effect_broker_demo.entries (
    entry_id uuid PRIMARY KEY DEFAULT gen_random_uuid(), amount bigint NOT NULL);
CREATE FUNCTION effect_broker_demo.post_entry(arguments jsonb, downstream_key text)
RETURNS jsonb LANGUAGE sql AS $$
    INSERT INTO effect_broker_demo.entries (amount) VALUES ((arguments->>'amount')::bigint)
    RETURNING jsonb_build_object('entry_id', entry_id, 'posted_at', '2026-11-29', 'amount', amount)
$$;
GRANT USAGE ON SCHEMA effect_broker_demo TO effect_broker_worker;
GRANT INSERT, SELECT ON effect_broker_demo.entries TO effect_broker_worker;
"""


@dataclass(frozen=True, slots=True)
class Deployment:
    """A migrated database with two tenants, each with an API key, and the key ring's file."""

    database: Database
    ring: Path
    tenant_ids: Mapping[str, UUID]
    api_keys: Mapping[str, str]
    key_ids: Mapping[str, UUID]

    @property
    def environment(self) -> dict[str, str]:
        """What a process of this deployment gets, apart from the shell's own variables."""
        return {
            "EFFECT_BROKER_API_DATABASE_URL": self.database.url_for(DatabaseRole.API),
            "EFFECT_BROKER_WORKER_DATABASE_URL": self.database.url_for(DatabaseRole.WORKER),
            "EFFECT_BROKER_KEY_RING_FILE": str(self.ring),
        }

    @property
    def login(self) -> assembly.DatabaseLogin:
        return assembly.DatabaseLogin(self.database.url_for(DatabaseRole.API), "the test")

    def headers(self, tenant: str = "acme") -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_keys[tenant]}"}

    def make_ledger(self) -> None:
        """Make the function that the transactional contract calls."""
        self.execute(_LEDGER_SQL)

    def execute(self, statement: str) -> list[Any]:
        """Run a statement as superuser; return its rows."""
        with psycopg.connect(self.database.superuser_url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def count(self, table: str) -> int:
        (row,) = self.execute(f"SELECT count(*) FROM effect_broker.{table}")
        return int(row[0])

    @asynccontextmanager
    async def application(
        self, settings: Settings | None = None, draining: Callable[[], bool] = lambda: False
    ) -> AsyncIterator[FastAPI]:
        """The real application, started, in this process."""
        chosen = settings or load_settings()
        app = create_app(
            lambda: assembly.api_services(chosen, self.login),
            draining=draining,
            limits=RequestLimits(chosen.tenant_requests_per_second, chosen.tenant_requests_burst),
        )
        async with app.router.lifespan_context(app):
            yield app

    def client(self, app: FastAPI, tenant: str | None = "acme") -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(app),
            base_url="http://broker",
            headers=self.headers(tenant) if tenant else {},
        )

    async def settle(self, effect_id: str, tenant: str = "acme") -> None:
        """Do what a run of a worker does, with the real store and adapters."""
        url = self.database.url_for(DatabaseRole.WORKER)
        clock = SystemClock()
        process = WorkerProcess("executor-of-the-test", clock, 60.0)
        process.beaten(clock.boot_seconds())
        async with make_pool(url, None, application_name="test-worker", size_max=2) as pool:
            ring = key_ring(load_settings())
            ports = Ports(
                store=PostgresWorkerStore(pool, signer=ring_signer(ring)),
                adapters=adapters(SecretReferences("", None)),
                vault=AesVault(ring),
                clock=clock,
                process=process,
                new_id=uuid4,
                reach=lambda _: None,
            )
            await drive(Steps(ports, self.tenant_ids[tenant], UUID(effect_id)))


@asynccontextmanager
async def deployed(database: Database, directory: Path) -> AsyncIterator[Deployment]:
    """Two tenants with a key each, the contracts of the demo, and the environment set to them."""
    ring = directory / "key-ring.json"
    ring.write_text(new_key_ring("ring-1", development=True))
    url = database.url_for(DatabaseRole.ADMIN)
    ids, keys, key_ids = {}, {}, {}
    async with make_pool(url, None, application_name="test-admin", size_max=2) as pool:
        for document in (CHARGE, LEDGER):
            await Catalogue(pool).apply(document)
        for name in TENANTS:
            ids[name] = (await Tenants(pool).create(name, "ring-1")).tenant_id
            made = await Tenants(pool).create_key(name)
            keys[name], key_ids[name] = made.api_key, made.key_id
    with pytest.MonkeyPatch.context() as patch:
        for variable in [name for name in os.environ if name.startswith("EFFECT_BROKER_")]:
            patch.delenv(variable)
        patch.setenv(ENV_KEY_RING_FILE, str(ring))
        yield Deployment(database, ring, ids, keys, key_ids)


class Steps:
    """The steps of one effect, called as the engine would but without recording them."""

    def __init__(self, ports: Ports, tenant_id: UUID, effect_id: UUID) -> None:
        self._ports = ports
        self._target = (tenant_id, effect_id)

    async def begin(self) -> StepResult:
        return (await steps.begin(self._ports)).to_json()

    async def reserve(self) -> StepResult:
        return (await steps.reserve(self._ports, *self._target, 1)).to_json()

    async def dispatch(self, version: int, ordinal: int) -> StepResult:
        return (await steps.dispatch(self._ports, *self._target, version, ordinal)).to_json()

    async def probe(self, version: int) -> StepResult:
        return (await steps.probe(self._ports, *self._target, version)).to_json()


def charge(key: str = "order:42:charge:v1", amount: int = 1200, **members: Any) -> dict[str, Any]:
    """A submit that the charge contract takes."""
    arguments = {"order": "42", "amount": amount, "currency": "eur"}
    return {"operation_key": key, "tool": "demo.charge", "arguments": arguments, **members}


def entry(key: str = "entry-1", amount: int = 5) -> dict[str, Any]:
    """A submit that the ledger contract takes."""
    arguments = {"debit": "a", "credit": "b", "amount": amount, "currency": "eur"}
    return {"operation_key": key, "tool": "demo.post_entry", "arguments": arguments}


def versioned(document: ContractDocument, version: str, **changes: Any) -> ContractDocument:
    """The document under another version."""
    content = json.loads(document.canonical())
    text = json.dumps(content | {"version": version} | changes)
    return ContractDocument.parse_yaml(text)


async def in_doubt(api: httpx.AsyncClient, deployment: Deployment, key: str = "order-1") -> str:
    """An effect whose outcome nobody knows, as its worker would have left it."""
    effect_id = (await api.post("/v1/effects", json=charge(key))).json()["effect_id"]
    deployment.execute(f"""
        SET session_replication_role = replica;
        INSERT INTO effect_broker.effect_events SELECT tenant_id, effect_id, 2, 'test', 'test',
            'prepared', 'outcome_unknown', 'test', 'test', now(), '{{}}', digest, digest
            FROM effect_broker.effect_events WHERE effect_id = '{effect_id}';
        INSERT INTO effect_broker.effect_attempts (attempt_id, tenant_id, effect_id, ordinal,
            executor_id, started_at, deadline_at, target_identity, outcome, code, recorded_at,
            bytes_may_have_left)
            SELECT gen_random_uuid(), tenant_id, effect_id, 1, 'test', now() - interval '2 years',
            now() - interval '1 year', 'https://target', 'ambiguous', 'lost',
            now() - interval '2 years', true
            FROM effect_broker.effect_intents WHERE effect_id = '{effect_id}';
        UPDATE effect_broker.effect_intents SET state = 'outcome_unknown', parked = true,
            next_action_at = NULL, version = 2, reason = 'outcome_unknown', latest_ordinal = 1,
            target_identity = 'https://target' WHERE effect_id = '{effect_id}';
    """)
    return str(effect_id)


def just_now() -> str:
    """When a person who looks at the target now began to look."""
    return datetime.now(UTC).isoformat()
