"""The command line over a migrated database of the test's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import TupleRow

from cli.commands import Cli
from effect_broker.keyring import new_key_ring
from effect_broker.store.roles import DatabaseRole
from migrated import MIGRATED
from postgres import Database, DatabaseTemplate


@pytest.fixture(scope="session")
def database_template() -> DatabaseTemplate:
    """Migrated, without tenants."""
    return MIGRATED


@pytest.fixture
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nothing of ours in the environment, and a state directory that does not exist."""
    for name in list(os.environ):
        if name.startswith("EFFECT_BROKER_") and not name.startswith("EFFECT_BROKER_TEST_"):
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    monkeypatch.setenv("EFFECT_BROKER_HOME", str(home))
    return home


@pytest.fixture
def cli(
    bare_environment: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Cli:
    """The command line without any settings."""
    return Cli(monkeypatch, capsys)


@pytest.fixture
def ring(bare_environment: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A key ring in the environment; its keys are named `k1`."""
    text = new_key_ring("k1", development=True)
    monkeypatch.setenv("EFFECT_BROKER_KEY_RING", text)
    return text


@pytest.fixture
def broker(cli: Cli, ring: str, database: Database, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line with a login for each role, and a key ring."""
    for name, url in {
        "API": database.url_for(DatabaseRole.API),
        "WORKER": database.url_for(DatabaseRole.WORKER),
        "MIGRATE": database.superuser_url,
    }.items():
        monkeypatch.setenv(f"EFFECT_BROKER_{name}_DATABASE_URL", url)
    return cli


@pytest.fixture
def superuser(database: Database) -> Iterator[Connection[TupleRow]]:
    """A superuser's session in autocommit mode."""
    with psycopg.connect(database.superuser_url, autocommit=True) as connection:
        yield connection
