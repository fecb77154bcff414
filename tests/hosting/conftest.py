"""A broker of real processes for each module, on a migrated database of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import DictRow, dict_row

from effect_broker.proof.broker import ProofBroker
from hosting.scenes import Scene
from migrated import MIGRATED
from postgres import Database, DatabaseTemplate, RunningServer, clone, drop_database


@pytest.fixture(scope="session")
def database_template() -> DatabaseTemplate:
    """Migrated, without tenants."""
    return MIGRATED


@pytest.fixture(scope="module")
def module_database(running_server: RunningServer, template_name: str) -> Iterator[Database]:
    """One database for the tests of a module."""
    cloned = clone(running_server, template_name)
    yield cloned
    drop_database(running_server, cloned.name)


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """A directory for logs, fault points and the target's ledger."""
    path = Path(tempfile.mkdtemp(prefix="effect-broker-hosting-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Further settings of the module's processes; a module may define it anew."""
    return {}


@pytest.fixture(scope="module")
def scene(
    module_database: Database, directory: Path, environment: dict[str, str]
) -> Iterator[Scene]:
    """A broker with an API and a target; the module starts the workers that it wants."""
    broker = ProofBroker(
        directory, module_database.superuser_url, environment=environment, migrated=True
    )
    with broker, Scene(broker) as made:
        broker.prepare()
        broker.start_api()
        yield made


@pytest.fixture
def superuser(module_database: Database) -> Iterator[Connection[DictRow]]:
    """A superuser's session in autocommit mode."""
    with psycopg.connect(
        module_database.superuser_url, autocommit=True, row_factory=dict_row
    ) as connection:
        yield connection
