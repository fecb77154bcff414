"""The export reads one moment, stands in nobody's way, and grows with nothing."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from cli.sender import Sender
from effect_adapters.simulated import LedgerTarget, SimulatedAdapter
from effect_broker.intake import EffectRequest, Intake, Tenant
from effect_broker.keyring import AesVault
from effect_broker.protocol.ports import StoreError
from effect_broker.store import export
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.catalogue import Catalogue
from effect_broker.store.export import TraceSelection, export_to, export_trace
from effect_broker.store.pool import Pool, make_pool
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.tenants import Tenants
from effect_contracts.facts import Outcome
from effect_contracts.trace import TraceWriter, verify_lines
from postgres import Database
from protocol.world import ARGUMENTS, RING, contract
from trace_check.memory_log import LoggedStore

DOCUMENT = contract("idempotent")
EFFECTS = 5


@asynccontextmanager
async def pool_of(database: Database, role: DatabaseRole) -> AsyncIterator[Pool]:
    """A pool of a role."""
    url = database.url_for(role)
    async with make_pool(url, None, application_name="test-export", size_max=2) as pool:
        yield pool


async def submitted(store: Any, tenant_id: UUID, count: int, prefix: str = "k") -> list[UUID]:
    """Submit effects of one tool."""
    adapter = SimulatedAdapter({"ledger": LedgerTarget(deduplicates=True)})
    intake = Intake(store, {"simulated": adapter}, RING, AesVault(RING), lambda _name: None)
    tenant = Tenant(tenant_id, "hmac", "test")
    ids = []
    for number in range(count):
        request = EffectRequest(f"{prefix}-{number}", DOCUMENT.tool, ARGUMENTS)
        ids.append((await intake.submit(tenant, request)).intent.effect_id)
    return ids


@pytest.fixture
async def tenant_id(database: Database) -> UUID:
    """A tenant with some effects."""
    async with pool_of(database, DatabaseRole.ADMIN) as pool:
        await Catalogue(pool).apply(DOCUMENT)
        tenant_id = (await Tenants(pool).create("acme", "hmac")).tenant_id
    async with pool_of(database, DatabaseRole.API) as pool:
        await submitted(PostgresApiStore(pool), tenant_id, EFFECTS)
    return tenant_id


@pytest.fixture
async def worker_pool(database: Database) -> AsyncIterator[Pool]:
    """A pool of the worker's role, which an export takes."""
    async with pool_of(database, DatabaseRole.WORKER) as pool:
        yield pool


async def test_an_export_shows_one_moment_and_blocks_nobody(
    database: Database,
    tenant_id: UUID,
    worker_pool: Pool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the middle of it every effect is sent and settled, and others are submitted."""
    monkeypatch.setattr(export, "_BATCH", 2)
    lines: list[bytes] = []

    def meanwhile() -> None:
        sender = Sender(database, str(tenant_id))
        with psycopg.connect(database.superuser_url) as connection:
            rows = connection.execute(
                "SELECT effect_id::text FROM effect_broker.effect_intents"
            ).fetchall()
        for (effect_id,) in rows:
            sender.show(effect_id, Outcome.COMMITTED, "sim_1")
        asyncio.run(later())

    async def later() -> None:
        async with pool_of(database, DatabaseRole.API) as pool:
            await submitted(PostgresApiStore(pool), tenant_id, 1, "later")

    def write(line: bytes) -> None:
        lines.append(line)
        if b'"type":"effect"' in line and sum(b'"type":"effect"' in seen for seen in lines) == 1:
            # In a thread, as another process would; the export stands still with its transaction.
            thread = threading.Thread(target=meanwhile)
            thread.start()
            thread.join()

    await export_trace(worker_pool, write)
    report = verify_lines(lines, whole=True)
    assert report.violations == ()
    assert (report.effects, report.events) == (EFFECTS, EFFECTS)

    after: list[bytes] = []
    await export_trace(worker_pool, after.append)
    assert verify_lines(after, whole=True).events == EFFECTS * 3 + 1


async def test_a_role_that_sees_no_effect_exports_none(
    database: Database, tenant_id: UUID, tmp_path: Path
) -> None:
    del tenant_id
    path = tmp_path / "trace"
    async with pool_of(database, DatabaseRole.ADMIN) as pool:
        with pytest.raises(StoreError):
            await export_to(pool, path)
    assert os.listdir(tmp_path) == []


async def test_a_failed_write_leaves_the_old_file(
    tenant_id: UUID, worker_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del tenant_id
    path = tmp_path / "trace"
    path.write_text("old")

    def fails(_: TraceWriter) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TraceWriter, "end", fails)
    with pytest.raises(OSError, match="No space"):
        await export_to(worker_pool, path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == [path.name]
    monkeypatch.undo()
    # The connection went back without a transaction.
    exported = await export_to(worker_pool, path)
    assert exported.effects == EFFECTS
    assert verify_lines(path.read_bytes().splitlines(keepends=True)).clean


async def test_times_digests_and_ids_have_one_spelling(tenant_id: UUID, worker_pool: Pool) -> None:
    lines: list[bytes] = []
    await export_trace(worker_pool, lines.append, TraceSelection(tenant_id=tenant_id))
    intent = json.loads(lines[2])["intent"]
    assert intent["tenant_id"] == str(tenant_id)
    assert intent["created_at"].endswith("Z")
    assert len(intent["created_at"]) == len("2026-01-01T00:00:00.000000Z")
    assert intent["request_hash"] == intent["request_hash"].lower()
    assert len(intent["request_hash"]) == 64


def test_a_check_of_many_effects_needs_no_more_memory_than_one_of_few() -> None:
    def peak_bytes(count: int) -> int:
        store = LoggedStore(lambda: datetime(2026, 1, 1, tzinfo=UTC))
        store.apply_contract(DOCUMENT)
        asyncio.run(submitted(store, UUID(int=7), count))
        lines = store.trace()

        def read() -> Iterator[bytes]:
            for line in lines:
                yield bytes(bytearray(line))  # a new one, as from a file

        tracemalloc.start()
        assert verify_lines(read(), whole=True).effects == count
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    peak_bytes(10)
    assert peak_bytes(1500) < peak_bytes(50) + 200_000
