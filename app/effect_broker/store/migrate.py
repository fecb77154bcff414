"""Migration: the roles, the schema `effect_broker`, the engine's schema, and the rights in both.

Everything here may be run again at any time and by several processes at once, and then changes
only what is missing; after `DROP SCHEMA dbos CASCADE` it restores that schema with its rights.
Of several at once, one migrates, and the others wait for it and find nothing to do. Nothing else
in the program runs DDL. A lock of anybody else that is not granted in time ends the migration with
the names of those who hold it: a migration that waits in silence also holds up everybody behind it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final, NoReturn, TypeVar, cast

import psycopg
import sqlalchemy
from alembic import command, op
from alembic.config import Config
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

from effect_broker.log_events import event
from effect_broker.store.roles import LOGIN_ROLES, DatabaseRole, session_settings

T = TypeVar("T")

_log = logging.getLogger(__name__)

SCHEMA: Final = "effect_broker"
SERVER_VERSION_MIN: Final = 150000
LOCK_TIMEOUT_SECONDS: Final = 10.0
# How long one migration waits for another. Making the engine's schema takes some 20 s beside live
# workers; only one that hangs takes longer than this.
PEER_WAIT_SECONDS: Final = 300.0

_MIGRATIONS: Final = Path(__file__).parent / "migrations"
_APPLICATION_NAME: Final = "effect-broker-migrate"
_ADVISORY_LOCK: Final = 0x6566_6665_6374_0001  # "effect" in ASCII; one migration per database
_WATCH_SECONDS: Final = 0.1
_SAY_EVERY_SECONDS: Final = 30.0
# Roles belong to the server: another database's migration may make the same ones at this moment.
_ROLE_TRIES: Final = 20
# Each has waited for a second (`deadlock_timeout`) until the server noticed.
_DEADLOCK_TRIES: Final = 10
_DEADLOCK_PAUSE_SECONDS: Final = 0.2
_ROLE_RACES: Final = frozenset({"42710", "23505", "XX000"})

_EXCLUSIVE: Final = "SELECT pg_try_advisory_lock(%s)"
_HOLDERS: Final = """
SELECT a.pid, coalesce(a.application_name, ''), a.query_start
FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND a.datname = current_database()
  AND (l.classid::bigint << 32) | l.objid::bigint = %s
"""
_BLOCKERS = """
SELECT b.pid, coalesce(b.application_name, ''), b.query_start
FROM pg_stat_activity AS waiting
CROSS JOIN LATERAL unnest(pg_blocking_pids(waiting.pid)) AS blocking (pid)
JOIN pg_stat_activity AS b ON b.pid = blocking.pid
WHERE waiting.datname = current_database() AND waiting.application_name = %s
  AND b.application_name IS DISTINCT FROM waiting.application_name
ORDER BY b.query_start
"""
_VERSION = "SELECT version_num FROM effect_broker.alembic_version"
_IDENTITY = """
INSERT INTO effect_broker.database_identity (
    system_identifier, timeline, database_oid, relation_oid)
SELECT system_identifier, timeline, database_oid, relation_oid FROM effect_broker.this_database
ON CONFLICT (singleton) DO NOTHING
"""


class MigrationError(Exception):
    """The database could not be migrated; the text says why. What was begun is rolled back."""


class MigrationRefused(MigrationError):
    """The server or the login does not fit; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Blocker:
    """A session that holds a lock which the migration waits for."""

    pid: int
    application_name: str
    query_started_at: datetime | None

    def __str__(self) -> str:
        since = self.query_started_at.isoformat() if self.query_started_at else "an unknown time"
        name = self.application_name or "(unnamed)"
        return f"pid {self.pid}, application {name}, its latest statement since {since}"


class MigrationBlocked(MigrationError):
    """A lock was not granted in time.

    Attributes:
        blockers: who holds it, as far as was seen.
    """

    def __init__(self, blockers: tuple[Blocker, ...]) -> None:
        who = "; ".join(str(blocker) for blocker in blockers) or "a session that has just ended"
        super().__init__(
            f"the migration waits for a lock that is held by: {who}. Nothing was changed that is "
            "not repeated by the next run. End that session, or wait for it, and migrate again"
        )
        self.blockers = blockers


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What a migration found and made.

    Attributes:
        version_before: the broker's schema version; None for a new database.
        roles_created: of the whole server.
        engine_created: the engine's schema was missing.
    """

    version_before: str | None
    version: str
    roles_created: tuple[str, ...]
    engine_created: bool


def migrate(
    url: str,
    *,
    migrate_dbos: Callable[[str], None],
    lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
    peer_wait_seconds: float = PEER_WAIT_SECONDS,
) -> MigrationReport:
    """Bring roles, schemas and rights up to this release, with a URL that may do all that.

    `migrate_dbos` creates or brings forward the engine's schema at the URL it is given.

    Raises:
        MigrationBlocked: somebody holds a lock for longer than `lock_timeout_seconds`, or another
            migration runs for longer than `peer_wait_seconds`.
        MigrationRefused: the server is too old, a standby, or the login lacks rights.
        MigrationError: anything else; the text is the server's.
    """
    options = f"-c lock_timeout={lock_timeout_seconds * 1000:.0f}ms -c statement_timeout=0"
    conninfo = _with_options(url, options)
    with _named_blockers(conninfo), psycopg.connect(conninfo, autocommit=True) as admin:
        _check_server(admin)
        _become_the_only_one(admin, peer_wait_seconds)
        roles = _ensure_roles(admin)
        _ensure_schema(admin)
        before = schema_version(admin)
        _upgrade(conninfo)
        _grant_login(admin)
        engine_created = not _has_engine(admin)
        migrate_dbos(_engine_url(url, options))
        _execute_file(admin, "dbos_access")
        admin.execute(_IDENTITY)
        version = schema_version(admin)
    assert version is not None, "a migrated database has a version"
    return MigrationReport(before, version, roles, engine_created)


def schema_version(connection: psycopg.Connection[TupleRow]) -> str | None:
    """Return the version of the broker's schema; None where there is none."""
    found = connection.execute("SELECT to_regclass('effect_broker.alembic_version')").fetchone()
    if found is None or found[0] is None:
        return None
    row = connection.execute(_VERSION).fetchone()
    return None if row is None else str(row[0])


def latest_version() -> str:
    """Return the schema version that this release needs."""
    names = sorted(path.stem for path in (_MIGRATIONS / "versions").glob("v*.py"))
    return names[-1].removeprefix("v").partition("_")[0]


def run_sql_files(*names: str) -> None:
    """For migrations: run files of `migrations/sql`, each as one multi-statement text."""
    raw = op.get_bind().connection.driver_connection
    for name in names:
        _execute_file(cast("psycopg.Connection[TupleRow]", raw), name)


def refuse_downgrade() -> NoReturn:
    """For migrations: there is no way back but a restore.

    Raises:
        MigrationRefused: always.
    """
    raise MigrationRefused("migrations go forward only; restore a backup to go back")


def _execute_file(connection: psycopg.Connection[TupleRow], name: str) -> None:
    # Without parameters psycopg sends the simple protocol, which takes several statements.
    text = (_MIGRATIONS / "sql" / f"{name}.sql").read_text()
    connection.execute(text.encode())


def _with_options(url: str, options: str) -> str:
    given: dict[str, Any] = conninfo_to_dict(url)
    given["options"] = f"{given.get('options') or ''} {options}".strip()
    given["application_name"] = _APPLICATION_NAME
    return make_conninfo(**given)


def _engine_url(url: str, options: str) -> str:
    """The URL for the engine's own migration, so that its locks time out and are seen as well."""
    parsed = sqlalchemy.make_url(url)
    given = parsed.query.get("options", "")
    own = given if isinstance(given, str) else " ".join(given)
    query = {"options": f"{own} {options}".strip(), "application_name": _APPLICATION_NAME}
    return parsed.update_query_dict(query).render_as_string(hide_password=False)


def _check_server(admin: psycopg.Connection[TupleRow]) -> None:
    if admin.info.server_version < SERVER_VERSION_MIN:
        raise MigrationRefused(
            f"PostgreSQL {admin.info.server_version // 10000} is too old; 15 to 18 are supported"
        )
    row = admin.execute("SELECT pg_is_in_recovery()").fetchone()
    if row is not None and row[0]:
        raise MigrationRefused("this server is a standby; migrate the primary")


def _become_the_only_one(admin: psycopg.Connection[TupleRow], timeout_seconds: float) -> None:
    """Wait until no other migration of this database runs.

    By asking again and again: a session that waits inside a statement has a snapshot, for whose
    end the other migration's CREATE INDEX CONCURRENTLY would wait in turn.
    """
    pause = Event()
    waits = max(1, round(timeout_seconds / _WATCH_SECONDS))
    for waited in range(waits):
        row = admin.execute(_EXCLUSIVE, [_ADVISORY_LOCK]).fetchone()
        if row is not None and row[0]:
            return
        if waited % round(_SAY_EVERY_SECONDS / _WATCH_SECONDS) == 0:
            _log.info("another migration of this database runs; waiting for its end, at most "
                      "%.0f s", (waits - waited) * _WATCH_SECONDS,
                      extra=event("migration_waits"))  # fmt: skip
        pause.wait(_WATCH_SECONDS)
    holders = admin.execute(_HOLDERS, [_ADVISORY_LOCK]).fetchall()
    raise MigrationBlocked(tuple(Blocker(*holder) for holder in holders))


def _ensure_roles(admin: psycopg.Connection[TupleRow]) -> tuple[str, ...]:
    created = tuple(role.value for role in DatabaseRole if _racing(partial(_make, admin, role)))
    _racing(partial(_set_defaults, admin))
    for role in DatabaseRole:
        _racing(partial(_join, admin, role))
    return created


def _racing(step: Callable[[], T]) -> T:
    """Run a check-then-act step on roles again where another migration was faster."""
    pause = Event()
    for _ in range(_ROLE_TRIES):
        try:
            return step()
        except psycopg.Error as error:
            if error.sqlstate not in _ROLE_RACES:
                raise
            pause.wait(0.05)
    return step()


def _make(admin: psycopg.Connection[TupleRow], role: DatabaseRole) -> bool:
    if admin.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role.value]).fetchone():
        return False
    login = sql.SQL("LOGIN" if role in LOGIN_ROLES else "NOLOGIN")
    admin.execute(
        sql.SQL("CREATE ROLE {} {} NOSUPERUSER NOCREATEDB NOCREATEROLE").format(
            sql.Identifier(role.value), login
        )
    )
    return True


def _set_defaults(admin: psycopg.Connection[TupleRow]) -> None:
    """Give the API's role the session settings as defaults, for sessions that are not ours."""
    rows = admin.execute(
        "SELECT unnest(s.setconfig) FROM pg_db_role_setting s JOIN pg_roles r ON r.oid = s.setrole"
        " WHERE s.setdatabase = 0 AND r.rolname = %s",
        [DatabaseRole.API.value],
    ).fetchall()
    # Catalogues spell names in their own case ("TimeZone").
    present = {str(row[0]).partition("=")[0].lower() for row in rows}
    for name, value in session_settings().items():
        # Only what is missing: an operator's own choice stays.
        if name not in present:
            admin.execute(
                sql.SQL("ALTER ROLE {} SET {} = {}").format(
                    sql.Identifier(DatabaseRole.API.value), sql.Identifier(name), sql.Literal(value)
                )
            )


def _join(admin: psycopg.Connection[TupleRow], role: DatabaseRole) -> None:
    """Let a login that is no superuser act as the roles it has made."""
    right = "SET" if admin.info.server_version >= 160000 else "MEMBER"
    query = "SELECT pg_has_role(current_user, %s, %s)"
    row = admin.execute(query, [role.value, right]).fetchone()
    if row is not None and not row[0]:
        admin.execute(
            sql.SQL("GRANT {} TO {}").format(
                sql.Identifier(role.value), sql.Identifier(admin.info.user)
            )
        )


def _ensure_schema(admin: psycopg.Connection[TupleRow]) -> None:
    admin.execute(
        sql.SQL("CREATE SCHEMA IF NOT EXISTS {} AUTHORIZATION {}").format(
            sql.Identifier(SCHEMA), sql.Identifier(DatabaseRole.OWNER.value)
        )
    )


def _upgrade(conninfo: str, revision: str = "head") -> None:
    """Run the missing migrations as the owner, all of them in one transaction.

    Beside a broker that works, its transactions and this one may wait for each other, and the
    server ends one of them: then all is begun again.
    """
    pause = Event()
    for _ in range(_DEADLOCK_TRIES - 1):
        try:
            return _upgrade_once(conninfo, revision)
        except (psycopg.Error, sqlalchemy.exc.DBAPIError) as error:
            if not isinstance(_cause(error), psycopg.errors.DeadlockDetected):
                raise
        _log.info("the migration and a session of the broker waited for each other; the migration "
                  "begins again", extra=event("migration_deadlock"))  # fmt: skip
        pause.wait(_DEADLOCK_PAUSE_SECONDS)
    return _upgrade_once(conninfo, revision)


def _upgrade_once(conninfo: str, revision: str) -> None:
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(conninfo),
        poolclass=sqlalchemy.NullPool,
    )
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"SET LOCAL ROLE {DatabaseRole.OWNER.value}")
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
    finally:
        engine.dispose()


def _grant_login(admin: psycopg.Connection[TupleRow]) -> None:
    """Let the roles connect where the operator has closed the database to the public."""
    database = sql.Identifier(admin.info.dbname)
    for role in LOGIN_ROLES:
        row = admin.execute(
            "SELECT has_database_privilege(%s, current_database(), 'CONNECT')", [role.value]
        ).fetchone()
        if row is not None and not row[0]:
            admin.execute(
                sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(
                    database, sql.Identifier(role.value)
                )
            )


def _has_engine(admin: psycopg.Connection[TupleRow]) -> bool:
    row = admin.execute("SELECT to_regclass('dbos.workflow_status')").fetchone()
    return row is not None and row[0] is not None


@contextmanager
def _named_blockers(conninfo: str) -> Iterator[None]:
    """Turn the database's errors inside the block into ours, a lock timeout with its holders.

    Who blocks can be asked only while one waits, so a second session looks on all the time.
    """
    seen: list[tuple[Blocker, ...]] = []
    ended = Event()
    watch = Thread(target=_watch, args=(conninfo, ended, seen), daemon=True)
    watch.start()
    try:
        yield
    except (psycopg.Error, sqlalchemy.exc.DBAPIError) as error:
        ended.set()
        watch.join()
        cause = _cause(error)
        state = cause.sqlstate if isinstance(cause, psycopg.Error) else None
        if state == "55P03":
            raise MigrationBlocked(seen[-1] if seen else ()) from None
        first_line = str(cause).partition("\n")[0]
        if state == "42501":
            raise MigrationRefused(
                f"the login may not do this: {first_line}. Use a superuser, or a login with "
                "CREATEROLE and CREATE on the database"
            ) from None
        raise MigrationError(first_line) from None
    finally:
        ended.set()
        watch.join()


def _cause(error: Exception) -> BaseException | None:
    """The driver's error: Alembic's own statements come wrapped, those of our files do not."""
    return error.orig if isinstance(error, sqlalchemy.exc.DBAPIError) else error


def _watch(conninfo: str, ended: Event, seen: list[tuple[Blocker, ...]]) -> None:
    try:
        with psycopg.connect(conninfo, autocommit=True) as looking:
            while not ended.wait(_WATCH_SECONDS):
                rows = looking.execute(_BLOCKERS, [_APPLICATION_NAME]).fetchall()
                if rows:
                    seen.append(tuple(Blocker(*row) for row in rows))
    except psycopg.Error:
        return  # the migration itself meets the same trouble and reports it
