"""Deployments over a migrated database of the test's own."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import DictRow, dict_row

from api.fixtures import api as api
from api.fixtures import application as application
from api.fixtures import database_template as database_template
from api.fixtures import deployment as deployment
from postgres import Database


@pytest.fixture
def superuser(database: Database) -> Iterator[Connection[DictRow]]:
    """A superuser's session in autocommit mode."""
    with psycopg.connect(
        database.superuser_url, autocommit=True, row_factory=dict_row
    ) as connection:
        yield connection
