"""A broker of separate processes, started, killed and watched by demo, tests and chaos.

It starts the same commands as an operator does (`effect-broker serve`, `worker`, …), gives them
their settings by environment only, and signals them with real signals.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol, Self

from effect_broker.faultpoints import ENV_FAULT_DIR

PROGRAM = ("effect_broker",)
"""The module that is run, with what comes before the command."""
READY_SECONDS = 120.0  # a limit for a machine that does much else, not a wait
_EXIT_SECONDS = 40.0  # a drain may take its 25 s and the shutdown's grace


class ProcessNotReady(Exception):
    """A process ended or stayed silent; the text holds the end of its log."""


class Launched(Protocol):
    """A process of its own, as `subprocess.Popen` shows it."""

    pid: int
    stdout: IO[str] | None

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code; `subprocess.TimeoutExpired` if it runs for longer."""

    def kill(self) -> None:
        """SIGKILL."""

    def terminate(self) -> None:
        """SIGTERM."""


Launch = Callable[[Sequence[str], Mapping[str, str], IO[bytes]], Launched]
"""Runs a module with its arguments: gets the words after `python -m`, the environment, the log."""


def interpreter(words: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> Launched:
    """Start a fresh interpreter."""
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        stdout=subprocess.PIPE,
        stderr=log,
        stdin=subprocess.DEVNULL,
        env=dict(environment),
        text=True,
    )


launch: Launch = interpreter
"""How every process of a stack is started; tests fork them from an interpreter that is warm."""


def state_of(pid: int) -> str | None:
    """Return the kernel's word for a process (Z: dead, T: stopped), None where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


class ManagedProcess:
    """One process of the broker.

    Args:
        name: names the log file.
        arguments: of `effect-broker`.
        environment: the whole environment.
        directory: where its log goes.
        ready: the words that its ready line begins with.
        program: the module that takes the arguments; proofs of the proof run a broken one.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        directory: Path,
        ready: str,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self._ready = ready
        self._line: str | None = None
        self._seen = threading.Event()
        with self.log.open("ab") as log:
            self._process = launch([*program, *arguments], environment, log)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines, self.log.open("a") as log:
            for line in lines:
                log.write(line)
                log.flush()
                if self._line is None and line.startswith(self._ready):
                    self._line = line.removeprefix(self._ready).strip()
                    self._seen.set()
        self._seen.set()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    @property
    def ready(self) -> bool:
        """Whether it has said that it is ready."""
        return self._line is not None

    def wait_ready(self, timeout_seconds: float = READY_SECONDS) -> str:
        """Return the rest of the ready line.

        Raises:
            ProcessNotReady: it ended, or said nothing in time.
        """
        self._seen.wait(timeout_seconds)
        if self._line is None:
            how = f"said nothing for {timeout_seconds:.0f} s" if self.alive else "has ended"
            self.kill()
            tail = self.log.read_text(errors="replace")[-2000:].strip() or "(it wrote nothing)"
            raise ProcessNotReady(f"{self.name} is not ready: it {how}. Its log:\n{tail}")
        return self._line

    def wait_ended(self, timeout_seconds: float = _EXIT_SECONDS) -> int:
        """Return the exit code.

        Raises:
            subprocess.TimeoutExpired: it goes on.
        """
        return self._process.wait(timeout_seconds)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()

    def ask_to_end(self) -> None:
        """SIGTERM."""
        self.resume()
        self._process.terminate()

    def terminate(self) -> int:
        """SIGTERM, and wait for the drain; SIGKILL if it takes too long."""
        self.ask_to_end()
        try:
            return self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return -signal.SIGKILL

    def pause(self) -> None:
        """SIGSTOP."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT, if it still exists."""
        if self.alive:
            os.kill(self._process.pid, signal.SIGCONT)

    @property
    def stopped(self) -> bool:
        """Whether the process is stopped by a signal (Linux)."""
        return state_of(self._process.pid) == "T"


class Stack:
    """Processes of one broker on one database, with a directory for logs and faults."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self.directory = directory
        self.faults = directory / "faults"
        self.faults.mkdir(parents=True, exist_ok=True)
        self.environment = {**os.environ, **environment, ENV_FAULT_DIR: str(self.faults)}
        self._processes: list[ManagedProcess] = []
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(
        self,
        arguments: Sequence[str],
        ready: str,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = PROGRAM,
    ) -> ManagedProcess:
        """Start a command; it is ended with the stack."""
        self._count += 1
        process = ManagedProcess(
            f"{arguments[0]}-{self._count}",
            arguments,
            self.environment | dict(environment or {}),
            self.directory,
            ready,
            program,
        )
        self._processes.append(process)
        return process

    def api(
        self,
        port: int = 0,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = PROGRAM,
    ) -> ManagedProcess:
        """Start an API process; its ready line is the base URL."""
        command = ["serve", "--port", str(port)]
        return self.start(command, "api listening on ", environment, program)

    def worker(
        self, environment: Mapping[str, str] | None = None, program: Sequence[str] = PROGRAM
    ) -> ManagedProcess:
        """Start a worker; its ready line is the executor id."""
        return self.start(["worker"], "worker ready as ", environment, program)

    def reconciler(self) -> ManagedProcess:
        """Start a reconciler."""
        return self.start(["reconciler"], "reconciler ready as ")

    def stop(self) -> None:
        """End all processes, the latest first; a stopped or stubborn one is killed."""
        running = [p for p in reversed(self._processes) if p.alive]
        for process in running:
            process.ask_to_end()
        for process in running:
            try:
                process.wait_ended()
            except subprocess.TimeoutExpired:
                process.kill()
        self._processes.clear()
