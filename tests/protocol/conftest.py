"""Worlds in memory, one for each safety class, and stores over a migrated database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import pytest

from effect_broker.store.api import PostgresApiStore
from effect_broker.store.catalogue import Catalogue
from effect_broker.store.pool import Pool, make_pool
from effect_broker.store.roles import HEARTBEAT_TTL_SECONDS, DatabaseRole
from effect_broker.store.runs import PostgresWorkerStore
from effect_broker.store.tenants import Tenants
from migrated import MIGRATED
from postgres import Database, DatabaseTemplate
from protocol.world import World


@pytest.fixture
def idempotent() -> World:
    """A target that keeps keys."""
    return World("idempotent")


@pytest.fixture
def reconcilable() -> World:
    """A target that can be asked."""
    return World("reconcilable")


@pytest.fixture
def unsafe() -> World:
    """A target that can do neither."""
    return World("unsafe")


@pytest.fixture
def transactional() -> World:
    """A target in the broker's own database."""
    return World("transactional")


# Postgres ----------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def database_template() -> DatabaseTemplate:
    """Migrated, without tenants."""
    return MIGRATED


@pytest.fixture
async def worker_pool(database: Database) -> AsyncIterator[Pool]:
    """A pool of the worker's role."""
    url = database.url_for(DatabaseRole.WORKER)
    # With the limits of the product: who is stopped inside a transaction loses its session here.
    async with make_pool(
        url,
        None,
        application_name="test-worker",
        size_max=6,
        ttl_seconds=HEARTBEAT_TTL_SECONDS - 0.1,
    ) as pool:
        yield pool


@pytest.fixture
def worker_store(worker_pool: Pool) -> PostgresWorkerStore:
    """The worker's store."""
    return PostgresWorkerStore(worker_pool)


@pytest.fixture
async def api_store(database: Database) -> AsyncIterator[PostgresApiStore]:
    """The API's store."""
    url = database.url_for(DatabaseRole.API)
    async with make_pool(url, None, application_name="test-api", size_max=2) as pool:
        yield PostgresApiStore(pool)


@pytest.fixture
async def catalogue(database: Database) -> AsyncIterator[Catalogue]:
    """Where contracts are applied."""
    url = database.url_for(DatabaseRole.ADMIN)
    async with make_pool(url, None, application_name="test-admin", size_max=1) as pool:
        yield Catalogue(pool)


@pytest.fixture
async def tenant_id(database: Database) -> UUID:
    """A tenant."""
    url = database.url_for(DatabaseRole.ADMIN)
    async with make_pool(url, None, application_name="test-admin", size_max=1) as pool:
        return (await Tenants(pool).create(f"t-{uuid4().hex[:12]}", "hmac")).tenant_id
