"""A real HTTP server that is no broker, for what may stand between the SDK and one."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Said(NamedTuple):
    """One answer."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}


class Stranger:
    """Says the same to everyone; `asked` holds the request lines and `keys` the credentials."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[str] = []
        self.keys: list[str | None] = []


@contextmanager
def stranger(said: Said, tls: ssl.SSLContext | None = None) -> Iterator[Stranger]:
    """Serve one answer on a free port of this machine."""

    class Answering(BaseHTTPRequestHandler):
        def answer(self) -> None:
            made.asked.append(self.requestline)
            made.keys.append(self.headers.get("Authorization"))
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(said.status)
            for name, value in said.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(said.body)))
            self.end_headers()
            self.wfile.write(said.body)

        do_GET = do_POST = answer

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the test reads `asked`."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    scheme = "http" if tls is None else "https"
    made = Stranger(f"{scheme}://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
