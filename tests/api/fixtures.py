"""Fixtures of the folders whose tests speak to the real application; `conftest.py` imports them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from api.deployment import Deployment, deployed
from effect_broker.store.pool import Pool, make_pool
from effect_broker.store.roles import DatabaseRole
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
