"""A deployment with two tenants; the first has effects in every standing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from api.deployment import Deployment, deployed
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
async def scenes(deployment: Deployment) -> AsyncIterator[Scenes]:
    """Effects of the tenant `acme`; none yet."""
    async with scenes_of(deployment.database, deployment.tenant_ids["acme"]) as made:
        yield made


@pytest.fixture
async def api(deployment: Deployment) -> AsyncIterator[httpx.AsyncClient]:
    """A client with the key of the tenant `acme`."""
    async with deployment.application() as app, deployment.client(app) as client:
        yield client
