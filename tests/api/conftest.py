"""Deployments over a migrated database of the test's own, and the real application over them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI

from api.deployment import Deployment, in_doubt
from api.fixtures import admin_pool as admin_pool
from api.fixtures import api as api
from api.fixtures import application as application
from api.fixtures import database_template as database_template
from api.fixtures import deployment as deployment
from api.webhooks import SECRET, SECRET_VARIABLE, Provider, apply, hooked
from effect_broker.store.pool import Pool
from effect_broker.store.tenants import Tenants


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
