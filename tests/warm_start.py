"""Processes of the broker without the second that each needs to load: forked, not started anew.

A test starts hundreds of workers and APIs; a fresh interpreter spends most of its time on imports
that are the same for all. `install` has them forked from one warm interpreter of the test process
(`warm_start_server`). They are processes of their own in every respect: killed, stopped and
drained by real signals. How a fresh interpreter starts is proved by the tests of the command line,
of `up`, and by the demo. WARM_START=0 turns it off.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from effect_broker.proof import stack

SERVER = Path(__file__).with_name("warm_start_server.py")
# What the dynamic loader or the interpreter reads once, at its start.
_READ_AT_START = ("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHASHSEED", "PYTHONDEVMODE")
_START_SECONDS = 120.0
_END_SECONDS = 30.0
_FORKED = (*stack.PROGRAM, "effect_broker.proof.target")


class Forked:
    """One process; as `subprocess.Popen` shows it."""

    def __init__(self, pid: int, stdout: IO[str]) -> None:
        self.pid = pid
        self.stdout: IO[str] | None = stdout
        self._ended = threading.Event()
        self._code: int | None = None

    def note_end(self, code: int | None) -> None:
        """It has ended; None where its code will never be known."""
        self._code = -signal.SIGKILL if code is None else code
        self._ended.set()

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        if not self._ended.is_set() and stack.state_of(self.pid) in {None, "Z"}:
            # Who tells its end may be held up itself; what is dead must not count as running.
            self._ended.wait(_END_SECONDS)
        return self._code if self._ended.is_set() else None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code; `subprocess.TimeoutExpired` if it runs for longer."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        assert self._code is not None
        return self._code

    def kill(self) -> None:
        """SIGKILL, unless it has ended."""
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM, unless it has ended."""
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        if not self._ended.is_set():
            with suppress(ProcessLookupError):  # its end is on its way to us
                os.kill(self.pid, number)


class WarmStart:
    """The warm interpreter of this test process; it is started with the first request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._interpreter: subprocess.Popen[bytes] | None = None
        self._asked: deque[tuple[threading.Event, list[int]]] = deque()
        self._running: dict[int, Forked] = {}
        self._early: dict[int, int] = {}

    def launch(
        self, words: Sequence[str], environment: Mapping[str, str], log: IO[bytes]
    ) -> stack.Launched:
        """See `stack.Launch`; what the interpreter has to see at its start gets a fresh one."""
        differs = any(environment.get(name) != os.environ.get(name) for name in _READ_AT_START)
        if differs or words[0] not in _FORKED:
            return stack.interpreter(words, environment, log)
        return self.fork(words, environment, log, Path.cwd())

    def fork(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        log: IO[bytes],
        directory: Path,
    ) -> Forked:
        """Run a module in a fork, in a directory."""
        request = {
            "words": [*words],
            "environment": dict(environment),
            "directory": str(directory),
        }
        reading, writing = os.pipe()
        with self._lock:
            if self._socket is None:
                self._socket = self._start()
            answered, pids = threading.Event(), list[int]()
            self._asked.append((answered, pids))
            message = json.dumps(request).encode()
            socket.send_fds(self._socket, [message], [writing, log.fileno()])
        os.close(writing)
        if not answered.wait(_START_SECONDS) or not pids:
            raise AssertionError("the warm interpreter does not answer")
        process = Forked(pids[0], os.fdopen(reading, encoding="utf-8"))
        with self._lock:
            self._running[process.pid] = process
            early = self._early.pop(process.pid, None)
        if early is not None:
            process.note_end(early)
        return process

    def close(self) -> None:
        """End the interpreter, and with it all that it has forked."""
        if self._socket is not None:
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._interpreter is not None:
            self._interpreter.wait()

    def _start(self) -> socket.socket:
        # Whole messages, so that a request and its descriptors arrive together.
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (mine, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1024 * 1024)
        with theirs:
            self._interpreter = subprocess.Popen(
                [sys.executable, str(SERVER), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        threading.Thread(target=self._listen, args=[mine], daemon=True).start()
        return mine

    def _listen(self, answers: socket.socket) -> None:
        while line := answers.recv(4096):
            told = json.loads(line)
            with self._lock:
                if "started" in told:
                    answered, pids = self._asked.popleft()
                    pids.append(told["started"])
                    answered.set()
                    continue
                process = self._running.pop(told["ended"], None)
                if process is None:
                    self._early[told["ended"]] = told["code"]
            if process is not None:
                process.note_end(told["code"])
        answers.close()
        with self._lock:
            lost, self._running, self._socket = [*self._running.values()], {}, None
            asked, self._asked = [*self._asked], deque()
        for process in lost:
            process.note_end(None)
        for answered, _ in asked:
            answered.set()


_installed: WarmStart | None = None


def run(
    words: Sequence[str],
    environment: Mapping[str, str],
    directory: Path | None = None,
    timeout_seconds: float = 60.0,
) -> subprocess.CompletedProcess[str]:
    """Run a module of the broker to its end, as `subprocess.run` does, with this environment alone.

    Raises:
        subprocess.TimeoutExpired: it was killed, since it took longer.
    """
    directory = directory or Path.cwd()
    if _installed is None:
        command = [sys.executable, "-m", *words]
        return subprocess.run(
            command, env=dict(environment), cwd=directory, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=timeout_seconds,
        )  # fmt: skip
    with tempfile.TemporaryFile() as errors:
        process = _installed.fork(words, environment, errors, directory)
        assert process.stdout is not None
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            process.kill()

        late = threading.Timer(timeout_seconds, expire)
        late.start()
        with process.stdout as output:
            said = output.read()
        code = process.wait()
        late.cancel()
        errors.seek(0)
        complained = errors.read().decode()
    if expired.is_set():
        raise subprocess.TimeoutExpired([*words], timeout_seconds, said, complained)
    return subprocess.CompletedProcess([*words], code, said, complained)


def install() -> Callable[[], None]:
    """Have every process of a stack forked, in this test process; return what ends that."""
    # macOS has no such sockets.
    if os.environ.get("WARM_START", "1") == "0" or sys.platform == "darwin":
        return lambda: None
    global _installed
    _installed = warm = WarmStart()
    stack.launch = warm.launch
    return warm.close
