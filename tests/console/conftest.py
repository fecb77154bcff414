"""A deployment with the console, operators who are signed in, and effects to look at."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fastapi import FastAPI

from api.deployment import Deployment, deployed
from console.browsing import Operator, signed_in
from effect_broker.store.pool import Pool, make_pool
from effect_broker.store.roles import DatabaseRole
from migrated import MIGRATED
from postgres import Database, DatabaseTemplate
from unresolved.scenes import Scenes, scenes_of


@pytest.fixture(scope="session")
def database_template() -> DatabaseTemplate:
    """Migrated, without tenants."""
    return MIGRATED


@pytest.fixture
async def deployment(database: Database, tmp_path: Path) -> AsyncIterator[Deployment]:
    """Two tenants with a key each."""
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
async def scenes(deployment: Deployment) -> AsyncIterator[Scenes]:
    """Effects of the tenant `acme`; none yet."""
    async with scenes_of(deployment.database, deployment.tenant_ids["acme"]) as made:
        yield made


@pytest.fixture
async def operator(application: FastAPI, admin_pool: Pool) -> AsyncIterator[Operator]:
    """An operator of `acme`, signed in."""
    async with signed_in(application, admin_pool, "acme") as made:
        yield made


@pytest.fixture
async def second(application: FastAPI, admin_pool: Pool) -> AsyncIterator[Operator]:
    """Another operator of `acme`."""
    async with signed_in(application, admin_pool, "acme") as made:
        yield made


@pytest.fixture
async def foreigner(application: FastAPI, admin_pool: Pool) -> AsyncIterator[Operator]:
    """An operator of `globex`."""
    async with signed_in(application, admin_pool, "globex") as made:
        yield made
