"""How the proxy reaches the server behind it: a program on pipes, or streamable HTTP.

The server may be anybody's. One message of it has a size that it cannot pass over, nothing that it
says is decompressed, and an answer that never ends is left when nobody waits for it any more.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import httpx2
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client

from effect_adapters.http.connection import verifying_tls
from effect_adapters.mcp.bounded import ask_plainly, bounded
from effect_adapters.mcp.gate import StandingGate
from effect_adapters.mcp.program_transport import program_transport
from effect_adapters.mcp.programs import Runnable

# What stays open for as long as the line does: the stream of notices, in either protocol.
_STANDING_METHOD: Final = "subscriptions/listen"
_EVENTS: Final = "text/event-stream"
# After the session has given up a call, its answer is still read for so long.
_GRACE_SECONDS: Final = 5.0
# The farewell to a session is a courtesy.
_FAREWELL_SECONDS: Final = 2.0


def on_pipes(program: Runnable, bytes_max: int) -> AbstractAsyncContextManager[TransportStreams]:
    """Give the streams of a program that is started; its stderr is this process's."""
    return program_transport(program, StandingGate(), bytes_max, errors=None)


@asynccontextmanager
async def over_http(
    url: str,
    headers: Mapping[str, str],
    *,
    bytes_max: int,
    open_seconds: float,
    read_seconds: float,
) -> AsyncIterator[TransportStreams]:
    """Give the streams of a server at a URL."""
    client = httpx2.AsyncClient(
        transport=_PlainTransport(bytes_max, read_seconds + _GRACE_SECONDS),
        headers=dict(headers),
        # The session has a limit for each call; a stream of notices has none.
        timeout=httpx2.Timeout(None, connect=open_seconds),
        trust_env=False,
    )
    async with (
        client,
        streamable_http_client(url, http_client=client, max_sse_event_size=bytes_max) as streams,
    ):
        yield streams


class _PlainTransport(httpx2.AsyncBaseTransport):
    """Every request of the line on its way to the socket.

    Args:
        answer_seconds: within which an answer has to be whole, unless it is a stream of notices.
    """

    def __init__(self, bytes_max: int, answer_seconds: float) -> None:
        self._bytes_max = bytes_max
        self._answer_seconds = answer_seconds
        self._inner = httpx2.AsyncHTTPTransport(verify=verifying_tls(), trust_env=False, retries=0)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request."""
        ask_plainly(request)
        if _stands(request):
            response = await self._inner.handle_async_request(request)
            # The library limits each event of it; it has no size as a whole.
            if response.headers.get("content-type", "").startswith(_EVENTS):
                return response
            return bounded(response, self._bytes_max)
        seconds = _FAREWELL_SECONDS if request.method == "DELETE" else self._answer_seconds
        until = asyncio.get_running_loop().time() + seconds
        async with _ending(until):
            response = await self._inner.handle_async_request(request)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Ending(response.stream, until)
        return bounded(response, self._bytes_max)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._inner.aclose()


class _Ending(httpx2.AsyncByteStream):
    """The body of an answer, until nobody waits for it any more."""

    def __init__(self, stream: httpx2.AsyncByteStream, until: float) -> None:
        self._stream = stream
        self._until = until

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks = aiter(self._stream)
        while True:
            try:
                async with _ending(self._until):
                    chunk = await anext(chunks)
            except StopAsyncIteration:
                return
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


@asynccontextmanager
async def _ending(until: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout_at(until):
            yield
    except TimeoutError:
        raise httpx2.ReadTimeout("the answer took too long") from None


def _stands(request: httpx2.Request) -> bool:
    if request.method == "GET":
        return True
    try:
        message = json.loads(request.content)
    except (ValueError, httpx2.RequestNotRead):
        return False
    return isinstance(message, dict) and message.get("method") == _STANDING_METHOD
