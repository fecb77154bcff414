"""One HTTP exchange, sent at most once: this file owns what is proved to have left.

There is no retry, no redirect, no keep-alive, no proxy and no HTTP/2 here, since each of them can
send a request twice behind the caller's back. The end of an exchange is one of three values, and
no exception of a library leaves:

    Reply     a complete answer is in
    NotSent   it is proved that no byte of the request left
    Lost      everything else: the request may have arrived, and may have been carried out

The rule for `NotSent`: the event `send_request_headers.started` of this exchange did not fire, or
the hook on it vetoed, or the request was refused by our own protocol library before its first
byte. The class of an exception never counts: a peer that read nothing and one that did the work
look the same from here. The hook is awaited before the first byte, which makes it the last gate
of that byte; the remaining time is checked there, and again in front of each piece that follows.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpcore

from effect_adapters.base import Budget, Reach
from effect_adapters.http.connection import (
    BudgetSpent,
    ConnectFailed,
    Connection,
    ResponseTooLarge,
    connect,
)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where requests go; `host` is ASCII, an IPv6 address without brackets."""

    scheme: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """A request as it goes out, credentials included; so nothing of it is ever printed.

    Attributes:
        target: path and query, percent-encoded, sent as it stands.
        headers: all but Host, Content-Length and Connection, which belong to the transport.
    """

    method: str
    origin: Origin
    target: bytes = field(repr=False)
    headers: tuple[tuple[bytes, bytes], ...] = field(repr=False)
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete answer.

    Attributes:
        headers: in the peer's order, names in lower case, values as Latin-1 text.
        body: as sent, never decompressed.
    """

    status: int
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes = field(repr=False)

    def header(self, name: str) -> str | None:
        """Return the first value of the header `name` (lower case), if there is one."""
        return next((value for key, value in self.headers if key == name), None)

    @property
    def digest(self) -> str | None:
        """SHA-256 (hex) of the body, None without one."""
        return body_digest(self.body)


@dataclass(frozen=True, slots=True)
class NotSent:
    """It is proved that no byte of the request left; `code` says what stopped it."""

    code: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The request may have left and no complete answer came.

    Attributes:
        code: what ended the exchange.
        status: the status number, where at least the head of an answer was complete.
        digest: SHA-256 (hex) of the body bytes that came, if any did.
    """

    code: str
    status: int | None = None
    digest: str | None = None


End = Reply | NotSent | Lost

# The head comes on top of the body's limit; httpcore refuses a longer one (100 KiB) by itself.
_HEAD_BYTES_MAX = 102_400

# What an exception of httpcore means once the gate is passed; the phase may say more. A test
# enumerates httpcore's classes against this table.
CODE_BY_ERROR: dict[type[Exception], str] = {
    httpcore.ConnectError: "connect_failed",
    httpcore.ConnectTimeout: "connect_timeout",
    httpcore.ConnectionNotAvailable: "adapter_error",
    httpcore.LocalProtocolError: "invalid_request",
    httpcore.NetworkError: "reset",
    httpcore.PoolTimeout: "deadline",
    httpcore.ProtocolError: "garbage_answer",
    httpcore.ProxyError: "adapter_error",
    httpcore.ReadError: "reset",
    httpcore.ReadTimeout: "deadline",
    httpcore.RemoteProtocolError: "garbage_answer",
    httpcore.TimeoutException: "deadline",
    httpcore.UnsupportedProtocol: "adapter_error",
    httpcore.WriteError: "reset",
    httpcore.WriteTimeout: "deadline",
}


def body_digest(body: bytes) -> str | None:
    """Return SHA-256 (hex) of `body`, None where it is empty."""
    return hashlib.sha256(body).hexdigest() if body else None


async def exchange(
    request: OutgoingRequest,
    budget: Budget,
    reach: Reach,
    response_bytes_max: int,
    tls: ssl.SSLContext,
    *,
    hang_up: bool = False,
) -> End:
    """Send `request` at most once and return how that ended; see `Exchange.run`."""
    one = Exchange(request, budget, reach, response_bytes_max, tls, hang_up=hang_up)
    return await one.run()


class Exchange:
    """One exchange; after a cancellation `unfinished` still tells what it may have done."""

    def __init__(
        self,
        request: OutgoingRequest,
        budget: Budget,
        reach: Reach,
        response_bytes_max: int,
        tls: ssl.SSLContext,
        admit: Callable[[str], bool] | None = None,
        *,
        hang_up: bool = False,
    ) -> None:
        self._admit = admit
        self._hang_up = hang_up
        self._request = request
        self._budget = budget
        self._reach = reach
        self._response_bytes_max = response_bytes_max
        self._tls = tls
        self._connection: Connection | None = None
        self._gate_passed = False
        self._head_refused = False
        self._status: int | None = None
        self._body = bytearray()

    async def run(self) -> End:
        """Send the request at most once, within the budget.

        Raises:
            asyncio.CancelledError: the task was cancelled; the connection has been reset.
        """
        if self._budget.remaining_seconds() <= 0:
            return NotSent("budget_spent")
        origin = self._request.origin
        tls = self._tls if origin.scheme == "https" else None
        try:
            connection = await connect(origin.host, origin.port, tls, self._budget, self._admit)
            connection.answer_bytes_max = self._response_bytes_max + _HEAD_BYTES_MAX
            connection.past_last_gate = lambda: self._reach("after_last_gate")
            self._connection = connection
            # One deadline over the whole: a limit per read would let a drip run on for ever.
            async with asyncio.timeout(max(self._budget.remaining_seconds(), 0)):
                return await self._converse(connection)
        except TimeoutError:
            return self.unfinished("deadline")
        except BudgetSpent:
            return self.unfinished("deadline" if self._gate_passed else "budget_spent")
        except ConnectFailed as failure:
            return self.unfinished(failure.code)
        except ResponseTooLarge:
            return self.unfinished("response_too_large")
        except Exception as error:
            # The mapping boundary: whatever it was, its text may hold what nobody may read.
            return self._failed(error)
        finally:
            if self._connection is not None:
                self._connection.abort()

    def unfinished(self, code: str) -> NotSent | Lost:
        """Return what this exchange proves while no complete answer is in."""
        if not self._may_have_left:
            return NotSent(code)
        return Lost(code, self._status, body_digest(bytes(self._body)))

    @property
    def _may_have_left(self) -> bool:
        if not self._gate_passed:
            return False
        # Our own library refused the head; the count at the socket has to agree.
        written = self._connection is None or self._connection.request_bytes > 0
        return written or not self._head_refused

    async def _converse(self, connection: Connection) -> Reply:
        request = self._request
        origin = request.origin
        core_origin = httpcore.Origin(origin.scheme.encode(), origin.host.encode(), origin.port)
        http = httpcore.AsyncHTTP11Connection(core_origin, connection)
        url = httpcore.URL(
            scheme=core_origin.scheme,
            host=core_origin.host,
            port=core_origin.port,
            target=request.target,
        )
        response = await http.handle_async_request(
            httpcore.Request(
                request.method.encode(),
                url,
                headers=transport_headers(request),
                content=request.body,
                extensions={"trace": self._on_event},
            )
        )
        self._status = response.status
        async for chunk in response.aiter_stream():
            self._body += chunk
        if len(self._body) > self._response_bytes_max:
            raise ResponseTooLarge
        connection.release()
        headers = tuple(
            (name.decode("latin-1").lower(), value.decode("latin-1"))
            for name, value in response.headers
        )
        return Reply(response.status, headers, bytes(self._body))

    async def _on_event(self, name: str, info: dict[str, Any]) -> None:
        """Follow httpcore's events; awaited by it, so the gate stands before the first byte."""
        if name == "http11.send_request_headers.started":
            self._reach("before_socket_write")
            if self._budget.remaining_seconds() <= 0:
                raise BudgetSpent
            self._gate_passed = True
            self._completes(not self._request.body)
        elif name == "http11.send_request_body.started":
            self._completes(True)
        elif name == "http11.send_request_headers.failed":
            error = info.get("exception")
            self._head_refused = isinstance(error, httpcore.LocalProtocolError)
        elif name == "http11.send_request_body.complete" and self._hang_up:
            assert self._connection is not None, "a body was written to it"
            self._connection.end_of_writing()

    def _completes(self, completes: bool) -> None:
        assert self._connection is not None, "an event of an exchange has a connection under it"
        self._connection.completes = completes

    def _failed(self, error: Exception) -> NotSent | Lost:
        code = CODE_BY_ERROR.get(type(error), "adapter_error")
        if self._head_refused:
            return self.unfinished("invalid_header")
        connection = self._connection
        if code == "garbage_answer" and connection is not None and connection.ended_by_peer:
            if self._status is not None:
                return self.unfinished("truncated_body")
            heard = connection.received_bytes > 0
            return self.unfinished("truncated_head" if heard else "closed_without_answer")
        return self.unfinished(code)


def transport_headers(request: OutgoingRequest) -> list[tuple[bytes, bytes]]:
    """Return the headers of `request` with those that the transport owns."""
    origin = request.origin
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    default_port = {"http": 80, "https": 443}[origin.scheme]
    authority = host if origin.port == default_port else f"{host}:{origin.port}"
    headers = [(b"Host", authority.encode("ascii")), *request.headers]
    if request.body or request.method in {"POST", "PUT", "PATCH"}:
        headers.append((b"Content-Length", str(len(request.body)).encode()))
    return [*headers, (b"Connection", b"close")]
