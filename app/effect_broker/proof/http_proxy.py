"""A proxy in front of the target, for faults of the way between: refused, or delivered twice.

It takes one request for each connection, as the broker sends them. It lives in a thread of its own
and keeps its port over `refuse` and `accept`, so that a contract can name it from the beginning.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

_START_SECONDS: Final = 10.0
_HEAD_BYTES_MAX: Final = 64 * 1024


class HttpProxy:
    """A proxy for one target: ``with HttpProxy(target.url) as proxy: …``.

    Args:
        target_url: origin of the target behind it.
        deliveries: how often each mutating request is delivered; the last answer is passed on.
        refusing: begin without a listener, so that connections are refused.
    """

    def __init__(self, target_url: str, *, deliveries: int = 1, refusing: bool = False) -> None:
        parts = urlsplit(target_url)
        assert parts.hostname is not None, "the origin of a target names a host"
        self._target = parts.hostname, parts.port or 80
        self._deliveries = deliveries
        self._refusing = refusing
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True, name="http-proxy")
        self._server: asyncio.Server | None = None
        self._port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        # The port is taken once, so that it is free of others when it is refused at first.
        self.accept()
        if self._refusing:
            self.refuse()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.refuse()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_SECONDS)

    @property
    def url(self) -> str:
        """The origin that a contract names."""
        return f"http://127.0.0.1:{self._port}"

    def accept(self) -> None:
        """Listen, on the same port as before."""
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(_START_SECONDS)

    def refuse(self) -> None:
        """Close the port: the kernel refuses connections."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_START_SECONDS)

    # In the proxy's thread -----------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        under_way = asyncio.all_tasks(self._loop)
        for task in under_way:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*under_way, return_exceptions=True))
        self._loop.close()

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(
                self._session, "127.0.0.1", self._port, family=socket.AF_INET
            )
            self._port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    async def _session(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await _request(reader)
            times = 1 if request.startswith((b"GET ", b"HEAD ")) else self._deliveries
            answer = b""
            for _ in range(times):
                answer = await self._delivered(request)
            writer.write(answer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client sees a connection that ends without an answer
        finally:
            writer.close()

    async def _delivered(self, request: bytes) -> bytes:
        """Deliver once and return the whole answer; the broker asks for closed connections."""
        reader, writer = await asyncio.open_connection(*self._target)
        try:
            writer.write(request)
            await writer.drain()
            return await reader.read(-1)
        finally:
            writer.close()


async def _request(reader: asyncio.StreamReader) -> bytes:
    """Return one request as it came, head and body."""
    head = await reader.readuntil(b"\r\n\r\n")
    if len(head) > _HEAD_BYTES_MAX:
        raise asyncio.LimitOverrunError("the head is too long", len(head))
    length = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            length = int(value)
    return head + await reader.readexactly(length)
