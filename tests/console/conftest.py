"""A deployment with the console, operators who are signed in, and effects to look at."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI

from api.deployment import Deployment
from api.fixtures import admin_pool as admin_pool
from api.fixtures import application as application
from api.fixtures import database_template as database_template
from api.fixtures import deployment as deployment
from console.browsing import Operator, signed_in
from effect_broker.store.pool import Pool
from unresolved.scenes import Scenes, scenes_of


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
