"""Deployments over a migrated database of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
from fastapi import FastAPI
from psycopg import Connection
from psycopg.rows import DictRow, dict_row

from api.deployment import Deployment, deployed
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
def superuser(database: Database) -> Iterator[Connection[DictRow]]:
    """A superuser's session in autocommit mode."""
    with psycopg.connect(
        database.superuser_url, autocommit=True, row_factory=dict_row
    ) as connection:
        yield connection
