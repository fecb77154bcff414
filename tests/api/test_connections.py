"""Who opens connections and brings nothing, or takes nothing, does not keep the others out."""

from __future__ import annotations

import asyncio
import resource
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from api.deployment import Deployment, charge
from effect_broker.api import bodies, connections
from effect_broker.api.connections import Connections, connections_max
from effect_broker.proof.stack import Stack

PATH = "/v1/effects"

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def stack(deployment: Deployment, tmp_path: Path) -> Iterator[Stack]:
    """Processes over the deployment."""
    with Stack(tmp_path, deployment.environment) as made:
        yield made


# The real process ---------------------------------------------------------------------------------


@contextmanager
def _few_files() -> Iterator[None]:
    """Processes that are started inside may have 256 files open, as on a small machine."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_idle_connections_without_a_key_keep_nobody_out_and_fill_no_log(stack: Stack) -> None:
    with _few_files():
        api = stack.api()
    url = httpx.URL(api.wait_ready())
    with ExitStack() as held:
        for _ in range(400):
            with suppress(OSError):
                idle = socket.create_connection((url.host, url.port or 0), timeout=10)
                held.enter_context(idle)
        for _ in range(5):
            began = time.monotonic()
            assert httpx.get(f"{url}/healthz", timeout=10).status_code == 200
            assert time.monotonic() - began < 10
    assert api.log.stat().st_size < 4096
    assert api.terminate() == 0


def _listens(url: httpx.URL) -> bool:
    try:
        socket.create_connection((url.host, url.port or 0), timeout=10).close()
    except OSError:
        return False
    return True


def test_a_process_told_twice_to_end_ends_without_a_traceback(
    stack: Stack, deployment: Deployment
) -> None:
    api = stack.api()
    url = httpx.URL(api.wait_ready())
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: broker\r\nContent-Length: 100\r\n"
        "Content-Type: application/json\r\n"
        f"Authorization: {deployment.headers()['Authorization']}\r\nExpect: 100-continue\r\n\r\n"
    )
    with socket.create_connection((url.host, url.port or 0), timeout=10) as connection:
        connection.sendall(head.encode())
        # It reads the body now, which does not come, and so it cannot end at once.
        assert connection.recv(1024).startswith(b"HTTP/1.1 100 ")
        api.ask_to_end()
        while _listens(url):
            time.sleep(0.01)
        assert api.alive
        api.ask_to_end()
        assert api.wait_ended(20) == 0
    log = api.log.read_text()
    assert "Traceback" not in log
    assert "Error" not in log


# One server in this process -----------------------------------------------------------------------


@asynccontextmanager
async def serving(app: ASGIApp, counted: Connections) -> AsyncIterator[int]:
    """Give the port of a server as `serve` makes it, but for its numbers."""
    config = uvicorn.Config(
        app,
        http=counted.protocol,  # type: ignore[arg-type]  # called like the class
        lifespan="off",
        log_config=None,
        backlog=connections.ACCEPTS_AT_ONCE,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        task = asyncio.create_task(server._serve(sockets=[listening]))
        await _until(lambda: server.started)
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            await task


class _Held:
    """Answers a request when it may, with so many bytes."""

    def __init__(self, size: int = 2) -> None:
        self.begun = 0
        self.may_answer = asyncio.Event()
        self._size = size

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun += 1
        await self.may_answer.wait()
        headers = [(b"content-length", str(self._size).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"x" * self._size})


_REQUEST = b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n"


async def _until(holds: Callable[[], bool]) -> None:
    """Wait for something that only the server's own state tells."""
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def _ended(reader: asyncio.StreamReader, seconds: float = 10.0) -> bytes:
    """What is still to be read until the other side has ended the connection."""
    async with asyncio.timeout(seconds):
        with suppress(ConnectionResetError):
            return await reader.read()
    return b""


async def _seconds_until_ended(port: int, first: bytes, drip: bytes = b"") -> float:
    """Send `first` and then `drip` again and again; the seconds until the connection ends."""
    loop = asyncio.get_running_loop()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began = loop.time()
    writer.write(first)

    async def dripping() -> None:
        while drip:
            writer.write(drip)
            await asyncio.sleep(0.05)

    task = asyncio.create_task(dripping())
    try:
        await _ended(reader)
        return loop.time() - began
    finally:
        task.cancel()
        writer.close()


async def test_a_connection_that_brings_no_whole_head_ends() -> None:
    app = _Held()
    app.may_answer.set()
    async with serving(app, Connections(50, head_seconds=0.5)) as port:
        assert await _seconds_until_ended(port, b"") >= 0.5
        assert await _seconds_until_ended(port, b"GET / HTTP/1.1\r\nX: ", b"x") >= 0.5
        # Nor does an answered request buy time for the head of the next, or for its own body.
        assert await _seconds_until_ended(port, _REQUEST + b"GET / HTTP/1.1\r\nX: ", b"x") >= 0.5
        post = b"POST / HTTP/1.1\r\nHost: broker\r\nContent-Length: 100000\r\n\r\n"
        assert await _seconds_until_ended(port, post, b"x") >= 0.5


async def test_a_request_under_way_may_take_longer_than_a_head() -> None:
    app = _Held()
    async with serving(app, Connections(50, head_seconds=0.3)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_REQUEST)
        await asyncio.sleep(1.0)
        app.may_answer.set()
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_the_connection_that_waits_longest_gives_way() -> None:
    app = _Held()
    app.may_answer.set()
    async with serving(app, Connections(4, head_seconds=30.0)) as port:
        idle = []
        for _ in range(4):
            idle.append(await asyncio.open_connection("127.0.0.1", port))
            await asyncio.sleep(0.05)
        for round_ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(_REQUEST)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            assert await _ended(idle[round_][0]) == b""
            writer.close()
            await asyncio.sleep(0.05)
            idle.append(await asyncio.open_connection("127.0.0.1", port))
        for _, writer in idle:
            writer.close()


async def test_where_all_are_busy_a_newcomer_is_told_so() -> None:
    app = _Held()
    async with serving(app, Connections(3)) as port:
        busy = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for _, writer in busy:
            writer.write(_REQUEST)
        await _until(lambda: app.begun == 3)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            refused = await client.get("/v1/effects")
            assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
            assert refused.headers["retry-after"] == "1"
            assert refused.headers["connection"] == "close"
            app.may_answer.set()
            for reader, writer in busy:
                assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
                writer.close()
            assert (await client.get("/")).status_code == 200
    assert app.begun == 4


async def test_a_client_that_takes_nothing_of_its_answer_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "_WRITE_SECONDS", 0.5)
    monkeypatch.setattr(connections, "_CLOSE_SECONDS", 0.5)
    app = _Held(50_000_000)
    app.may_answer.set()
    counted = Connections(50)
    async with serving(app, counted) as port:
        for request in (_REQUEST, _REQUEST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            writer.write(request)
            await _until(lambda: counted._open == 1)
            await _until(lambda: counted._open == 0)
            assert len(await _ended(reader, 30.0)) < 50_000_000
            writer.close()


@pytest.mark.parametrize("drip", [b"", b" "])
async def test_a_body_that_does_not_come_is_refused_and_its_connection_ends(
    application: FastAPI, deployment: Deployment, monkeypatch: pytest.MonkeyPatch, drip: bytes
) -> None:
    monkeypatch.setattr(bodies, "_BODY_IDLE_SECONDS", 0.5)
    monkeypatch.setattr(bodies, "_BODY_SECONDS", 1.0)
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: broker\r\nContent-Length: 100000\r\n"
        "Content-Type: application/json\r\n"
        f"Authorization: {deployment.headers()['Authorization']}\r\n\r\n"
    ).encode()
    async with serving(application, Connections(50)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        ending = asyncio.create_task(_ended(reader))
        while not ending.done():
            writer.write(drip)
            await asyncio.sleep(0.05)
        writer.close()
        assert ending.result().startswith(b"HTTP/1.1 400 ")
        assert b"request_malformed" in ending.result()
    assert deployment.count("effect_intents") == 0


def test_there_are_descriptors_for_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    def limited(soft: int) -> int:
        limits: Any = lambda _: (soft, soft)  # noqa: E731
        monkeypatch.setattr(resource, "getrlimit", limits)
        return connections_max()

    assert limited(1024) + connections.ACCEPTS_AT_ONCE < 1024 - 64
    assert limited(256) + connections.ACCEPTS_AT_ONCE < 256 - 32
    assert 0 < limited(64) < 64
    assert limited(resource.RLIM_INFINITY) == limited(10**6) == 4096


async def test_the_documentation_loads_nothing_from_strangers(
    application: FastAPI, api: httpx.AsyncClient
) -> None:
    for path in ("/docs", "/redoc", "/docs/oauth2-redirect"):
        assert (await api.get(path)).status_code == 404
    assert (await api.get("/openapi.json")).status_code == 200
    assert (await api.post(PATH, json=charge())).status_code == 202
