"""A lane: one broker on a Postgres of its own, on which cells run one after the other.

Faults that strike the whole database strike one lane only, so that several lanes run side by side.
A lane has an API, two workers and a target; what a fault has killed is started again before the
next cell. Some faults need processes that were started in a special way (an `Outfit`): behind the
database proxy, or with a wrong wall clock. Cells of one outfit run together, since to change it
all workers have to be started anew.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from uuid import UUID

import httpx

from effect_broker.durable import migrate_dbos
from effect_broker.faultpoints import FaultAction, FaultPoint
from effect_broker.intake import Scope
from effect_broker.postgres.embedded import EmbeddedPostgres
from effect_broker.proof.broker import ProofBroker, wait_until
from effect_broker.proof.database_proxy import DatabaseProxy
from effect_broker.proof.matrix.axes import CUTS, Cell, Fault
from effect_broker.proof.skewed import SKEWED_PROGRAM, skewed_environment, why_no_skew
from effect_broker.proof.stack import PROGRAM, ManagedProcess
from effect_broker.store import demo_ledger, proof_faults
from effect_broker.store.migrate import migrate
from effect_broker.store.roles import DatabaseRole
from effect_contracts.keys import effect_id

# Peers take over sooner than in production, so that a cell takes less time, and look for work less
# often, so that several lanes fit on one machine. Nothing else differs.
TTL_SECONDS: Final = 2.0
_QUEUE_POLL_SECONDS: Final = 0.2
WORKERS: Final = 2
# Workers that start on a machine which is busy with other lanes.
_READY_SECONDS: Final = 300.0
# What a caller who wants to be sure waits between two tries.
_INSIST_SECONDS: Final = 0.1

_NOBODY: Final = 0  # no process of ours has this id
_MIGRATE_SECONDS: Final = 300.0

# The migration's library keeps its context in globals: one at a time in this process.
_MIGRATING: Final = threading.Lock()


class Outfit(StrEnum):
    """How the processes of a lane were started."""

    PLAIN = "plain"
    PROXIED = "proxied"
    AHEAD = "ahead"
    BEHIND = "behind"


_SKEW_SECONDS: Final = {Outfit.AHEAD: 3600, Outfit.BEHIND: -3600}


def outfit_of(cell: Cell) -> Outfit:
    """Return the outfit that a cell needs."""
    if cell.fault in CUTS:
        return Outfit.PROXIED
    if cell.fault is Fault.CLOCK_AHEAD:
        return Outfit.AHEAD
    return Outfit.BEHIND if cell.fault is Fault.CLOCK_BEHIND else Outfit.PLAIN


class Lane:
    """One lane: ``with Lane(directory) as lane: run_cell(lane, cell)``.

    Args:
        directory: for logs and the target's ledger; it must not exist with another lane's files.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._parts = ExitStack()
        self._outfit: Outfit | None = None
        self._workers: list[ManagedProcess] = []
        self._api: ManagedProcess | None = None
        self.server: EmbeddedPostgres
        self.broker: ProofBroker
        self.proxy: DatabaseProxy

    def __enter__(self) -> Self:
        with self._parts as parts:
            self.server = parts.enter_context(_own_server())
            with _MIGRATING:
                migrate(self.server.url, migrate_dbos=migrate_dbos)
            demo_ledger.create(self.server.url)
            environment = {
                "EFFECT_BROKER_HEARTBEAT_TTL_SECONDS": str(TTL_SECONDS),
                "EFFECT_BROKER_QUEUE_POLL_SECONDS": str(_QUEUE_POLL_SECONDS),
            }
            self.broker = parts.enter_context(
                ProofBroker(self.directory, self.server.url, environment=environment, migrated=True)
            )
            # A drain would only cost time: what a lane has left is killed.
            parts.callback(self._kill_workers)
            # Some cells pause their tool.
            self.broker.prepare(scopes=[Scope.EFFECTS.value, Scope.OPERATE.value])
            self.proxy = parts.enter_context(DatabaseProxy(self.server.url))
            self._parts = parts.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._parts.close()

    # Processes -----------------------------------------------------------------------------------

    def prepare(self, outfit: Outfit) -> None:
        """Have an API and two ready workers of the outfit."""
        former, self._outfit = self._outfit, outfit
        if former is not outfit:
            self._kill_workers()
        moved = (former is Outfit.PROXIED) != (outfit is Outfit.PROXIED)
        if moved or self._api is None or not self._api.alive:
            self.restart_api()
        for worker in self._workers:
            worker.resume()
        self._workers = [worker for worker in self._workers if worker.alive]
        while len(self._workers) < WORKERS:
            self.start_worker()
        for worker in self._workers:
            worker.wait_ready(_READY_SECONDS)
        while len(self._workers) > WORKERS:
            self._workers.pop(0).kill()

    def start_worker(self) -> None:
        """Start one more worker; it is ready some seconds later."""
        assert self._outfit is not None, "prepare comes first"
        environment, program = {}, PROGRAM
        if self._outfit is Outfit.PROXIED:
            url = self.proxy.url(DatabaseRole.WORKER)
            environment = {"EFFECT_BROKER_WORKER_DATABASE_URL": url}
        elif self._outfit in _SKEW_SECONDS:
            environment = skewed_environment(_SKEW_SECONDS[self._outfit])
            program = SKEWED_PROGRAM
        self._workers.append(self.broker.stack.worker(environment, program))

    def start_ready_worker(self) -> None:
        """Start one more worker and wait until it is ready."""
        self.start_worker()
        self._workers[-1].wait_ready(_READY_SECONDS)

    def restart_api(self) -> None:
        """End the API if it lives, and start one."""
        if self._api is not None and self._api.alive:
            self._api.kill()
        self.add_api()

    def add_api(self) -> ManagedProcess | None:
        """Start an API beside the present one and speak to it; return the former one."""
        environment: dict[str, str] = {}
        if self._outfit is Outfit.PROXIED:
            environment = {"EFFECT_BROKER_API_DATABASE_URL": self.proxy.url(DatabaseRole.API)}
        former, self._api = self._api, self.broker.start_api(environment)
        return former

    def replace_dead_workers(self) -> None:
        """Start a worker for each one that has died, without waiting for it."""
        alive = [worker for worker in self._workers if worker.alive]
        missing = len(self._workers) - len(alive)
        self._workers = alive
        for _ in range(missing):
            self.start_worker()

    def alive(self, pid: int) -> bool:
        """Whether one of the lane's processes with this id lives."""
        processes = [*self._workers, *([self._api] if self._api else [])]
        return any(process.pid == pid and process.alive for process in processes)

    @contextmanager
    def asleep(self, *, but: int | None = None) -> Iterator[None]:
        """Stop all workers but one (None: the first); continue them afterwards."""
        awake = self._workers[0].pid if but is None else but
        peers = [worker for worker in self._workers if worker.alive and worker.pid != awake]
        for peer in peers:
            peer.pause()
        try:
            yield
        finally:
            for peer in peers:
                peer.resume()

    @contextmanager
    def all_asleep(self) -> Iterator[None]:
        """Stop all workers; continue them afterwards."""
        with self.asleep(but=_NOBODY):
            yield

    def go_on(self, pid: int) -> None:
        """Continue a stopped worker and wait until it beats again."""
        began = proof_faults.database_clock(self.server.url)
        os.kill(pid, signal.SIGCONT)
        wait_until(
            lambda: proof_faults.beats_since(self.server.url, pid, began) or None,
            "the stopped process beats again",
        )

    def _kill_workers(self) -> None:
        for worker in self._workers:
            if worker.alive:
                worker.kill()
        self._workers.clear()

    # Fault points --------------------------------------------------------------------------------

    def arm(self, point: FaultPoint, action: FaultAction) -> None:
        """Arm a point once."""
        (self.broker.stack.faults / f"{point}.release").unlink(missing_ok=True)
        self.broker.arm(point, action)

    def release(self, point: FaultPoint) -> None:
        """Let the process go on that waits at the point."""
        (self.broker.stack.faults / f"{point}.release").touch()

    def disarm(self) -> None:
        """Leave nothing armed behind, and let everybody go on."""
        for path in self.broker.stack.faults.iterdir():
            if path.suffix in {".kill", ".stop", ".gate"}:
                path.unlink(missing_ok=True)
        for point in FaultPoint:
            self.release(point)

    # Calling -------------------------------------------------------------------------------------

    def pause_tool(self, tool: str) -> str:
        """Stop the dispatches of a tool; return the hold's id.

        Raises:
            httpx.HTTPError: it was not accepted.
        """
        body = {"tool": tool, "reason": "led up to"}
        answer = self.broker.http.post("/v1/holds", json=body)
        answer.raise_for_status()
        return str(answer.json()["hold_id"])

    def lift(self, hold_id: str) -> None:
        """Let go on what a hold stops, as a caller does who wants to be sure.

        Raises:
            NotInTime: nobody has accepted it.
        """

        def accepted() -> bool | None:
            try:
                answer = self.broker.http.post(
                    f"/v1/holds/{hold_id}/lift", json={"reason": "led up to"}
                )
            except httpx.TransportError:
                return None
            if answer.status_code == 503:
                return None
            answer.raise_for_status()
            return True

        wait_until(accepted, "the hold is lifted")

    def insist(
        self, key: str, tool: str, arguments: Mapping[str, Any], members: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Submit as a caller does who wants to be sure: again with the same key until it is said.

        `members` are further members of the body.

        Raises:
            NotInTime: nobody has accepted it.
        """
        refused = threading.Event()

        def accepted() -> dict[str, Any] | None:
            refused.wait(_INSIST_SECONDS)
            try:
                answer = self.broker.submit(key, tool, arguments, members=members)
            except httpx.TransportError:
                return None
            if answer.status_code == 503:
                return None
            answer.raise_for_status()
            body: dict[str, Any] = answer.json() | {"status_code": answer.status_code}
            return body

        return wait_until(accepted, f"{key} is accepted")

    def effect(self, identity: UUID) -> dict[str, Any] | None:
        """Return an effect as the API shows it; None where it cannot be asked, or has none."""
        try:
            answer = self.broker.http.get(f"/v1/effects/{identity}")
        except httpx.TransportError:
            return None
        if answer.status_code in {404, 503}:
            return None
        answer.raise_for_status()
        body: dict[str, Any] = answer.json()
        return body

    def frozen(self, kind: str) -> bool:
        """Whether the contract for objects of this kind is frozen."""
        answer = self.broker.http.get("/v1/holds")
        answer.raise_for_status()
        held = [hold for hold in answer.json()["holds"] if hold["kind"] == "frozen"]
        return any(hold["contract"]["name"] == f"proof-{kind}" for hold in held)

    def effect_id(self, key: str) -> UUID:
        """Return the id that an operation key leads to."""
        return effect_id(UUID(self.broker.tenant_id), key)

    # The database --------------------------------------------------------------------------------

    def migrate(self) -> None:
        """Bring back what is missing, by the command that an operator runs.

        Beside live workers it takes some 20 s: each index that the engine makes waits for the
        transaction in which one of the engine's workers holds its election.

        Raises:
            subprocess.SubprocessError: it has failed, or takes too long.
        """
        variables = {"EFFECT_BROKER_MIGRATE_DATABASE_URL": self.server.url}
        subprocess.run(
            [sys.executable, "-m", "effect_broker", "migrate"],
            env={**os.environ, **variables},
            capture_output=True,
            timeout=_MIGRATE_SECONDS,
            check=True,
        )


@contextmanager
def _own_server() -> Iterator[EmbeddedPostgres]:
    """A server in a directory that its account can reach, gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="effect-broker-lane-", dir="/tmp"))
    directory.chmod(0o755)
    try:
        with EmbeddedPostgres(directory / "home") as server:
            yield server
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def why_not(cell: Cell) -> str | None:
    """Return why a cell cannot run on this machine, None if it can."""
    seconds = _SKEW_SECONDS.get(outfit_of(cell))
    return None if seconds is None else _why_no_skew(seconds)


@cache
def _why_no_skew(seconds: int) -> str | None:
    return why_no_skew(seconds)
