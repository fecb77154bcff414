"""A deployment with two tenants; the first has effects in every standing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from api.deployment import Deployment
from api.fixtures import database_template as database_template
from api.fixtures import deployment as deployment
from unresolved.scenes import Scenes, scenes_of


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
