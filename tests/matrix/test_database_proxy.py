"""The proxy cuts one commit, on the side that was asked for, and the client cannot tell which."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import pytest

from effect_broker.proof.broker import wait_until
from effect_broker.proof.database_proxy import CutPhase, DatabaseProxy
from postgres import Database

MET_SECONDS = 30


@pytest.fixture
def proxy(database: Database) -> Iterator[DatabaseProxy]:
    """A proxy in front of a database with one table."""
    with psycopg.connect(database.superuser_url) as connection:
        connection.execute("CREATE TABLE rows (n int)")
    with DatabaseProxy(database.superuser_url) as made:
        yield made


def connect(proxy: DatabaseProxy, application: str = "cut-me") -> psycopg.Connection:
    url = proxy.url("postgres")
    return psycopg.connect(url, autocommit=True, application_name=application, prepare_threshold=0)


def stored(database: Database) -> int:
    with psycopg.connect(database.superuser_url) as connection:
        row = connection.execute("SELECT count(*) FROM rows").fetchone()
    assert row is not None
    return int(row[0])


def insert(connection: psycopg.Connection, *, pipelined: bool) -> None:
    """One transaction, as the store writes them."""
    if pipelined:
        connection.execute("BEGIN")
        with connection.pipeline():
            connection.execute("INSERT INTO rows VALUES (%s)", [1])
            connection.execute("COMMIT")
        return
    for statement in ("BEGIN", "INSERT INTO rows VALUES (1)", "COMMIT"):
        connection.execute(statement)


@pytest.mark.parametrize("pipelined", [True, False])
@pytest.mark.parametrize(
    ("phase", "rows"), [(CutPhase.BEFORE_SERVER, 0), (CutPhase.AFTER_SERVER, 1)]
)
def test_a_cut_commit_has_happened_or_not_and_looks_the_same(
    database: Database, proxy: DatabaseProxy, phase: CutPhase, rows: int, pipelined: bool
) -> None:
    with connect(proxy) as connection:
        happened = proxy.cut("cut-me", phase)
        with pytest.raises(psycopg.OperationalError) as lost:
            insert(connection, pipelined=pipelined)
        assert happened.wait(MET_SECONDS)
        assert lost.value.sqlstate is None
        assert connection.closed
    assert stored(database) == rows


@pytest.mark.parametrize(
    ("phase", "rows"), [(CutPhase.BEFORE_SERVER, 0), (CutPhase.AFTER_SERVER, 1)]
)
def test_a_statement_that_commits_by_itself_is_cut_too(
    database: Database, proxy: DatabaseProxy, phase: CutPhase, rows: int
) -> None:
    with connect(proxy) as connection:
        happened = proxy.cut("cut-me", phase, "INSERT INTO rows")
        with pytest.raises(psycopg.OperationalError):
            connection.execute("INSERT INTO rows VALUES (%s)", [1])
        assert happened.wait(MET_SECONDS)
    assert stored(database) == rows


def test_only_the_named_application_is_cut_and_only_once(
    database: Database, proxy: DatabaseProxy
) -> None:
    happened = proxy.cut("cut-me", CutPhase.BEFORE_SERVER)
    with connect(proxy, "another") as other:
        insert(other, pipelined=True)
    assert not happened.is_set()
    with connect(proxy) as first, pytest.raises(psycopg.OperationalError):
        insert(first, pipelined=True)
    with connect(proxy) as second:
        insert(second, pipelined=True)
    assert stored(database) == 2


def test_nothing_is_cut_that_is_not_armed(database: Database, proxy: DatabaseProxy) -> None:
    happened = proxy.cut("cut-me", CutPhase.BEFORE_SERVER)
    proxy.disarm()
    with connect(proxy) as connection:
        insert(connection, pipelined=False)
        insert(connection, pipelined=True)
    assert not happened.is_set()
    assert stored(database) == 2


def test_a_client_that_resets_leaves_no_session_behind(
    database: Database, proxy: DatabaseProxy
) -> None:
    words = f"user\0postgres\0database\0{database.name}\0application_name\0goes-away\0\0".encode()
    startup = struct.pack("!II", len(words) + 8, 196608) + words
    port = urlsplit(proxy.url("postgres")).port

    def sessions() -> int:
        found = watching.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'goes-away'"
        ).fetchone()
        assert found is not None
        return int(found[0])

    with psycopg.connect(database.superuser_url, autocommit=True) as watching:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(startup)
            wait_until(lambda: sessions() == 1, "its session", MET_SECONDS)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_until(lambda: sessions() == 0, "the end of its session", MET_SECONDS)
