"""Traces to check: one of a real run, and those of schedules over the in-memory store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from effect_broker.proof.broker import ProofBroker
from hosting.scenes import Scene
from migrated import MIGRATED
from postgres import Database, DatabaseTemplate, RunningServer, clone, drop_database
from trace_check import real_run


@pytest.fixture(scope="session")
def database_template() -> DatabaseTemplate:
    """Migrated, without tenants."""
    return MIGRATED


@pytest.fixture(scope="session")
def run_database(running_server: RunningServer, template_name: str) -> Iterator[Database]:
    """The database of the scripted run."""
    cloned = clone(running_server, template_name)
    yield cloned
    drop_database(running_server, cloned.name)


@pytest.fixture(scope="session")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For logs, fault points and the target's ledger."""
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="session")
def real_lines(run_database: Database, run_directory: Path) -> list[bytes]:
    """The export of the scripted run."""
    broker = ProofBroker(run_directory, run_database.superuser_url, migrated=True)
    with broker, Scene(broker) as scene:
        broker.prepare()
        broker.start_api()
        real_run.run(scene)
        scene.kill_workers()
        return real_run.exported(scene, run_directory / "trace.jsonl")
