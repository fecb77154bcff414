"""What `transact` leaves when its caller, the answer or the server is lost around the COMMIT.

The COMMIT is held inside the server by a deferred trigger that waits for a lock of the test's, so
that what is killed there is killed while it is under way, and not before or after.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError

from effect_broker.durable import migrate_dbos
from effect_broker.postgres.embedded import EmbeddedPostgres
from effect_broker.proof.broker import ProofBroker
from effect_broker.proof.database_proxy import CutPhase, DatabaseProxy
from effect_broker.store.migrate import migrate
from hosting.scenes import Scene
from sdk.callers import Business, business, poster_of, posting_contract
from sdk.conftest import TENANT, Access
from sdk.posting import WAYS, Post, Way, by_psycopg

TESTS = Path(__file__).parents[1]
APPLICATION = "poster"
LOCK = 4711
WAIT_AT_COMMIT = (
    "CREATE FUNCTION public.wait_at_commit() RETURNS trigger LANGUAGE plpgsql AS $$"
    f" BEGIN PERFORM pg_advisory_xact_lock_shared({LOCK}); RETURN NULL; END $$",
    "CREATE CONSTRAINT TRIGGER wait_at_commit AFTER INSERT ON public.orders"
    " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.name LIKE 'held%')"
    " EXECUTE FUNCTION public.wait_at_commit()",
)
GO_ON = ("DROP TRIGGER wait_at_commit ON public.orders", "DROP FUNCTION public.wait_at_commit()")


def execute(scene: Scene, *statements: str) -> None:
    with psycopg.connect(scene.broker.superuser_url, autocommit=True) as superuser:
        for statement in statements:
            superuser.execute(statement.encode())


@contextmanager
def commits_held(scene: Scene) -> Iterator[None]:
    """While the block lasts, the COMMIT of an order that is named `held…` does not end."""
    with psycopg.connect(scene.broker.superuser_url, autocommit=True) as holder:
        holder.execute(f"SELECT pg_advisory_lock({LOCK})".encode())
        yield


@pytest.fixture
def shop(scene: Scene, tmp_path: Path) -> Iterator[Business]:
    scene.broker.apply(posting_contract())
    with business(scene, TENANT, tmp_path) as made:
        execute(scene, *WAIT_AT_COMMIT)
        yield made
        execute(scene, *GO_ON)


def left(shop: Business, name: str) -> tuple[int, int]:
    """How many orders and intents of this name are committed."""
    return shop.orders(name), shop.intents(f"shop:{name}")


def wait_held(shop: Business, count: int) -> None:
    """Wait until so many of its sessions are inside of their COMMIT."""
    shop.scene.wait_for(
        f"{count} commits under way",
        "SELECT count(*) = %s FROM pg_stat_activity WHERE usename = %s"
        " AND query ILIKE 'commit%%' AND wait_event_type = 'Lock'",
        count,
        shop.role,
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("phase", CutPhase)
def test_a_lost_answer_to_a_commit_leaves_row_and_receipt_or_neither(
    scene: Scene, shop: Business, access: Access, way: Way, phase: CutPhase
) -> None:
    name = f"cut_{way.__name__}_{phase}"
    with DatabaseProxy(scene.broker.superuser_url) as proxy:
        url = f"{proxy.url(shop.role)}&application_name={APPLICATION}"
        happened = proxy.cut(APPLICATION, phase)
        with pytest.raises((psycopg.OperationalError, DBAPIError)):
            way(poster_of(shop, access.api_key, url), Post(name))
        assert happened.is_set()
    scene.wait_for(
        "the end of its session",
        "SELECT NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE usename = %s)",
        shop.role,
    )
    committed = phase is CutPhase.AFTER_SERVER
    assert left(shop, name) == ((1, 1) if committed else (0, 0))
    # The caller cannot tell, and runs all of it again.
    assert way(poster_of(shop, access.api_key), Post(name)) is not committed
    assert left(shop, name) == (1, 1)


POSTS = """
import os, sys
from sdk.posting import WAYS, Post, Poster
import effect_broker.direct

for way in WAYS:
    pid = os.fork()
    if not pid:
        os.close(1)  # whoever reads it waits for its end
        way(Poster(*sys.argv[1:]), Post("held_" + way.__name__))
        os._exit(0)
    print(pid, flush=True)
"""


def test_a_caller_killed_while_its_commit_is_under_way_leaves_row_and_receipt(
    scene: Scene, shop: Business, access: Access
) -> None:
    poster = poster_of(shop, access.api_key)
    with commits_held(scene):
        done = subprocess.run(
            [sys.executable, "-c", POSTS, *astuple(poster)],
            env={**os.environ, "PYTHONPATH": str(TESTS)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=60,
        )
        wait_held(shop, len(WAYS))
        for pid in map(int, done.stdout.split()):
            os.kill(pid, signal.SIGKILL)
        assert {left(shop, f"held_{way.__name__}") for way in WAYS} == {(0, 0)}
    scene.wait_for(
        "the end of their sessions",
        "SELECT NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE usename = %s)",
        shop.role,
    )
    # The server had the COMMIT, and ends it with nobody there to hear of it.
    assert {left(shop, f"held_{way.__name__}") for way in WAYS} == {(1, 1)}
    for way in WAYS:
        assert way(poster, Post(f"held_{way.__name__}")) is False
        assert left(shop, f"held_{way.__name__}") == (1, 1)


@pytest.fixture
def fragile(own_postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[tuple[Scene, str]]:
    """A durable server of its own whose commits are not waited for, and an API key.

    So it is for the broker to ask for that, where a receipt is written.
    """
    settings = ("synchronous_commit = off", "wal_writer_delay = '10s'")
    migrate(own_postgres.url, migrate_dbos=migrate_dbos)
    broker = ProofBroker(tmp_path, own_postgres.url, migrated=True)
    with broker, Scene(broker) as made:
        execute(made, *(f"ALTER SYSTEM SET {setting}" for setting in settings))
        execute(made, "SELECT pg_reload_conf()")
        yield made, broker.add_tenant(TENANT)


def test_a_server_that_crashes_around_commits_keeps_row_and_receipt_or_neither(
    fragile: tuple[Scene, str], own_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    scene, api_key = fragile
    scene.broker.apply(posting_contract())
    with business(scene, TENANT, tmp_path) as shop, ThreadPoolExecutor(len(WAYS)) as callers:
        execute(scene, *WAIT_AT_COMMIT)
        poster = poster_of(shop, api_key)
        with psycopg.connect(scene.broker.superuser_url, autocommit=True) as holder:
            holder.execute(f"SELECT pg_advisory_lock({LOCK})".encode())
            held = [callers.submit(way, poster, Post(f"held_{way.__name__}")) for way in WAYS]
            wait_held(shop, len(WAYS))
            assert by_psycopg(poster, Post("answered")) is True
            own_postgres.halt("immediate")
        for calling in held:
            assert isinstance(calling.exception(), psycopg.OperationalError | DBAPIError)
        own_postgres.start()
        names = [f"held_{way.__name__}" for way in WAYS]
        assert {name: left(shop, name) for name in names} == dict.fromkeys(names, (0, 0))
        assert left(shop, "answered") == (1, 1)
        assert by_psycopg(poster, Post("answered")) is False
        for way, name in zip(WAYS, names, strict=True):
            assert way(poster, Post(name)) is True
            assert left(shop, name) == (1, 1)
