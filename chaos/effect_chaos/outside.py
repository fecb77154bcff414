"""The outside system of a run: the demo's target as a process, and its control API.

Its ledger file is the truth about requests and effects; it survives a SIGKILL of the process, and
so do the modes of its kinds. What its next requests are to meet does not.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import httpx

from effect_chaos.processes import Child
from effect_chaos.tools import TOOLS

_READY: Final = "target listening on "
_CONTROL_TRIES: Final = 20
_CONTROL_PAUSE_SECONDS: Final = 0.2


class Outside:
    """The target's process and its control API; safe for several threads."""

    def __init__(self, directory: Path) -> None:
        self.ledger = directory / "target.sqlite"
        self.url = ""
        self._log = directory / "target.log"
        self._lock = threading.Lock()
        self._child: Child | None = None

    def start(self) -> None:
        """Start it; the first time on a free port, later on the same one."""
        with self._lock:
            self._start()
            for tool in TOOLS:
                if tool.mode is not None:
                    self._ask("modes", {"kind": tool.kind, **tool.mode})

    def _start(self) -> None:
        port = self.url.rpartition(":")[2] or "0"
        command = [sys.executable, "-P", "-m", "effect_broker.proof.target", "--port", port]
        self._child = Child(
            [*command, "--ledger", str(self.ledger)], dict(os.environ), self._log, _READY
        )
        self.url = self._child.wait_ready()

    def go_down(self, away_seconds: float) -> None:
        """SIGKILL; its address refuses for so long, and what was scripted is forgotten."""
        with self._lock:
            self._end(signal.SIGKILL)
            time.sleep(away_seconds)
            self._start()

    def be_honest(self) -> None:
        """Forget what was scripted."""
        with self._lock:
            self._end(signal.SIGTERM)
            self._start()

    def script(self, plans: Sequence[str], *, kind: str = "", method: str = "") -> None:
        """Let the next requests of a kind meet these plans, one each."""
        asked = {"script": list(plans), "kind": kind or None, "method": method or None}
        with self._lock:
            self._ask("faults", asked)

    def stop(self) -> None:
        """End it for good."""
        with self._lock:
            self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._child is not None:
            self._child.send(number)
            self._child.end()

    def _ask(self, path: str, body: dict[str, Any]) -> None:
        """Ask the control API; it hangs up when the next connection was to be cut."""
        for left in reversed(range(_CONTROL_TRIES)):
            try:
                answer = httpx.post(f"{self.url}/_control/{path}", json=body, trust_env=False)
            except httpx.TransportError:
                if not left:
                    raise
                time.sleep(_CONTROL_PAUSE_SECONDS)
            else:
                answer.raise_for_status()
                return
