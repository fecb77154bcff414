"""Deployments over a migrated database of the test's own, and the real application over them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from api.deployment import Deployment, deployed, in_doubt
from api.webhooks import SECRET, SECRET_VARIABLE, Provider, apply, hooked
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
async def deployment(database: Database, tmp_path: Path) -> AsyncIterator[Deployment]:
    """Two tenants with a key each, and the contracts of the demo."""
    async with deployed(database, tmp_path) as made:
        yield made


@pytest.fixture
async def admin_pool(database: Database) -> AsyncIterator[Pool]:
    """A pool of the admin role."""
    url = database.url_for(DatabaseRole.ADMIN)
    async with make_pool(url, None, application_name="test-admin", size_max=2) as pool:
        yield pool


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


@pytest.fixture
async def operator(
    deployment: Deployment, application: FastAPI, admin_pool: Pool
) -> AsyncIterator[httpx.AsyncClient]:
    """A client whose key of `acme` may operate."""
    made = await Tenants(admin_pool).create_key("acme", ("effects", "operate"))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(application),
        base_url="http://broker",
        headers={"Authorization": f"Bearer {made.api_key}"},
    ) as client:
        yield client


@pytest.fixture
async def provider(
    deployment: Deployment, application: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Provider]:
    """The provider of the tenant `acme`, whose tool has a contract with a webhook."""
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    await apply(deployment, hooked())
    async with deployment.client(application, None) as http:
        yield Provider(http, deployment)


@pytest.fixture
async def doubted(api: httpx.AsyncClient, provider: Provider) -> str:
    """An unsafe effect whose outcome nobody knows."""
    return await in_doubt(api, provider.deployment)
