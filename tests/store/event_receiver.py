"""A receiver of events as a process of its own; a file tells it how to answer, another what came.

It verifies signatures with the very text of docs/event-stream.md. Run as a program:
`event_receiver.py PORT DIRECTORY`.
"""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).parents[2] / "docs" / "event-stream.md"


def documented_receiver() -> str:
    """The program that the documentation shows."""
    (found,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    return str(found)


class ReceiverProcess:
    """The process, from outside: started once, it is as many receivers as there are paths."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it unless it runs, and wait until it accepts connections."""
        if self._process is not None and self._process.poll() is None:
            return
        command = [sys.executable, __file__, str(self.port), str(self.directory)]
        self._process = subprocess.Popen(command, env=os.environ | {"WEBHOOK_SECRET": ""})
        ends_at = time.monotonic() + 20
        while time.monotonic() < ends_at:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        raise AssertionError("the receiver does not come up")

    def stop(self) -> None:
        """End it, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Receiver:
    """One receiver in the process."""

    def __init__(self, process: ReceiverProcess, name: str) -> None:
        self.process = process
        self.directory = process.directory / name
        self.directory.mkdir()
        self.url = f"http://127.0.0.1:{process.port}/{name}"
        self.answer()

    def trust(self, secret: str) -> None:
        """Verify with this secret from now on."""
        (self.directory / "secret").write_text(secret)

    def answer(self, default: str = "ok", **effects: str) -> None:
        """From now on answer so: by effect id, or the default."""
        told = json.dumps({"default": default, "effects": effects})
        fresh = self.directory / "answers.new"
        fresh.write_text(told)
        fresh.replace(self.directory / "answers")

    def came(self, answered: str | None = None) -> list[dict[str, Any]]:
        """What has come, in order; only what was answered so."""
        path = self.directory / "came"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [json.loads(line) for line in lines]
        return [one for one in found if answered in (None, one["answered"])]


class _Requests(BaseHTTPRequestHandler):
    verified: Any
    directory: Path

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        own = self.directory / self.path.strip("/")
        event = type(self).verified((own / "secret").read_text(), self.headers, body)
        told = json.loads((own / "answers").read_text())
        answered = "forged"
        if event is not None:
            answered = told["effects"].get(event["effect_id"], told["default"])
        line = {"answered": answered, "at": time.time(), "event": event}
        with (own / "came").open("a") as log:
            log.write(json.dumps(line) + "\n")
        self._answered(answered)

    def _answered(self, answered: str) -> None:
        if answered == "hang":
            time.sleep(60)
        elif answered in {"slow", "slow_fail"}:
            time.sleep(0.3)
        elif answered == "die":
            os._exit(1)
        status = {"ok": 204, "slow": 204, "gone": 410, "busy": 429, "away": 302, "forged": 401}
        self.send_response(status.get(answered, 500))
        if answered == "busy":
            self.send_header("Retry-After", "1")
        if answered == "away":
            self.send_header("Location", self.path)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def main() -> None:
    """Serve until killed."""
    names: dict[str, Any] = {"__name__": "documented"}
    exec(compile(documented_receiver(), str(DOCUMENT), "exec"), names)

    one_at_a_time = threading.Lock()  # the documented secret is a global

    def verified(secret: str, headers: Any, body: bytes) -> Any:
        with one_at_a_time:
            names["SECRET"] = base64.b64decode(secret.removeprefix("whsec_"))
            return names["verified"](headers, body)

    _Requests.verified = staticmethod(verified)
    _Requests.directory = Path(sys.argv[2])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), _Requests).serve_forever()


if __name__ == "__main__":
    main()
