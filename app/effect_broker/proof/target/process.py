"""Owns a target in a process of its own, started, killed and started again by tests and demo."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from effect_broker.proof import stack
from effect_broker.proof.target.client import TargetClient

START_SECONDS = 120.0
"""A cold interpreter on a busy two-core machine needs a few; far more means that it hangs."""
STOP_SECONDS = 10.0
_READY = "target listening on "


class TargetNotStarted(Exception):
    """The target's process did not come up; the text holds what it said."""


class TargetProcess:
    """One target on loopback: ``with TargetProcess(path) as target: target.client.script(…)``.

    It takes a free port at the first start and keeps it over `restart`.
    """

    def __init__(self, ledger_path: Path, *, port: int = 0, modes: Sequence[str] = ()) -> None:
        """`modes` are ``KIND=MODE`` texts, as on the command line."""
        self.ledger_path = ledger_path
        self._port = port
        self._modes = tuple(modes)
        self._process: stack.Launched | None = None
        self._client: TargetClient | None = None
        self.url = ""

    @property
    def client(self) -> TargetClient:
        assert self._client is not None, "the target is not running"
        return self._client

    @property
    def pid(self) -> int:
        assert self._process is not None, "the target is not running"
        return self._process.pid

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

    def start(self) -> None:
        """Start and wait until it listens. Raises `TargetNotStarted`."""
        assert self._process is None, "the target is running already"
        words = ["effect_broker.proof.target"]
        words += ["--port", str(self._port), "--ledger", str(self.ledger_path)]
        for mode in self._modes:
            words += ["--mode", mode]
        log_path = Path(f"{self.ledger_path}.log")
        with log_path.open("ab") as log:
            self._process = stack.launch(words, os.environ, log)
        line = _first_line(self._process, START_SECONDS)
        if not line.startswith(_READY):
            self._end(signal.SIGKILL)
            said = log_path.read_text(errors="replace")[-2000:].strip()
            raise TargetNotStarted(f"the target did not start: {said or line or 'no word from it'}")
        self.url = line.removeprefix(_READY).strip()
        self._port = int(self.url.rpartition(":")[2])
        self._client = TargetClient(self.url)

    def kill(self) -> None:
        """SIGKILL: the ledger must hold all the same."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; returns the exit code (0 if it had not been running)."""
        return self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Start again on the same port and ledger; scripts are forgotten, modes are not."""
        self._end(signal.SIGTERM)
        self.start()

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if self._client is not None:
            self._client.close()
            self._client = None
        if process is None:
            return 0
        if process.poll() is None:
            process.kill() if number is signal.SIGKILL else process.terminate()
        try:
            return process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
        finally:
            if process.stdout is not None:
                process.stdout.close()


def _first_line(process: stack.Launched, timeout_seconds: float) -> str:
    """The first line of the process's output, or what there is of it when time or output ends."""
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    deadline = time.monotonic() + timeout_seconds
    said = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while b"\n" not in said:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                break
            piece = os.read(descriptor, 4096)
            if not piece:
                break
            said += piece
    return said.partition(b"\n")[0].decode(errors="replace")
