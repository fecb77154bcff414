"""The processes of a run: started as an operator starts them, and signalled with real signals.

A `Slot` is a place for one process, such as the second worker: it is filled again whenever its
process has ended, until it is closed, and each incarnation has a log of its own. The promise: no
process of a slot outlives it, whatever state it was in.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

READY_SECONDS = 90.0
"""Ten interpreters that start at once on two busy cores."""
END_SECONDS = 30.0
_RESTART_SECONDS = 0.3  # what a service manager waits before it starts the same again
_TAIL_CHARS = 1500


class ProcessFailed(Exception):
    """A process did not become ready, or a command failed; the text holds what it said last."""


class Child:
    """One process that says a line when it is ready; what it prints goes to its log."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        ready: str,
        *,
        takes_input: bool = False,
    ) -> None:
        self.log = log
        self._ready = ready
        self._line: str | None = None
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if takes_input else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=dict(environment),
                text=True,
                # A Ctrl-C is for the supervisor alone: it ends its processes in an order.
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines, self.log.open("a") as log:
            for line in lines:
                log.write(line)
                log.flush()
                with self._changed:
                    if self._line is None and line.startswith(self._ready):
                        self._line = line.removeprefix(self._ready).strip()
                    else:
                        self._lines.append(line.strip())
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    @property
    def ready(self) -> bool:
        """Whether it has said its ready line."""
        return self._line is not None

    def wait_ready(self, timeout_seconds: float = READY_SECONDS) -> str:
        """Return the rest of its ready line.

        Raises:
            ProcessFailed: it ended, or said nothing in time.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.ready or self._ended, timeout_seconds)
        if self._line is None:
            self.kill()
            raise ProcessFailed(f"{self.log.stem} is not ready:\n{self.tail()}")
        return self._line

    def say(self, word: str, timeout_seconds: float = READY_SECONDS) -> str:
        """Write a line to it and return the line that it answers.

        Raises:
            ProcessFailed: it ended, or did not answer in time.
        """
        assert self.process.stdin is not None, "it takes no input"
        with self._changed:
            self._lines.clear()
        try:
            self.process.stdin.write(f"{word}\n")
            self.process.stdin.flush()
        except (OSError, ValueError):  # broken, or closed by `end`
            raise ProcessFailed(f"{self.log.stem} has ended:\n{self.tail()}") from None
        with self._changed:
            self._changed.wait_for(lambda: bool(self._lines) or self._ended, timeout_seconds)
            if not self._lines:
                raise ProcessFailed(f"{self.log.stem} did not answer to {word!r}:\n{self.tail()}")
            return self._lines.pop(0)

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it still exists."""
        if self.alive:
            self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self.process.kill()
        self.process.wait()

    def end(self, timeout_seconds: float = END_SECONDS) -> None:
        """Ask it to end, and kill it when it takes too long."""
        self.send(signal.SIGCONT)
        if self.process.stdin is not None:
            self.process.stdin.close()
        else:
            self.send(signal.SIGTERM)
        try:
            self.process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-_TAIL_CHARS:]


class Slot:
    """A place for one process of the broker.

    Args:
        name: such as `worker-1`; begins the name of its logs.
        arguments: of `effect-broker`.
        environment: the whole environment.
        directory: where the logs go.
        ready: the words that its ready line begins with.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        directory: Path,
        ready: str,
    ) -> None:
        self.name = name
        self.incarnations = 0
        self._arguments = arguments
        self._environment = environment
        self._directory = directory
        self._ready = ready
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._away_until = 0.0
        self._closed = False

    def start(self) -> Child:
        """Fill the slot, which must be empty."""
        with self._lock:
            return self._start()

    def _start(self) -> Child:
        self.incarnations += 1
        self._child = Child(
            [sys.executable, "-P", "-m", "effect_broker", *self._arguments],
            self._environment,
            self._directory / f"{self.name}.{self.incarnations}.log",
            self._ready,
        )
        return self._child

    @property
    def child(self) -> Child:
        """The present incarnation; it may have ended."""
        assert self._child is not None, "start comes first"
        return self._child

    @property
    def whole(self) -> bool:
        """Whether a process is there and has said that it is ready."""
        return self.child.alive and self.child.ready

    def keep(self) -> bool:
        """Fill the slot again if its process has ended and may come back; True if it did."""
        with self._lock:
            now = time.monotonic()
            if self._closed or self._child is None or self._child.alive:
                return False
            if self._away_until == 0.0:
                self._away_until = now + _RESTART_SECONDS
            if now < self._away_until:
                return False
            self._away_until = 0.0
            self._start()
            return True

    def kill(self, away_seconds: float = 0.0) -> None:
        """SIGKILL; the slot stays empty for so long."""
        with self._lock:
            self._away_until = time.monotonic() + away_seconds + _RESTART_SECONDS
            self.child.kill()

    def terminate(self, timeout_seconds: float = END_SECONDS) -> None:
        """SIGTERM, and wait for its end, which may take the time of its drain."""
        child = self.child
        child.send(signal.SIGTERM)
        try:
            child.process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            child.kill()

    def close(self) -> None:
        """End its process for good."""
        with self._lock:
            self._closed = True
        if self._child is not None:
            self._child.end()


def run_command(
    arguments: Sequence[str], environment: Mapping[str, str], timeout_seconds: float = READY_SECONDS
) -> str:
    """Run `effect-broker` to its end and return what it printed.

    Raises:
        ProcessFailed: it took too long or did not exit with 0.
    """
    command = [sys.executable, "-P", "-m", "effect_broker", *arguments]
    words = " ".join(arguments[:2])
    try:
        done = subprocess.run(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ProcessFailed(f"effect-broker {words} took longer than {timeout_seconds} s") from None
    if done.returncode != 0:
        said = f"{done.stdout[-_TAIL_CHARS:]}\n{done.stderr[-_TAIL_CHARS:]}".strip()
        raise ProcessFailed(f"effect-broker {words}: {said}")
    return done.stdout


def go_on(pid: int) -> None:
    """SIGCONT, if the process exists."""
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return
