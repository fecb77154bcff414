"""What the tests of hosting share: kinds at the target with their contracts, and what was seen.

Counts come from the target's ledger, the rest from the API or from the database as its superuser
sees it; nothing is taken from a worker's own word.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, LiteralString, Self

import psycopg
from psycopg.rows import dict_row

from effect_broker.faultpoints import FaultAction, FaultPoint
from effect_broker.proof.broker import ProofBroker, wait_until
from effect_broker.proof.contracts import charge, tuned
from effect_broker.proof.stack import PROGRAM, ManagedProcess
from effect_broker.proof.target.client import LedgerView
from effect_broker.proof.target.modes import ModeName

SAFETIES = ("idempotent", "reconcilable", "unsafe")
MODES: dict[str, ModeName] = {
    "idempotent": "dedupe",
    "reconcilable": "lookup",
    "unsafe": "neither",
}
SETTLEMENT_BOUND_SECONDS = 1.0
# Of an attempt, so that only what a test does to it makes it end without an answer, however long
# the machine stands still.
PATIENT_SECONDS = 20.0
# Of an attempt whose worker dies or is stopped: its successor has to wait for that long, which is
# no longer than a dead worker's heartbeat counts.
LEASE_SECONDS = 2.5
# Five workers at once on two busy cores.
READY_SECONDS = 90.0

Row = dict[str, Any]

# The brokers that run, each with the folder whose tests use it.
_open: dict[Scene, Path] = {}
_folder = Path()


def enter_folder(folder: Path) -> None:
    """Take note that a test of this folder is next; kill the workers that other folders have left.

    A broker that a whole folder shares lasts as long as the test process. Its idle workers would
    each take a twentieth of a processor from all the tests that follow.
    """
    global _folder
    if folder == _folder:
        return
    _folder = folder
    for scene, home in _open.items():
        if home != folder:
            scene.kill_workers()


class Scene:
    """A running broker, with short words for what the tests do to it."""

    def __init__(self, broker: ProofBroker) -> None:
        self.broker = broker
        self.workers: list[ManagedProcess] = []

    def __enter__(self) -> Self:
        _open[self] = _folder
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del _open[self]
        self.kill_workers()  # a drain would only cost time here

    # Processes -----------------------------------------------------------------------------------

    def start_workers(
        self, count: int, /, program: Sequence[str] = PROGRAM, **environment: str
    ) -> list[ManagedProcess]:
        """Start workers, of another program where one is given, and wait until all are ready."""
        started = [self.broker.stack.worker(environment, program) for _ in range(count)]
        self.workers += started
        for worker in started:
            worker.wait_ready(READY_SECONDS)
        return started

    def ensure_workers(self, count: int) -> None:
        """Start as many workers as are missing to `count`."""
        self.workers = [worker for worker in self.workers if worker.alive]
        self.start_workers(max(count - len(self.workers), 0))

    def kill_workers(self) -> None:
        """SIGKILL to every worker, also to those that are stopped."""
        for worker in self.workers:
            if worker.alive:
                worker.kill()
        self.workers.clear()

    def stopped_at(self, point: FaultPoint) -> int:
        """Wait until a worker has stopped itself at the armed point; return its process id."""
        pid = self.broker.wait_fired(point, FaultAction.STOP)
        worker = next(w for w in self.workers if w.pid == pid)
        wait_until(lambda: worker.stopped or None, f"{worker.name} stopped")
        return pid

    # The target ----------------------------------------------------------------------------------

    def offer(self, kind: str, safety: str = "idempotent", **members: Any) -> str:
        """Let the target serve `kind` and the broker a tool for it; return the tool.

        An attempt has `PATIENT_SECONDS`, where `members` do not say otherwise.
        """
        settings = {"search_lag_seconds": 0.2} if safety == "reconcilable" else {}
        self.broker.target.client.set_mode(kind, MODES[safety], **settings)
        if safety == "reconcilable":
            members = {"settlement_bound_seconds": SETTLEMENT_BOUND_SECONDS, **members}
        members = {"attempt_deadline_seconds": PATIENT_SECONDS, **members}
        document = tuned(f"demo-charge-{safety}", self.broker.target.url, kind, **members)
        self.broker.apply(document)
        return document.tool

    def ledger(self, kind: str) -> LedgerView:
        """What the target knows of a kind."""
        return self.broker.target.client.ledger(kind=kind)

    # Effects -------------------------------------------------------------------------------------

    def submit(self, tool: str, order: str) -> str:
        """Submit one charge; return the effect's id."""
        return self.broker.submitted(f"{tool}:{order}", tool, charge(order))

    def submit_many(self, tool: str, count: int, prefix: str = "o") -> list[str]:
        """Submit `count` charges, one after the other."""
        return [self.submit(tool, f"{prefix}{n}") for n in range(count)]

    def settled(self, effect_ids: Iterable[str]) -> list[Row]:
        """Wait until each is final or waits for a person; return them in order."""
        return [self.broker.settled(effect_id) for effect_id in effect_ids]

    # The database --------------------------------------------------------------------------------

    def rows(self, query: LiteralString, *values: object) -> list[Row]:
        """Run one statement as superuser; return its rows."""
        with psycopg.connect(
            self.broker.superuser_url, autocommit=True, row_factory=dict_row
        ) as connection:
            cursor = connection.execute(query, values or None)
            return cursor.fetchall() if cursor.description else []

    def value(self, query: LiteralString, *values: object) -> Any:
        """Return the only column of the first row, None without one."""
        rows = self.rows(query, *values)
        return next(iter(rows[0].values())) if rows else None

    def wait_for(self, what: str, query: LiteralString, *values: object) -> Any:
        """Wait until a query gives a value that is true, and return it."""
        return wait_until(lambda: self.value(query, *values) or None, what)

    def run(self, effect_id: str, generation: int = 1) -> Row | None:
        """The engine's row of a run."""
        rows = self.rows(
            "SELECT * FROM dbos.workflow_status WHERE workflow_uuid = %s",
            f"{effect_id}.{generation}",
        )
        return rows[0] if rows else None

    def intent(self, effect_id: str) -> Row:
        """The intent's row."""
        return self.rows(
            "SELECT * FROM effect_broker.effect_intents WHERE effect_id = %s", effect_id
        )[0]

    def attempts(self, effect_id: str) -> list[Row]:
        """The attempts' rows in order."""
        return self.rows(
            "SELECT * FROM effect_broker.effect_attempts WHERE effect_id = %s ORDER BY ordinal",
            effect_id,
        )

    def events(self, effect_id: str) -> list[Row]:
        """The events' rows in order."""
        return self.rows(
            "SELECT * FROM effect_broker.effect_events WHERE effect_id = %s ORDER BY sequence",
            effect_id,
        )


def all_once(ledger: LedgerView, count: int) -> bool:
    """Whether the target holds `count` effects, each under a key of its own."""
    keys = {row.correlation_key or row.downstream_key for row in ledger.effect_rows}
    return ledger.effects == count and len(keys) == count


def go_on(pid: int) -> None:
    """SIGCONT."""
    os.kill(pid, signal.SIGCONT)
