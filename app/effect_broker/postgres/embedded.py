"""The embedded PostgreSQL server: one per state directory, shared by whoever uses that directory.

This module owns starting and stopping it. It promises:

- The server outlives its users. `kill -9` of all of them leaves it running; the next start adopts
  it.
- Any number of processes may start it at once: one server results. The last user's `stop` ends it.
- No pid is believed. Who uses the server, and whether any of its processes lives, is asked of the
  kernel by locks (`users.lock`, `server.lock`); whether it serves, of the server by `pg_isready`.
- A data directory appears whole or not at all, and is never deleted by us.
- It listens on a Unix socket in a directory only its own account may enter, never on TCP.
- What `COMMIT` has acknowledged survives a crash: fsync and synchronous_commit are on.

Lock order: start.lock, then users.lock, then server.lock. start.lock is held for the length of a
start or stop only. Linux and macOS only: Windows has neither flock nor a way to step down from its
administrator.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Literal, Self
from urllib.parse import quote

from effect_broker.postgres.account import Account, account_for
from effect_broker.postgres.binaries import Binaries, BinarySearch, examine, find_binaries
from effect_broker.postgres.locks import Countdown, FileLock
from effect_broker.postgres.socket import PORT, make_private_directory, socket_directory

__all__ = ["EmbeddedPostgres", "EmbeddedPostgresError", "find_binaries"]

ShutdownMode = Literal["fast", "immediate"]

START_SECONDS = 60.0  # Cold start takes 1 to 2 s; the rest is for crash recovery on a slow disk.
STOP_SECONDS = 60.0
UNREACHABLE_HOME_PARENT = Path("/var/lib/effect-broker")
LOG_NAME = "server.log"
LOG_BYTES_MAX = 8 * 1024 * 1024
RESERVED_SETTINGS = frozenset(
    {"listen_addresses", "port", "unix_socket_directories", "unix_socket_permissions"}
)

_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        # The ledger: an acknowledged commit is on the disk.
        "fsync": "on",
        "full_page_writes": "on",
        "synchronous_commit": "on",
        # An API, some workers with their DBOS pools, the CLI: a dozen pools of ten, and room.
        "max_connections": "200",
        "shared_buffers": "32MB",
        "jit": "off",
        "cluster_name": "effect-broker",
        # A log of errors must not become a copy of arguments: neither statements nor row details.
        "log_min_error_statement": "panic",
        "log_error_verbosity": "terse",
        "log_checkpoints": "off",
    }
)
# On macOS fsync alone leaves data in the drive's cache (PostgreSQL manual, 28.1 Reliability).
_MACOS_SETTINGS: Mapping[str, str] = MappingProxyType({"wal_sync_method": "fsync_writethrough"})


class EmbeddedPostgresError(RuntimeError):
    """The embedded server cannot do what was asked; the text says what to do about it."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where everything of one server is, and who runs it."""

    storage: Path
    account: Account
    binaries: Path

    @property
    def data(self) -> Path:
        return self.storage / "data"

    @property
    def log(self) -> Path:
        return self.data / LOG_NAME


class EmbeddedPostgres:
    """One process's use of the server that belongs to a state directory.

    `binaries` names the directory of the server's programs; without it they are searched for.
    `settings` are server settings by name (such as `fsync`); they count for the process that really
    starts the server, not for those that adopt it. Raises `ValueError` for a setting that would
    open the server to others, `EmbeddedPostgresError` on Windows.
    """

    def __init__(
        self,
        home: Path,
        binaries: Path | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        if sys.platform not in ("linux", "darwin"):
            raise EmbeddedPostgresError(
                f"the embedded Postgres runs on Linux and macOS only, and this is {sys.platform}. "
                "Set EFFECT_BROKER_DATABASE_URL to a PostgreSQL server, or use WSL"
            )
        reserved = RESERVED_SETTINGS & settings.keys()
        if reserved:
            raise ValueError(f"settings the embedded server fixes itself: {sorted(reserved)}")
        self.home = home.absolute()
        self.settings = dict(settings)
        self.launched = False
        """Whether the last `start` began a server, rather than adopting one that ran."""
        self._binaries = binaries
        self._layout: _Layout | None = None
        self._start_lock = FileLock(self.home / "start.lock")
        self._users_lock = FileLock(self.home / "users.lock")
        self._server_lock = FileLock(self.home / "server.lock")

    def start(self, timeout_seconds: float = START_SECONDS) -> str:
        """Make sure the server runs, become one of its users, and return its superuser's URL.

        Starting again is harmless and finds a server that has died meanwhile. Raises
        `EmbeddedPostgresError` when no server answers within the time.
        """
        try:
            self._make_home()
            self._join(Countdown(timeout_seconds))
        except OSError as problem:
            raise EmbeddedPostgresError(
                f"{self.home} cannot hold the embedded Postgres: {problem}. Set EFFECT_BROKER_HOME "
                "to a local directory that may be written"
            ) from problem
        return self.url

    def stop(self, timeout_seconds: float = STOP_SECONDS) -> bool:
        """Cease to be a user; the last one ends the server.

        True if this call was the one that ended it, False if others still use it or we did not.
        Raises `EmbeddedPostgresError` when the server does not end within the time.
        """
        if not self._users_lock.held:
            return False
        countdown = Countdown(timeout_seconds)
        with self._alone(countdown):
            self._users_lock.release()
            if not self._users_lock.try_acquire():
                return False
            try:
                self._shut_down(self._prepared, "fast", countdown)
            finally:
                self._users_lock.release()
        return True

    def halt(self, mode: ShutdownMode = "fast", timeout_seconds: float = STOP_SECONDS) -> None:
        """End the server under all its users, to test an outage; `start` brings it back.

        `immediate` is a crash: the server drops everything and recovers at the next start.
        """
        countdown = Countdown(timeout_seconds)
        with self._alone(countdown):
            self._shut_down(self._prepared, mode, countdown)

    def restart(self, mode: ShutdownMode = "fast", timeout_seconds: float = START_SECONDS) -> None:
        """End the server under all its users and start it again; URLs stay valid."""
        self.halt(mode, timeout_seconds)
        self.start(timeout_seconds)

    @property
    def url(self) -> str:
        """The superuser's URL; known once the server was started."""
        directory = quote(str(socket_directory(self._prepared.data)), safe="/")
        return f"postgresql://postgres@/postgres?host={directory}&port={PORT}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _join(self, countdown: Countdown) -> None:
        with self._alone(countdown):
            joined = not self._users_lock.held
            if joined and not self._users_lock.try_acquire(shared=True):
                # Only a stop takes it for itself, and never without start.lock, which we hold.
                raise EmbeddedPostgresError(f"{self._users_lock.path} is locked by a stranger")
            try:
                self._ensure_running(self._prepare(), countdown)
            except BaseException:
                if joined:
                    self._users_lock.release()
                raise

    # -- under start.lock -------------------------------------------------------------------------

    @contextmanager
    def _alone(self, countdown: Countdown) -> Iterator[None]:
        """Hold start.lock: nobody else starts or stops this server meanwhile."""
        if not self._start_lock.acquire(countdown):
            raise EmbeddedPostgresError(
                f"another process has been starting or stopping the server in {self.home} for "
                f"{countdown.total_seconds:.0f} s. Wait for it, or end it and try again"
            )
        try:
            yield
        finally:
            self._start_lock.release()

    def _make_home(self) -> None:
        if not self.home.is_dir():
            self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
            if os.geteuid() == 0:
                self.home.chmod(0o711)  # the account root steps down to must pass through
            # A state directory lives in a project: its contents are not for version control.
            (self.home / ".gitignore").write_text("*\n")
        owner = self.home.stat().st_uid
        if owner != os.geteuid() and os.geteuid() != 0:
            raise EmbeddedPostgresError(
                f"{self.home} belongs to another account (uid {owner}). Set EFFECT_BROKER_HOME to "
                "a directory of your own"
            )

    @property
    def _prepared(self) -> _Layout:
        assert self._layout is not None, "start comes first"
        return self._layout

    def _prepare(self) -> _Layout:
        """Settle where the server's files are and who runs it, alike for every user of a home."""
        if self._layout is None:
            entry = self.home / "postgres"
            account = _account(entry / "data")
            storage = self._storage(entry, account)
            directory = self._choose_binaries(storage / "data").directory
            self._layout = _Layout(storage, account, _reachable(directory, storage, account))
        return self._layout

    def _storage(self, entry: Path, account: Account) -> Path:
        """The directory `postgres` of the home, or what it links to.

        Root's own directories are often closed to the account the server runs under. Then the files
        go below /var/lib under a name never used before, and the link remembers where.
        """
        if entry.is_symlink() or entry.exists():
            if not entry.is_dir():
                raise EmbeddedPostgresError(
                    f"{entry} leads to {entry.resolve()}, which is gone. Restore it, or delete "
                    f"{self.home} to begin with an empty database"
                )
            return entry.resolve()
        if account.reaches(self.home):
            entry.mkdir()
            entry.chmod(0o711 if account.steps_down else 0o700)  # whatever the umask
            return entry.resolve()
        UNREACHABLE_HOME_PARENT.mkdir(parents=True, exist_ok=True, mode=0o755)
        storage = Path(tempfile.mkdtemp(prefix="postgres-", dir=UNREACHABLE_HOME_PARENT))
        storage.chmod(0o711)
        if not account.reaches(storage):
            storage.rmdir()
            raise EmbeddedPostgresError(
                f"root hands the server to another account, which can enter neither {self.home} "
                f"nor {UNREACHABLE_HOME_PARENT}. Set EFFECT_BROKER_HOME to a directory outside "
                "root's home, or run as an ordinary user"
            )
        entry.symlink_to(storage)
        return storage

    def _choose_binaries(self, data: Path) -> Binaries:
        major = _major_of(data)
        if self._binaries is None:
            search = find_binaries(major=major)
        else:
            verdict = examine(self._binaries, "local", major=major)
            found = verdict if isinstance(verdict, Binaries) else None
            search = BinarySearch(found, () if isinstance(verdict, Binaries) else (verdict,))
        if search.found is None:
            tried = "\n".join(f"- {one.place}: {one.reason}" for one in search.passed_over)
            raise EmbeddedPostgresError(
                f"no PostgreSQL programs fit for {data}. Tried:\n{tried}\n"
                "Install the extra effect-broker[embedded], or the system's PostgreSQL packages"
            )
        return search.found

    def _ensure_running(self, layout: _Layout, countdown: Countdown) -> None:
        self.launched = False
        if not layout.data.exists():
            self._initialise(layout, countdown)
        while not _answers(layout):
            # Free means that not one process of an earlier server lives, whatever its files say.
            if self._server_lock.try_acquire():
                self._launch(layout, countdown)
                self.launched = True
            elif not countdown.wait_a_little():
                raise EmbeddedPostgresError(
                    f"the server of {self.home} lives but did not answer within "
                    f"{countdown.total_seconds:.0f} s; its log is {layout.log}"
                )

    def _initialise(self, layout: _Layout, countdown: Countdown) -> None:
        """Make a cluster aside and rename it into place, so that half of one is never used."""
        for abandoned in layout.storage.glob("initdb-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        aside = Path(tempfile.mkdtemp(prefix="initdb-", dir=layout.storage))
        layout.account.own(aside)
        command = ["initdb", "--pgdata", str(aside), "--username", "postgres", "--auth", "trust"]
        command += ["--encoding", "UTF8", "--locale", "C", "--no-instructions"]
        if self.settings.get("fsync") == "off":
            command.append("--no-sync")
        # initdb shares start.lock: if we are killed now, the next start waits until it has ended.
        result = _run(
            layout, *command, countdown=countdown, shared_file=self._start_lock.descriptor
        )
        if result.returncode != 0:
            shutil.rmtree(aside, ignore_errors=True)
            raise EmbeddedPostgresError(
                f"initdb failed in {layout.storage}: {result.stderr.strip()[-1000:]}"
            )
        aside.rename(layout.data)
        _sync_directory(layout.storage)

    def _launch(self, layout: _Layout, countdown: Countdown) -> None:
        """Start a server while holding server.lock, and leave the lock to it and its children."""
        # PostgreSQL itself would believe the pids in these files, which by now may be anybody's.
        for stale in ("postmaster.pid", f".s.PGSQL.{PORT}.lock"):
            (layout.data / stale).unlink(missing_ok=True)
        listening = socket_directory(layout.data)
        if listening != layout.data:
            make_private_directory(listening, layout.account)
            (listening / f".s.PGSQL.{PORT}.lock").unlink(missing_ok=True)
        if layout.log.exists() and layout.log.stat().st_size > LOG_BYTES_MAX:
            layout.log.replace(layout.log.with_suffix(".log.1"))
        logged_before_bytes = layout.log.stat().st_size if layout.log.exists() else 0
        try:
            # PGDATA and a relative log name instead of options: pg_ctl would put those through a
            # shell without quoting.
            result = _run(
                layout, "pg_ctl", "start", "--silent", "--wait",
                "--timeout", str(max(1, int(countdown.left_seconds))),
                "--log", LOG_NAME, "--options", self._options(listening),
                countdown=countdown, shared_file=self._server_lock.descriptor,
            )  # fmt: skip
        finally:
            self._server_lock.forget()
        if result.returncode != 0:
            raise EmbeddedPostgresError(
                f"the server of {self.home} did not start: {result.stderr.strip()[-500:]}\n"
                f"The end of its log {layout.log}:\n{_log_since(layout.log, logged_before_bytes)}"
            )

    def _options(self, listening: Path) -> str:
        settings = dict(_SETTINGS)
        if sys.platform == "darwin":
            settings |= _MACOS_SETTINGS
        settings |= self.settings
        settings |= {
            "listen_addresses": "",
            "port": str(PORT),
            "unix_socket_directories": str(listening),
            "unix_socket_permissions": "0700",
        }
        return shlex.join(
            word for name, value in settings.items() for word in ("-c", f"{name}={value}")
        )

    def _shut_down(self, layout: _Layout, mode: ShutdownMode, countdown: Countdown) -> None:
        """End the server and wait until not one of its processes lives."""
        asked: list[ShutdownMode] = []
        while not self._server_lock.try_acquire():
            # Signal only while a postmaster answers: then the pid in its file is its own.
            half_gone = countdown.left_seconds < countdown.total_seconds / 2
            wanted: ShutdownMode = "immediate" if half_gone else mode
            if wanted not in asked and _answers(layout, accepting=False):
                asked.append(wanted)
                _run(layout, "pg_ctl", "stop", "--silent", "--no-wait", "--mode", wanted,
                     countdown=countdown)  # fmt: skip
            if not countdown.wait_a_little():
                raise EmbeddedPostgresError(
                    f"the server of {self.home} did not end within "
                    f"{countdown.total_seconds:.0f} s; its log is {layout.log}"
                )
        if (listening := socket_directory(layout.data)) != layout.data:
            shutil.rmtree(listening, ignore_errors=True)
        self._server_lock.release()


def _account(data: Path) -> Account:
    try:
        return account_for(data if data.exists() else None)
    except LookupError as missing:
        raise EmbeddedPostgresError(str(missing)) from missing


def _major_of(data: Path) -> int | None:
    """The version that made a data directory; None where there is none yet."""
    if not data.exists():
        return None
    try:
        return int((data / "PG_VERSION").read_text().strip())
    except (OSError, ValueError) as problem:
        raise EmbeddedPostgresError(
            f"{data} is not a PostgreSQL data directory ({problem}). It is left as it is: move it "
            "away to begin with an empty database"
        ) from problem


def _reachable(directory: Path, storage: Path, account: Account) -> Path:
    """The same programs where the server's account can run them; copied once if need be."""
    if not account.steps_down or account.reaches(directory):
        return directory
    package = directory.parents[1]  # the wheel's: package / pginstall / bin
    stamp = f"{directory}:{(directory / 'postgres').stat().st_mtime_ns}"
    copy = storage / f"binaries-{hashlib.sha256(stamp.encode()).hexdigest()[:12]}"
    if not copy.exists():
        aside = Path(tempfile.mkdtemp(prefix="copy-", dir=storage))
        # The programs find their libraries beside the package, as in site-packages.
        for part in (package, package.with_name(f"{package.name}.libs")):
            if part.is_dir():
                shutil.copytree(part, aside / part.name, symlinks=True)
        aside.chmod(0o755)
        aside.rename(copy)
    copied = copy / package.name / directory.relative_to(package)
    if not account.reaches(copied):
        raise EmbeddedPostgresError(f"{directory} cannot be run by the server's account")
    return copied


def _run(
    layout: _Layout,
    program: str,
    *arguments: str | Path,
    countdown: Countdown,
    shared_file: int | None = None,
) -> subprocess.CompletedProcess[str]:
    try:
        return layout.account.run(
            [layout.binaries / program, *arguments],
            # Somewhat longer than the program's own limit, so that its own words are heard.
            timeout_seconds=countdown.left_seconds + 5,
            directory=layout.data if layout.data.exists() else Path("/"),
            variables={"PGDATA": str(layout.data)},
            shared_files=() if shared_file is None else (shared_file,),
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise EmbeddedPostgresError(f"{program} did not run to its end: {problem}") from problem


def _answers(layout: _Layout, *, accepting: bool = True) -> bool:
    """Whether a server serves our socket; with `accepting=False`, starting or ending counts too."""
    if not layout.data.exists():
        return False
    # Exit status of pg_isready: 0 accepts, 1 refuses for now, 2 no response, 3 bad parameters.
    status = _run(
        layout,
        *("pg_isready", "--quiet", "--timeout", "3"),
        *("--host", socket_directory(layout.data), "--port", str(PORT)),
        countdown=Countdown(10),
    ).returncode
    return status == 0 or (status == 1 and not accepting)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _log_since(log: Path, offset_bytes: int) -> str:
    try:
        with log.open("rb") as lines:
            lines.seek(offset_bytes)
            return lines.read()[-2000:].decode(errors="replace").strip()
    except OSError:
        return "(there is none)"
