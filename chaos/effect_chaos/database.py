"""The database of a run: a server of its own that is crashed at will, and its superuser's hands.

Everything that the faults do to Postgres is here, and the dump of the broker's tables for the
reader of a failure. The auditor is not told of that dump.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, LiteralString
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg

from effect_chaos.processes import Child, ProcessFailed, run_command

API_ROLE: Final = "effect_broker_api"
WORKER_ROLE: Final = "effect_broker_worker"

_READY: Final = "cluster ready at "
_TRIES: Final = 40
_PAUSE_SECONDS: Final = 0.25
_LOCK_SECONDS: Final = 2

# No ciphertext: it says nothing to a reader, and a dump may be sent to somebody.
_DUMPED: Final[Mapping[str, LiteralString]] = {
    "intents": "SELECT to_jsonb(t) FROM effect_broker.effect_intents t ORDER BY created_at",
    "attempts": "SELECT to_jsonb(t) FROM effect_broker.effect_attempts t ORDER BY started_at",
    "evidence": "SELECT to_jsonb(t) FROM effect_broker.effect_evidence t ORDER BY recorded_at",
    "receipts": "SELECT to_jsonb(t) FROM effect_broker.effect_receipts t ORDER BY recorded_at",
    "events": "SELECT to_jsonb(t) FROM effect_broker.effect_events t ORDER BY at, sequence",
    "mutation_keys": "SELECT to_jsonb(t) FROM effect_broker.mutation_keys t ORDER BY recorded_at",
    "workers": "SELECT to_jsonb(t) FROM effect_broker.workers t ORDER BY started_at",
    "controls": "SELECT to_jsonb(t) FROM effect_broker.holds t",
    "runs": (
        "SELECT to_jsonb(t) FROM (SELECT workflow_uuid, status, executor_id, queue_name,"
        " recovery_attempts, created_at, updated_at FROM dbos.workflow_status) t"
        " ORDER BY t.created_at"
    ),
    "run_inputs": "SELECT to_jsonb(t) FROM dbos.workflow_input t",
    "run_steps": "SELECT to_jsonb(t) FROM dbos.operation_outputs t",
}


class Database:
    """One embedded server; every method may be called from any thread."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / "cluster.log"
        self._home = directory / "home"
        self._lock = threading.Lock()
        self._child: Child | None = None
        self.url = ""

    def start(self) -> None:
        """Make the server and start it."""
        command = [sys.executable, "-P", "-m", "effect_broker.proof.cluster"]
        self._child = Child(
            [*command, "--home", str(self._home)],
            dict(os.environ),
            self._log,
            _READY,
            takes_input=True,
        )
        self.url = self._child.wait_ready()

    def stop(self) -> None:
        """End the server."""
        if self._child is not None:
            self._child.end()

    def url_for(self, role: str) -> str:
        """Return the URL of another role; the server trusts who reaches its socket."""
        parts = urlsplit(self.url)
        address = parts.netloc.rpartition("@")[2]
        return urlunsplit(parts._replace(netloc=f"{quote(role)}@{address}"))

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a command that administers the broker."""
        return {**os.environ, "EFFECT_BROKER_MIGRATE_DATABASE_URL": self.url}

    def migrate(self) -> None:
        """Run `effect-broker migrate` as it is documented."""
        run_command(["migrate"], self.environment)

    def make_ledger(self) -> None:
        """Make the table of the transactional tools."""
        self._say("ledger")

    # -- faults ----------------------------------------------------------------------------------

    def crash(self, away_seconds: float) -> None:
        """End the server as a power cut would, and start it again after so long."""
        self._outage("crash", away_seconds)

    def halt(self, away_seconds: float) -> None:
        """End it in good order under all who use it, and start it again after so long."""
        self._outage("halt", away_seconds)

    def _outage(self, word: str, away_seconds: float) -> None:
        self._say(word)
        time.sleep(away_seconds)
        self._say("start")

    def be_read_only(self, lasts_seconds: float) -> None:
        """Refuse every write, as a demoted primary does."""
        self._set_read_only(True)
        time.sleep(lasts_seconds)
        self._set_read_only(False)

    def _set_read_only(self, read_only: bool) -> None:
        with self._connection() as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute(
                "ALTER SYSTEM SET default_transaction_read_only = on"
                if read_only
                else "ALTER SYSTEM RESET default_transaction_read_only"
            )
            connection.execute("SELECT pg_reload_conf()")

    def cut_connections(self) -> None:
        """Terminate every backend but our own."""
        with self._connection() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )

    def drop_engine(self, away_seconds: float) -> None:
        """Drop the engine's schema beside processes that use it, and migrate after so long."""
        for _ in range(_TRIES):
            try:
                with self._connection() as connection:
                    connection.execute(f"SET lock_timeout = '{_LOCK_SECONDS}s'")
                    connection.execute("DROP SCHEMA IF EXISTS dbos CASCADE")
                break
            except (psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable):
                time.sleep(_PAUSE_SECONDS)  # a poll of the queue was faster
        else:
            raise ProcessFailed(f"the schema dbos could not be dropped in {_TRIES} tries")
        time.sleep(away_seconds)
        self.restore_engine()

    def restore_engine(self) -> None:
        """Migrate, again if a connection is lost meanwhile."""
        for left in reversed(range(_TRIES)):
            try:
                self.migrate()
                return
            except ProcessFailed:
                if not left:
                    raise
                time.sleep(_PAUSE_SECONDS)

    # -- reading ---------------------------------------------------------------------------------

    def rows(self, query: LiteralString) -> list[tuple[Any, ...]]:
        """Run one statement as superuser; return its rows."""
        with self._connection() as connection:
            return connection.execute(query).fetchall()

    def dump(self, directory: Path) -> None:
        """Write the broker's tables, one row for each line."""
        directory.mkdir(parents=True, exist_ok=True)
        for name, query in _DUMPED.items():
            lines = [json.dumps(row, sort_keys=True) + "\n" for (row,) in self.rows(query)]
            (directory / f"{name}.jsonl").write_text("".join(lines))

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection]:
        with psycopg.connect(self.url, autocommit=True, application_name="chaos") as connection:
            yield connection

    def _say(self, word: str) -> None:
        assert self._child is not None, "start comes first"
        with self._lock:
            answer = self._child.say(word)
        if answer != "done":
            raise ProcessFailed(f"the cluster did not {word}: {answer}")
