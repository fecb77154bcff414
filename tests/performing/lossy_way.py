"""A way to a broker over real sockets that delivers requests and loses the answers it is told to.

The broker's answer is read to its end before the caller's connection is closed without it: what the
broker has committed stands, and the caller cannot tell.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import urlsplit

_HOP: Final = frozenset({"connection", "transfer-encoding", "content-length"})
_ANSWER_SECONDS: Final = 60.0


class LossyWay:
    """What has passed, and what is to be lost; `url` is where callers ask."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.delivered: list[str] = []
        self._losing: list[str] = []
        self._lock = threading.Lock()

    def lose(self, end: str, *, times: int = 1) -> None:
        """Lose the next answers to requests whose path ends so."""
        with self._lock:
            self._losing += [end] * times

    def find_again(self) -> None:
        """Lose no answers any more."""
        with self._lock:
            self._losing.clear()

    def count(self, end: str) -> int:
        """How many requests were answered by the broker whose path ends so."""
        return sum(path.endswith(end) for path in self.delivered)

    def passed(self, path: str) -> bool:
        """Take note of an answer of the broker; return whether the caller gets it."""
        with self._lock:
            self.delivered.append(path)
            lost = next((end for end in self._losing if path.endswith(end)), None)
            if lost is not None:
                self._losing.remove(lost)
            return lost is None


@contextmanager
def lossy_way(origin: str) -> Iterator[LossyWay]:
    """Stand in front of a broker, on a free port of this machine."""
    parts = urlsplit(origin)
    assert parts.hostname is not None, "the origin of a broker names a host"
    host, port = parts.hostname, parts.port

    class Passing(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def ask(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            broker = http.client.HTTPConnection(host, port, timeout=_ANSWER_SECONDS)
            try:
                broker.request(self.command, self.path, body, dict(self.headers.items()))
                answer = broker.getresponse()
                said = answer.read()
            finally:
                broker.close()
            if not way.passed(self.path.partition("?")[0]):
                self.close_connection = True
                return
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_GET = do_POST = ask

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the test reads `delivered`."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Passing)
    way = LossyWay(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield way
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
