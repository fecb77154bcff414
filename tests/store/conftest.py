"""Stores over a migrated database of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import TupleRow

from effect_broker.store.api import PostgresApiStore
from effect_broker.store.catalogue import Catalogue
from effect_broker.store.pool import Pool, make_pool
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.runs import PostgresWorkerStore
from effect_broker.store.tenants import Tenants
from migrated import MIGRATED
from postgres import Database, DatabaseTemplate, RunningServer, clone, drop_database
from store.samples import contract


@pytest.fixture(scope="session")
def database_template() -> DatabaseTemplate:
    """Migrated, without tenants."""
    return MIGRATED


@pytest.fixture(scope="session")
def shared_database(running_server: RunningServer, template_name: str) -> Iterator[Database]:
    """One database for all tests that keep to a tenant of their own.

    A module whose tests touch more than that defines this fixture anew, over `database`.
    """
    cloned = clone(running_server, template_name)
    yield cloned
    drop_database(running_server, cloned.name)


@pytest.fixture
def superuser(shared_database: Database) -> Iterator[Connection[TupleRow]]:
    """A superuser's session in autocommit mode."""
    with psycopg.connect(shared_database.superuser_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
async def admin_pool(shared_database: Database) -> AsyncIterator[Pool]:
    """A pool of the admin role."""
    url = shared_database.url_for(DatabaseRole.ADMIN)
    async with make_pool(url, None, application_name="test-admin", size_max=2) as pool:
        yield pool


@pytest.fixture
async def tenant_id(admin_pool: Pool) -> UUID:
    """A tenant of the test's own, with the sample contracts applied."""
    for safety in ("idempotent", "reconcilable", "unsafe", "transactional"):
        await Catalogue(admin_pool).apply(contract(safety))
    return (await Tenants(admin_pool).create(f"t-{uuid4().hex[:12]}", "hmac-1")).tenant_id


@pytest.fixture
async def worker_pool(shared_database: Database) -> AsyncIterator[Pool]:
    """A pool of the worker's role."""
    url = shared_database.url_for(DatabaseRole.WORKER)
    async with make_pool(url, None, application_name="test-worker", size_max=8) as pool:
        yield pool


@pytest.fixture
async def api_pool(shared_database: Database) -> AsyncIterator[Pool]:
    """A pool of the API's role."""
    url = shared_database.url_for(DatabaseRole.API)
    async with make_pool(url, None, application_name="test-api", size_max=8) as pool:
        yield pool


@pytest.fixture
def worker_store(worker_pool: Pool) -> PostgresWorkerStore:
    """The worker's store."""
    return PostgresWorkerStore(worker_pool)


@pytest.fixture
def api_store(api_pool: Pool) -> PostgresApiStore:
    """The API's store."""
    return PostgresApiStore(api_pool)
