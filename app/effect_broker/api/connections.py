"""The sockets of the API: how many there may be, and how long each may keep us waiting.

A client without a key can open connections, and each costs a file descriptor. Without descriptors
nothing is answered any more, not even by who has a key. So this file owns three promises: there
are never more connections than descriptors for them; a connection that waits for a request gives
way to one that brings a request; and a connection that brings nothing, or takes nothing, ends.
(The server's own limit counts a connection only once it has sent a whole request.)
"""

from __future__ import annotations

import asyncio
import logging
import resource
from enum import Enum, auto
from typing import Any, Final

from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from effect_broker.api.problems import problem_response
from effect_broker.log_events import event
from effect_contracts.errors import RateLimited

_log = logging.getLogger(__name__)

# From the accept, or from the end of the answer before, to the last byte of a request's head. A
# client that has something to ask has it ready; the slow part of a request is its body.
HEAD_SECONDS: Final = 10.0
# For a client to take some of an answer that waits to be written, and for one that was closed to
# take the rest.
_WRITE_SECONDS: Final = 30.0
_CLOSE_SECONDS: Final = 10.0

# How many connections the event loop accepts at a time, and so how many may come on top of the
# limit before the first of them is counted. Without descriptors the loop tries as often and logs
# each failure, which is why the number is small.
ACCEPTS_AT_ONCE: Final = 64
# Descriptors for everything else: the pool to the database, files, the loop itself.
_OTHER_DESCRIPTORS: Final = 64
# Each may hold a head of 16 KiB and an answer; more clients are for more processes.
_CONNECTIONS_MAX: Final = 4096
_CONNECTIONS_MIN: Final = 16
# Beyond the limit a few get an answer that says so; the others are closed without one.
_REFUSED_AT_ONCE: Final = 32


def connections_max() -> int:
    """Return how many connections this process may have, by its limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _CONNECTIONS_MAX
    left = soft - ACCEPTS_AT_ONCE - _REFUSED_AT_ONCE - _OTHER_DESCRIPTORS
    return min(max(left, _CONNECTIONS_MIN), _CONNECTIONS_MAX)


class _Phase(Enum):
    NEW = auto()
    WAITING = auto()  # for the head of a request
    BUSY = auto()  # with a request
    CLOSING = auto()  # closed by us, and not yet by the client


class Connections:
    """The connections of one server; `protocol` is what the server makes them with.

    Args:
        connections_max: of these at most.
        head_seconds: see `HEAD_SECONDS`.
    """

    def __init__(self, connections_max: int, *, head_seconds: float = HEAD_SECONDS) -> None:
        self._connections_max = connections_max
        self.head_seconds = head_seconds
        self._open = 0
        # In the order in which they began to wait.
        self._waiting: dict[Connection, None] = {}

    def protocol(self, **arguments: Any) -> Connection:
        """Return the protocol of a new connection."""
        return Connection(self, **arguments)

    def came(self, connection: Connection) -> None:
        """Count a new connection, and make room for it."""
        self._open += 1
        if self._open <= self._connections_max:
            return
        taken = self._open - 1
        _log.warning(
            "all %d connections are taken; those that wait give way",
            taken,
            extra=event("connections_taken", connections=taken),
        )
        oldest = next(iter(self._waiting), None)
        if oldest is not None:
            oldest.drop()
        elif self._open > self._connections_max + _REFUSED_AT_ONCE:
            connection.drop()
        else:
            connection.app = _too_many

    def gone(self, connection: Connection) -> None:
        """Forget a connection."""
        self._open -= 1
        self._waiting.pop(connection, None)

    def waits(self, connection: Connection, waiting: bool) -> None:
        """Note that a connection begins to wait for a request, or has stopped to."""
        if waiting:
            self._waiting[connection] = None
        else:
            self._waiting.pop(connection, None)


class Connection(H11Protocol):
    """uvicorn's, with an end to every kind of waiting for the client."""

    app: ASGIApp

    def __init__(self, connections: Connections, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._connections = connections
        self._phase = _Phase.NEW
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._counted = False

    def drop(self) -> None:
        """End the connection at once, whatever the client still has to take."""
        self._forget()
        self.transport.abort()

    # What happens to the connection -----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        self._counted = True
        self._connections.came(self)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def eof_received(self) -> None:
        self.loop.call_soon(self._watch)  # the transport closes after this

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(_WRITE_SECONDS, self.drop)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()

    # What it waits for ------------------------------------------------------------------------

    def _watch(self) -> None:
        """Keep the one timer on what the connection waits for now; what goes on is not begun
        again, so that a byte now and then buys no time."""
        phase = self._phase_now()
        if phase is self._phase or not self._counted:
            return
        self._phase = phase
        self._connections.waits(self, phase is _Phase.WAITING)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if phase is _Phase.WAITING:
            self._timer = self.loop.call_later(self._connections.head_seconds, self.drop)
        elif phase is _Phase.CLOSING:
            self._timer = self.loop.call_later(_CLOSE_SECONDS, self.drop)

    def _phase_now(self) -> _Phase:
        if self.transport.is_closing():
            return _Phase.CLOSING
        # While an answered request still sends its body, it is the next one that is waited for.
        cycle: RequestResponseCycle | None = self.cycle
        answered = cycle is None or cycle.response_complete
        return _Phase.WAITING if answered else _Phase.BUSY

    def _forget(self) -> None:
        for timer in (self._timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        if self._counted:
            self._counted = False
            self._connections.gone(self)


async def _too_many(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request for which there is no room, and close its connection."""
    response = problem_response(RateLimited(retry_after_seconds=1), Request(scope))
    response.headers["Connection"] = "close"
    await response(scope, receive, send)
