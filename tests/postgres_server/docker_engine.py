"""A Docker engine's socket with a real PostgreSQL behind it.

This module answers, on a Unix socket, the part of the Docker Engine API that a client needs to run
one container, and nothing more: any other request is a 501 and a failed test. "The container" is an
embedded server that asks for the password from the container's environment, behind a TCP port.
"""

from __future__ import annotations

import json
import re
import socket
import socketserver
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
from psycopg import sql

from effect_broker.postgres.embedded import EmbeddedPostgres

CONTAINER_ID = "c0ffee" * 10 + "beef"


class _SocketServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    engine: DockerEngine


class _Proxy(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    allow_reuse_address = True
    target: Path


class _Relay(socketserver.BaseRequestHandler):
    """Carries bytes between a TCP client and the server's socket, as Docker's proxy does."""

    server: _Proxy

    def handle(self) -> None:
        inner = socket.socket(socket.AF_UNIX)
        with inner, suppress(OSError):
            inner.connect(str(self.server.target))
            back = threading.Thread(target=_copy, args=(inner, self.request), daemon=True)
            back.start()
            _copy(self.request, inner)
            back.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while block := source.recv(65536):
            sink.sendall(block)
        sink.shutdown(socket.SHUT_WR)


class DockerEngine:
    """An engine on `socket_path`, with room for one container whose files lie in `home`."""

    def __init__(self, socket_path: Path, home: Path, binaries: Path) -> None:
        self.socket_path = socket_path
        self.requests: list[str] = []
        """Method and path of each request, without the API version."""
        self.unknown: list[str] = []
        self.created: dict[str, Any] | None = None
        """The body of the container's creation, while there is a container."""
        self.name = ""
        self.status = "created"
        self.images: set[str] = set()
        self._postgres = EmbeddedPostgres(home, binaries, {"fsync": "off"})
        self._proxy: _Proxy | None = None
        self._server = _SocketServer(str(socket_path), _Api)
        self._server.engine = self

    def __enter__(self) -> DockerEngine:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.end()

    @property
    def port(self) -> int:
        """Where the running container's port 5432 is published."""
        assert self._proxy is not None
        return int(self._proxy.server_address[1])

    def begin(self) -> None:
        """Start the container: its PostgreSQL takes its password as the real image does."""
        assert self.created is not None
        variables = dict(pair.split("=", 1) for pair in self.created["Env"])
        password = variables["POSTGRES_PASSWORD"]
        url = self._postgres.start()
        with psycopg.connect(url, password=password, autocommit=True) as connection:
            connection.execute(sql.SQL("ALTER ROLE postgres PASSWORD {}").format(password))
            found = connection.execute("SHOW data_directory").fetchone()
            assert found is not None
            data = Path(found[0])
            (data / "pg_hba.conf").write_text("local all all scram-sha-256\n")
            connection.execute("SELECT pg_reload_conf()")
        self._proxy = _Proxy(("127.0.0.1", 0), _Relay)
        self._proxy.target = data / ".s.PGSQL.5432"
        threading.Thread(target=self._proxy.serve_forever, args=(0.02,), daemon=True).start()
        self.status = "running"

    def end(self) -> None:
        """Stop the container."""
        if self._proxy is not None:
            self._proxy.shutdown()
            self._proxy.server_close()
            self._proxy = None
        self._postgres.stop()
        self.status = "exited"

    def inspection(self) -> dict[str, Any]:
        """What the engine says of the container."""
        assert self.created is not None
        published = {}
        if self.status == "running":
            published = {"5432/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(self.port)}]}
        return {
            "Id": CONTAINER_ID,
            "Name": f"/{self.name}",
            "Image": "sha256:0",
            "State": {"Status": self.status},
            "Config": self.created,
            "HostConfig": self.created["HostConfig"],
            "NetworkSettings": {
                "Ports": published,
                "Networks": {"bridge": {"Gateway": "127.0.0.1", "IPAddress": "172.17.0.2"}},
            },
        }


class _Api(BaseHTTPRequestHandler):
    server: _SocketServer
    protocol_version = "HTTP/1.1"

    def address_string(self) -> str:
        return "unix"  # the parent wants an IP address

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def _answer(self) -> None:
        engine = self.server.engine
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = f"{self.command} {re.sub(r'^/v[0-9.]+', '', parts.path)}"
        engine.requests.append(request)
        status, answer = _respond(engine, request, query, body)
        if status == 501:
            engine.unknown.append(request)
        payload = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        if status == 204:
            payload = b""
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if status == 204 else "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)


def _respond(
    engine: DockerEngine, request: str, query: dict[str, str], body: bytes
) -> tuple[int, Any]:
    container = f"/containers/{CONTAINER_ID}"
    gone = 404, {"message": "No such container"}
    if request == "GET /version":
        return 200, {"ApiVersion": "1.50", "MinAPIVersion": "1.24", "Os": "linux"}
    if request == "GET /_ping":
        return 200, "OK"
    if request == "GET /containers/json":
        wanted = json.loads(query["filters"])
        there = engine.created is not None and (
            wanted.get("id") == [CONTAINER_ID]
            or re.search(wanted.get("name", ["$^"])[0], f"/{engine.name}")
        )
        return 200, [engine.inspection()] if there else []
    if request == "GET /networks":
        return 200, []
    if request == "POST /images/create":
        engine.images.add(f"{query['fromImage']}:{query['tag']}")
        return 200, {"status": "Pull complete"}
    if image := re.fullmatch(r"GET /images/(.+)/json", request):
        known = image[1] in engine.images
        return (200, {"Id": "sha256:0"}) if known else (404, {"message": "No such image"})
    if request == "POST /containers/create":
        engine.created, engine.name, engine.status = json.loads(body), query["name"], "created"
        return 201, {"Id": CONTAINER_ID, "Warnings": []}
    if engine.created is None:
        return gone
    if request == f"GET {container}/json":
        return 200, engine.inspection()
    if request == f"POST {container}/start":
        engine.begin()
        return 204, ""
    if request == f"POST {container}/stop":
        engine.end()
        return 204, ""
    if request == f"DELETE {container}":
        if query.get("v") in ("1", "True", "true"):
            return 409, {"message": "this would delete the data"}
        engine.end()
        engine.created = None
        return 204, ""
    return 501, {"message": f"{request} is not part of this engine"}
