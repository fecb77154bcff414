"""Deployments over a migrated database of the test's own, and the real application over them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from api.deployment import CHARGE, LEDGER, TENANTS, Deployment
from effect_broker.keyring import ENV_KEY_RING, ENV_KEY_RING_FILE, new_key_ring
from effect_broker.store.catalogue import Catalogue
from effect_broker.store.pool import Pool, make_pool
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.tenants import Tenants
from migrated import MIGRATED
from postgres import Database, DatabaseTemplate


@pytest.fixture(scope="session")
def database_template() -> DatabaseTemplate:
    """Migrated, without tenants."""
    return MIGRATED


@pytest.fixture
async def admin_pool(database: Database) -> AsyncIterator[Pool]:
    """A pool of the admin role."""
    url = database.url_for(DatabaseRole.ADMIN)
    async with make_pool(url, None, application_name="test-admin", size_max=2) as pool:
        yield pool


@pytest.fixture
async def deployment(
    database: Database, admin_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Deployment:
    """Two tenants with a key each, and the contracts of the demo."""
    for name in [name for name in os.environ if name.startswith("EFFECT_BROKER_")]:
        monkeypatch.delenv(name)
    ring = tmp_path / "key-ring.json"
    ring.write_text(new_key_ring("ring-1", development=True))
    monkeypatch.delenv(ENV_KEY_RING, raising=False)
    monkeypatch.setenv(ENV_KEY_RING_FILE, str(ring))
    for document in (CHARGE, LEDGER):
        await Catalogue(admin_pool).apply(document)
    tenants = Tenants(admin_pool)
    ids, keys, key_ids = {}, {}, {}
    for name in TENANTS:
        ids[name] = (await tenants.create(name, "ring-1")).tenant_id
        made = await tenants.create_key(name)
        keys[name], key_ids[name] = made.api_key, made.key_id
    return Deployment(database, ring, ids, keys, key_ids)


@pytest.fixture
async def application(deployment: Deployment) -> AsyncIterator[FastAPI]:
    """The real application, started."""
    async with deployment.application() as app:
        yield app


@pytest.fixture
async def api(deployment: Deployment, application: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client with the key of the tenant `acme`."""
    async with deployment.client(application) as client:
        yield client
