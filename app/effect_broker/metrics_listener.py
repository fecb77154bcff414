"""A small HTTP listener for `/metrics`, beside what a process does otherwise.

It is the only page there, without a key: it listens on the loopback address unless a setting says
otherwise, and belongs into a network that only the scraper reaches.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from typing import Any, Final

import uvicorn

from effect_broker.config import ConfigurationProblem
from effect_broker.log_events import event

_log = logging.getLogger(__name__)

# Takes what a scraper accepts; gives the page and its media type.
MetricsPage = Callable[[str], Awaitable[tuple[bytes, str]]]

_BACKLOG: Final = 16
# Scrapes are few; more at once are a mistake, and get 503 from the server.
_REQUESTS_MAX: Final = 16
_SHUTDOWN_SECONDS: Final = 1

_Message = MutableMapping[str, Any]


@contextlib.asynccontextmanager
async def listening(host: str, port: int, page: MetricsPage) -> AsyncIterator[int]:
    """Serve the page while the block runs; give the port, which port 0 leaves to the system.

    Raises:
        ConfigurationProblem: nothing can listen there.
    """
    bound = _bound(host, port)
    with bound:
        server = _Server(
            uvicorn.Config(
                _application(page),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=_REQUESTS_MAX,
                timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
            )
        )
        serving = asyncio.create_task(server.serve(sockets=[bound]))
        taken = int(bound.getsockname()[1])
        _log.info("metrics on port %d", taken, extra=event("metrics_listening", port=taken))
        try:
            yield taken
        finally:
            server.should_exit = True
            await serving


class _Server(uvicorn.Server):
    """uvicorn's, without hands on the signals of the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _bound(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError):
        raise ConfigurationProblem(
            f"EFFECT_BROKER_METRICS_HOST: {host} is not an address of this machine"
        ) from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(_BACKLOG)
    except OSError as problem:
        bound.close()
        raise ConfigurationProblem(
            f"EFFECT_BROKER_METRICS_PORT: cannot listen on {host}:{port}: {problem.strerror}; "
            "each process of a machine needs a port of its own"
        ) from None
    return bound


def _application(page: MetricsPage) -> Callable[..., Awaitable[None]]:
    async def application(
        scope: _Message,
        receive: Callable[[], Awaitable[_Message]],
        send: Callable[[_Message], Awaitable[None]],
    ) -> None:
        status, body, media_type = 404, b"", "text/plain"
        if scope["path"] == "/metrics":
            status = 405
            if scope["method"] in {"GET", "HEAD"}:
                headers = dict(scope["headers"])
                accept = headers.get(b"accept", b"").decode("latin-1")
                status = 200
                body, media_type = await page(accept)
        told = [
            (b"content-type", media_type.encode()),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": told})
        await send({"type": "http.response.body", "body": body})

    return application
