"""A server over streamable HTTP, for one call: what the SDK sends passes through here.

The SDK follows redirects of the same origin, sends again after some errors and ends sessions by
itself; below it, this file sees every request that is made. One tools/call passes, nothing passes
after the budget's end, and every end of a connection resets it, so that the kernel does not go on
sending what it still holds.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client

from effect_adapters.mcp.bounded import Compressed, ask_plainly, bounded
from effect_adapters.mcp.gate import Gate

_RESET_ON_CLOSE: Final = (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
# The farewell to a session is a courtesy.
_FAREWELL_SECONDS: Final = 2.0
_GATE_EVENT: Final = "http11.send_request_headers.started"


class GatedTransport(httpx2.AsyncBaseTransport):
    """Every request of one conversation on its way to the socket."""

    def __init__(self, tls: ssl.SSLContext, gate: Gate, response_bytes_max: int) -> None:
        self._gate = gate
        self._response_bytes_max = response_bytes_max
        self._inner = httpx2.AsyncHTTPTransport(
            verify=tls, trust_env=False, retries=0, socket_options=[_RESET_ON_CLOSE]
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request, if it may leave."""
        if self._gate.spent:
            raise httpx2.ConnectTimeout("the time of this exchange is over")
        is_call = _is_call(request)
        if is_call:
            self._gate.check_first()
            request.extensions["trace"] = self._on_event
        if request.method == "DELETE":
            request.extensions["timeout"] = dict.fromkeys(
                ("connect", "read", "write", "pool"), _FAREWELL_SECONDS
            )
        ask_plainly(request)
        response = await self._inner.handle_async_request(request)
        if is_call:
            self._gate.status = response.status_code
        try:
            return bounded(response, self._response_bytes_max)
        except Compressed:
            self._gate.trouble = "answer_compressed"
            await response.aclose()
            raise

    async def aclose(self) -> None:
        """Close all connections."""
        await self._inner.aclose()

    async def _on_event(self, name: str, _info: dict[str, Any]) -> None:
        # Awaited by the library before the first byte of the head.
        if name == _GATE_EVENT:
            self._gate.open()


def _is_call(request: httpx2.Request) -> bool:
    if request.method != "POST":
        return False
    try:
        message = json.loads(request.content)
    except (ValueError, httpx2.RequestNotRead):
        return True  # nothing else of the SDK looks so; whatever it is, it leaves once
    return not isinstance(message, dict) or message.get("method") == "tools/call"


@asynccontextmanager
async def http_transport(
    url: str, headers: Mapping[str, str], tls: ssl.SSLContext, gate: Gate, response_bytes_max: int
) -> AsyncIterator[TransportStreams]:
    """Give the streams of a server; every request to it has passed `GatedTransport`."""
    client = httpx2.AsyncClient(
        transport=GatedTransport(tls, gate, response_bytes_max),
        headers=dict(headers),
        # The budget ends the exchange as a whole, and the gate what comes after it.
        timeout=None,
        trust_env=False,
    )
    async with (
        client,
        streamable_http_client(
            url, http_client=client, max_sse_event_size=response_bytes_max
        ) as streams,
    ):
        yield streams
