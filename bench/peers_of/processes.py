"""The benchmark's end of `program`: processes of a peer, started, asked, killed and ended."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.peers_of.program import Order, Place
from bench.rounds import Timed

CHECKOUT = Path(__file__).parents[2]
READY_SECONDS = 120.0  # a limit for a machine that does much else, not a wait
_END_SECONDS = 10.0


class PeerFailed(Exception):
    """A process of a peer did not do what it was started for; the text holds what it said."""


class Ended(Exception):
    """The process ended before it answered."""


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that nobody listens on."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


class Program:
    """One process of a peer, by `program`'s protocol."""

    def __init__(
        self, command: Sequence[str | Path], environment: Mapping[str, str], log: Path
    ) -> None:
        self._log = log
        self._answers: dict[int, Future[Any]] = {}
        self._ready: Future[str] = Future()
        self._count = 0
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                cwd=CHECKOUT,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                said = json.loads(line)
                if "ready" in said:
                    self._ready.set_result(said["ready"])
                elif "error" in said:
                    self._answers.pop(said["id"]).set_exception(PeerFailed(said["error"]))
                else:
                    self._answers.pop(said["id"]).set_result(said["result"])
        if not self._ready.done():
            self._ready.set_exception(Ended())
        for future in list(self._answers.values()):
            future.set_exception(Ended())

    def wait_ready(self) -> str:
        """Return the versions that it runs.

        Raises:
            PeerFailed: it ended, or said nothing in time.
        """
        try:
            return self._ready.result(READY_SECONDS)
        except (Ended, TimeoutError):
            said = self._log.read_text(errors="replace")[-1500:].strip()
            raise PeerFailed(f"{self._log.stem} is not ready: {said or 'no word'}") from None

    def ask(self, do: str, **members: Any) -> Future[Any]:
        """Give a command; the future holds its answer, `PeerFailed` or `Ended`."""
        self._count += 1
        future = self._answers[self._count] = Future()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": self._count, "do": do, **members}) + "\n")
        self._process.stdin.flush()
        return future

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Close its input, which ends it and its child; SIGKILL if it takes too long."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(_END_SECONDS)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self.kill()


@dataclass(frozen=True, slots=True)
class Means:
    """How programs of a peer are run.

    Attributes:
        python: the interpreter that sees the peer.
        place: what they are given.
        logs: where they write.
        programs: a directory of programs that they may call.
    """

    python: Path
    place: Place
    logs: Path
    programs: str = ""


class Session:
    """A peer while it runs: server, worker and callers, as far as it has them.

    Args:
        module: of `bench.peers_of`.
        means: how its programs are run.
        server: it has one.
        worker: it has one; else callers send themselves.
        prepares: it has tables to make.
        processes: how many processes eight callers are.
    """

    def __init__(
        self,
        module: str,
        means: Means,
        *,
        server: bool,
        worker: bool,
        prepares: bool = False,
        processes: int = 1,
    ) -> None:
        self._module, self._means = module, means
        self._server, self._has_worker, self._prepares = server, worker, prepares
        self._processes = processes
        self._all: list[Program] = []
        self._worker: Program | None = None
        self._callers: list[Program] = []
        self.version = ""

    def __enter__(self) -> Session:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _program(self, role: str, clients: int = 1) -> Program:
        means = self._means
        command: list[str | Path] = [means.python, "-m", f"bench.peers_of.{self._module}", role]
        command += [json.dumps(asdict(means.place)), str(clients)]
        path = f"{means.programs}:{os.environ['PATH']}"
        log = means.logs / f"{self._module}-{role}.log"
        program = Program(command, {**os.environ, "PATH": path, "DO_NOT_TRACK": "1"}, log)
        self._all.append(program)
        return program

    def start(self) -> None:
        """Start all of it, in the order in which one needs the other."""
        if self._server:
            self._program("server").wait_ready()
        if self._prepares:
            preparing = self._program("prepare")
            preparing.wait_ready()
            preparing.stop()
        if self._has_worker:
            self.start_worker()
        self.start_callers()

    def start_worker(self) -> None:
        """Start a worker, the first one or the next one."""
        self._worker = self._program("worker")
        self._worker.wait_ready()

    def start_callers(self, clients: int = 8) -> None:
        """Start the callers, the first ones or the next ones."""
        each = clients // self._processes
        self._callers = [self._program("caller", each) for _ in range(self._processes)]
        versions = [caller.wait_ready() for caller in self._callers]
        self.version = versions[0]

    def load(self, prefix: str, kind: str, clients: int, seconds: float) -> tuple[Timed, int]:
        """Call for so many seconds, all callers together; also return how many calls it took.

        Raises:
            PeerFailed: a call failed.
        """
        callers = self._callers[: min(clients, self._processes)]
        each = clients // len(callers)
        asked = [
            caller.ask("load", prefix=f"{prefix}-{n}", kind=kind, clients=each, seconds=seconds)
            for n, caller in enumerate(callers)
        ]
        parts = [future.result() for future in asked]
        took = [one for part in parts for one in part["took"]]
        span = max(part["ended"] for part in parts) - min(part["begun"] for part in parts)
        return Timed(len(took) / span, median(took) * 1000), len(took)

    def ask(self, do: str, order: Order) -> Future[Any]:
        """Have one caller do something about an order: `call` or `state`."""
        caller = self._callers[order.client % self._processes]
        return caller.ask(do, **asdict(order))

    def kill_sender(self) -> None:
        """SIGKILL to whatever sends: the worker, or the callers."""
        for program in [self._worker] if self._worker is not None else self._callers:
            program.kill()

    def recover(self) -> None:
        """What a supervisor does: start again what was killed."""
        if self._has_worker:
            self.start_worker()
        else:
            self.start_callers()

    @property
    def calls_again(self) -> bool:
        """Whether the caller died with the sender, so that it has to call again."""
        return not self._has_worker

    def stop(self) -> None:
        """End all processes, the latest first."""
        while self._all:
            self._all.pop().stop()
