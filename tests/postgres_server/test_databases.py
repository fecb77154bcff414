"""Every test's database is its own, looks as its template was built, and is gone afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest

from postgres import (
    CHECKOUT,
    Database,
    DatabaseTemplate,
    RunningServer,
    clone,
    drop_database,
    ensure_template,
    remove_leftovers,
)

ONE_TABLE = "CREATE TABLE built AS SELECT 1 AS number"


def _names(server: RunningServer) -> set[str]:
    with psycopg.connect(server.url) as connection:
        return {row[0] for row in connection.execute("SELECT datname FROM pg_database")}


def _template(digest: str, builds: list[str]) -> DatabaseTemplate:
    def build(url: str) -> None:
        builds.append(url)
        with psycopg.connect(url) as connection:
            connection.execute(ONE_TABLE)

    return DatabaseTemplate(digest, build)


def test_a_template_is_built_once_however_many_ask_at_once(running_server: RunningServer) -> None:
    builds: list[str] = []
    template = _template(f"once-{os.getpid()}", builds)
    threads = [
        threading.Thread(target=ensure_template, args=(running_server, template)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1
    drop_database(running_server, template.database_name)


def test_a_clone_is_like_its_template_and_apart_from_other_clones(
    running_server: RunningServer,
) -> None:
    template = _template(f"clone-{os.getpid()}", [])
    name = ensure_template(running_server, template)
    one, other = clone(running_server, name), clone(running_server, name)
    try:
        with psycopg.connect(one.superuser_url) as connection:
            connection.execute("INSERT INTO built VALUES (2)")
        with psycopg.connect(other.superuser_url) as connection:
            rows = connection.execute("SELECT number FROM built").fetchall()
        assert rows == [(1,)]
    finally:
        for database in (one, other):
            drop_database(running_server, database.name)
        drop_database(running_server, name)


def test_other_migrations_are_another_template(running_server: RunningServer) -> None:
    assert _template("before", []).database_name != _template("after", []).database_name


def test_a_build_that_fails_leaves_no_template(running_server: RunningServer) -> None:
    def fail(url: str) -> None:
        raise RuntimeError("a migration is wrong")

    broken = DatabaseTemplate(f"broken-{os.getpid()}", fail)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="a migration is wrong"):
            ensure_template(running_server, broken)
        assert broken.database_name not in _names(running_server)
    drop_database(running_server, f"{broken.database_name}_unfinished")


def test_a_database_is_dropped_even_while_it_is_used(running_server: RunningServer) -> None:
    database = clone(running_server, "template1")
    with psycopg.connect(database.superuser_url, autocommit=True) as connection:
        drop_database(running_server, database.name)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert database.name not in _names(running_server)


def test_leftovers_of_killed_runs_go_and_those_of_this_run_stay(
    running_server: RunningServer, database: Database
) -> None:
    killed = RunningServer(running_server.choice, running_server.url, "0101000000000000")
    left = clone(killed, "template1")
    remove_leftovers(running_server)
    assert left.name not in _names(running_server)
    assert database.name in _names(running_server)


def test_only_the_newest_templates_are_kept(
    running_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (_template(f"{age}-{os.getpid()}", []) for age in ("old", "new"))
    monkeypatch.setattr("postgres.TEMPLATE_PREFIX", "effect_broker_kept_")
    for template in (old, new):
        ensure_template(running_server, template)
    monkeypatch.setattr("postgres.TEMPLATES_KEPT", 1)
    remove_leftovers(running_server)
    assert old.database_name not in _names(running_server)
    assert new.database_name in _names(running_server)
    drop_database(running_server, new.database_name)


def test_a_url_for_another_role_keeps_server_and_database(database: Database) -> None:
    with psycopg.connect(database.superuser_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {database.name} LOGIN PASSWORD 'a/b@c'")
        try:
            with psycopg.connect(database.url_for(database.name, "a/b@c")) as theirs:
                row = theirs.execute("SELECT current_user, current_database()").fetchone()
            assert row == (database.name, database.name)
        finally:
            connection.execute(f"DROP ROLE {database.name}")


def test_an_empty_database_has_no_tables(empty_database: Database) -> None:
    with psycopg.connect(empty_database.superuser_url) as connection:
        query = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        assert connection.execute(query).fetchone() == (0,)


INNER_TEST = """
import os, pathlib, psycopg, pytest

@pytest.mark.parametrize("number", range(4))
def test_it(database, number):
    with psycopg.connect(database.superuser_url) as connection:
        connection.execute("CREATE TABLE mine ()")
        row = connection.execute("SELECT pg_postmaster_start_time()::text").fetchone()
    worker = os.environ["PYTEST_XDIST_WORKER"]
    pathlib.Path(os.environ["SEEN"], f"{worker}-{number}").write_text(row[0])
"""


def test_workers_of_a_run_share_one_server(running_server: RunningServer, tmp_path: Path) -> None:
    (tmp_path / "test_inner.py").write_text(INNER_TEST)
    (tmp_path / "seen").mkdir()
    environment = dict(os.environ) | {
        "PYTHONPATH": f"{CHECKOUT / 'tests'}:{os.environ.get('PYTHONPATH', '')}",
        "SEEN": str(tmp_path / "seen"),
    }
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "postgres", "test_inner.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    seen = {path.name.split("-")[0]: path.read_text() for path in (tmp_path / "seen").iterdir()}
    assert set(seen) == {"gw0", "gw1"}
    assert len(set(seen.values())) == 1
