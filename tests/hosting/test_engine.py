"""What is assumed of the engine, so that an upgrade of it cannot surprise us."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psycopg
import pytest
from dbos import DBOS
from dbos import _serialization as dbos_serialization

from effect_broker import hosting
from postgres import Database

PROGRAM = Path(__file__).with_name("engine_program.py")


def ask(database: Database, question: str, marker: Path) -> dict[str, Any]:
    """Run the engine in a process of its own; return what it did."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), database.superuser_url, question, str(marker)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_the_engine_is_the_version_that_was_measured() -> None:
    assert version("dbos").startswith("3.4."), "measure the engine again before this changes"


def test_the_private_names_exist_with_the_signatures_that_are_used() -> None:
    recover = inspect.signature(DBOS._recover_pending_workflows)
    assert list(recover.parameters) == ["executor_ids"]
    deserialize = inspect.signature(dbos_serialization.DefaultSerializer.deserialize)
    assert len(deserialize.parameters) == 2
    assert "recover_workflows" not in dir(DBOS), "a public name has come: use that one"


def test_the_sql_function_takes_the_arguments_that_submit_gives(module_database: Database) -> None:
    with psycopg.connect(module_database.superuser_url) as connection:
        row = connection.execute(
            "SELECT p.proargnames, p.prosecdef FROM pg_proc p"
            " WHERE p.oid = 'dbos.enqueue_workflow'::regproc"
        ).fetchone()
    assert row is not None
    names, security_definer = row
    assert {
        "workflow_name",
        "queue_name",
        "positional_args",
        "workflow_id",
        "app_version",
        "application_name",
        "priority",
        "delay_until_epoch_ms",
    } <= set(names)
    assert not security_definer


def test_the_names_in_the_submit_function_are_those_of_hosting(module_database: Database) -> None:
    with psycopg.connect(module_database.superuser_url) as connection:
        row = connection.execute(
            "SELECT prosrc FROM pg_proc WHERE oid = 'effect_broker.enqueue_run'::regproc"
        ).fetchone()
    assert row is not None
    for name in (
        hosting.WORKFLOW_NAME,
        hosting.QUEUE_NAME,
        hosting.APPLICATION_NAME,
        hosting.APPLICATION_VERSION,
    ):
        assert f"'{name}'" in row[0]
    assert f"{hosting.DBOS_SCHEMA}.enqueue_workflow" in row[0]


@pytest.fixture(scope="module")
def claims(module_database: Database, directory: Path) -> dict[str, Any]:
    """What the engine did with a full queue and a dead executor's run."""
    return ask(module_database, "claims", directory / "marker")


def test_runs_are_claimed_by_priority_and_then_by_age(claims: dict[str, Any]) -> None:
    assert claims["in_order"] == ["first", "middle", "late", "later", "last"]


def test_a_dead_executors_run_is_recovered_once_and_nobody_elses(claims: dict[str, Any]) -> None:
    assert claims["before"] == ["PENDING", "dead"], "there is no recovery without us"
    assert claims["handles"] == 1
    assert claims["again"] == 0
    assert claims["owner"] == ["PENDING", "successor"]
    assert claims["recovered"] == ["lost"]
    assert claims["foreign"] == ["PENDING", "alive"]


@pytest.mark.parametrize(
    ("question", "unpickled"), [("open_pickle", True), ("refused_pickle", False)]
)
def test_a_pickled_row_is_unpickled_unless_it_is_refused(
    database: Database, tmp_path: Path, question: str, unpickled: bool
) -> None:
    seen = ask(database, question, tmp_path / "marker")
    assert seen["unpickled"] is unpickled
