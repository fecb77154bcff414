"""A proxy in front of Postgres that cuts one connection in the middle of a COMMIT.

It relays the wire protocol (version 3) and reads along, so that it knows which statement a message
executes. Armed once, it waits for the first matching commit of an application and cuts there:

    before the server   the message is dropped with all that follows; the server rolls back
    after the server    the server commits, its answer is swallowed

Either way the client sees a reset connection and nothing else, so that it cannot tell which of the
two has happened. Everything else passes through as it is. The listener is on loopback, and takes
any user that the server in front of which it stands trusts.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Final, Self
from urllib.parse import parse_qs, urlencode, urlsplit

_STARTUP_V3: Final = 196608
_SSL_REQUEST: Final = 80877103
_GSS_REQUEST: Final = 80877104
_START_SECONDS: Final = 10.0
_MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024


class CutPhase(StrEnum):
    """On which side of the server's commit the connection is cut."""

    BEFORE_SERVER = "before_server"
    AFTER_SERVER = "after_server"


@dataclass(slots=True)
class _Cut:
    """One armed cut: which commit, where, and whether it has happened."""

    application: str
    statements: tuple[str, ...]
    phase: CutPhase
    taken: bool = False
    happened: threading.Event = field(default_factory=threading.Event)


class DatabaseProxy:
    """A proxy for one server, in a thread of its own: ``with DatabaseProxy(url) as proxy:``.

    Args:
        server_url: of the server behind it, by Unix socket directory or by host and port.
    """

    def __init__(self, server_url: str) -> None:
        self._server_url = server_url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True, name="database-proxy")
        self._ready = threading.Event()
        self._stopping: asyncio.Event | None = None
        self._port = 0
        self._cut: _Cut | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(_START_SECONDS):
            raise RuntimeError("the database proxy did not start")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        stopping = self._stopping
        assert stopping is not None, "the proxy was started"
        self._loop.call_soon_threadsafe(stopping.set)
        self._thread.join(_START_SECONDS)

    def url(self, role: str) -> str:
        """Return the URL of a role of the server, through the proxy."""
        database = urlsplit(self._server_url).path
        options = urlencode({"sslmode": "disable", "gssencmode": "disable"})
        return f"postgresql://{role}@127.0.0.1:{self._port}{database}?{options}"

    def cut(self, application: str, phase: CutPhase, *statements: str) -> threading.Event:
        """Cut the next commit of an application once; the event is set when it has happened.

        `application` is the session's `application_name`. The commit is the first execution of a
        statement whose text contains one of `statements`, COMMIT if there are none; one that is no
        COMMIT commits by itself.
        """
        cut = _Cut(application, statements or ("COMMIT",), phase)
        self._cut = cut
        return cut.happened

    def disarm(self) -> None:
        """Cut nothing any more."""
        self._cut = None

    # In the proxy's thread -----------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        sessions: set[asyncio.Task[None]] = set()

        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(self._session(reader, writer))
            sessions.add(task)
            task.add_done_callback(sessions.discard)

        server = await asyncio.start_server(accepted, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stopping.wait()
        server.close()
        # What was accepted in this very moment becomes a session in the next turn of the loop, and
        # one that is cancelled before its first step would never close what it was given.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for task in set(sessions):
            task.cancel()
        await asyncio.gather(*sessions, return_exceptions=True)
        await asyncio.sleep(0)  # aborted transports close their sockets one turn later

    async def _session(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = _Peer(reader, writer)
        server: _Peer | None = None
        try:
            startup = await _startup(client)
            server = await self._connect()
            server.send(startup)
            session = _Session(client, server, _application(startup), self._take)
            await session.relay()
        except (OSError, EOFError):
            pass  # one of the two has gone; the other learns it below
        finally:
            client.abort()
            if server is not None:
                server.abort()

    async def _connect(self) -> _Peer:
        parts = urlsplit(self._server_url)
        query = parse_qs(parts.query)
        host = query.get("host", [parts.hostname or "127.0.0.1"])[0]
        port = int(query.get("port", [str(parts.port or 5432)])[0])
        if host.startswith("/"):
            opened = await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        else:
            opened = await asyncio.open_connection(host, port)
        return _Peer(*opened)

    def _take(self, application: str, text: str) -> _Cut | None:
        """Return the armed cut if this statement is the one it waits for; only once."""
        cut = self._cut
        if cut is None or cut.taken or cut.application != application:
            return None
        if not any(statement in text for statement in cut.statements):
            return None
        cut.taken = True
        return cut


class _Peer:
    """One side of a session: whole messages in, bytes out, and a reset at the end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    def send(self, raw: bytes) -> None:
        self._writer.write(raw)

    async def flush(self) -> None:
        await self._writer.drain()

    async def message(self) -> tuple[bytes, bytes]:
        """Return the type of the next message and all of its bytes.

        Raises:
            EOFError: the peer has closed.
        """
        head = await self._exactly(5)
        (length,) = struct.unpack("!I", head[1:])
        if length > _MESSAGE_BYTES_MAX:
            raise EOFError
        return head[:1], head + await self._exactly(length - 4)

    async def untyped(self) -> bytes:
        """Return the next message of the start of a session, which has no type."""
        head = await self._exactly(4)
        (length,) = struct.unpack("!I", head)
        if length > _MESSAGE_BYTES_MAX:
            raise EOFError
        return head + await self._exactly(length - 4)

    async def _exactly(self, count: int) -> bytes:
        try:
            return await self.reader.readexactly(count)
        except asyncio.IncompleteReadError:
            raise EOFError from None

    def abort(self) -> None:
        """Close at once; what is under way is dropped and a TCP peer sees a reset."""
        raw = self._writer.get_extra_info("socket")
        if raw is not None and raw.family == socket.AF_INET:
            # A socket that its peer's reset has closed already takes no option any more.
            with suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


class _Session:
    """One relayed session; knows the text behind each prepared statement and portal."""

    def __init__(
        self,
        client: _Peer,
        server: _Peer,
        application: str,
        take: Callable[[str, str], _Cut | None],
    ) -> None:
        self._client = client
        self._server = server
        self._application = application
        self._take = take
        self._statements: dict[bytes, str] = {}
        self._portals: dict[bytes, str] = {}
        self._syncs = 0  # sent by the client
        self._readies = 0  # answered by the server
        self._swallowed: tuple[_Cut, int] | None = None

    async def relay(self) -> None:
        """Relay until one side ends or the cut has happened."""
        await _first_of(self._upwards, self._downwards)

    async def _upwards(self) -> None:
        while True:
            kind, raw = await self._client.message()
            text = self._executed(kind, raw)
            if text is not None and self._swallowed is None:
                cut = self._take(self._application, text)
                if cut is not None and cut.phase is CutPhase.BEFORE_SERVER:
                    cut.happened.set()
                    return
                if cut is not None:
                    # Its Sync, or the query itself, is the next one to be answered.
                    self._swallowed = cut, self._syncs + 1
            if kind in {b"S", b"Q"}:
                self._syncs += 1
            self._server.send(raw)
            await self._server.flush()

    async def _downwards(self) -> None:
        while True:
            kind, raw = await self._server.message()
            # The first ReadyForQuery answers the start-up, which no Sync has asked for.
            self._readies += kind == b"Z"
            if self._swallowed is None:
                self._client.send(raw)
                await self._client.flush()
                continue
            cut, awaited = self._swallowed
            if kind == b"Z" and self._readies - 1 >= awaited:
                cut.happened.set()
                return

    def _executed(self, kind: bytes, raw: bytes) -> str | None:
        """Return the text that a message executes, None for one that executes nothing."""
        body = raw[5:]
        if kind == b"Q":
            return _text(body)
        if kind == b"P":
            name, _, rest = body.partition(b"\0")
            self._statements[name] = _text(rest)
        elif kind == b"B":
            portal, _, rest = body.partition(b"\0")
            self._portals[portal] = self._statements.get(rest.partition(b"\0")[0], "")
        elif kind == b"E":
            return self._portals.get(body.partition(b"\0")[0])
        return None


def _text(body: bytes) -> str:
    return body.partition(b"\0")[0].decode("utf-8", "replace")


def _application(startup: bytes) -> str:
    """Return the application's name in a start-up message; empty where it gives none."""
    words = startup[8:].split(b"\0")
    parameters = dict(zip(words[::2], words[1::2], strict=False))
    return parameters.get(b"application_name", b"").decode("utf-8", "replace")


async def _startup(client: _Peer) -> bytes:
    """Return the message that starts the session; encryption is refused before it.

    Raises:
        EOFError: the client went, or asked for something else (to cancel a query).
    """
    while True:
        raw = await client.untyped()
        (code,) = struct.unpack("!I", raw[4:8])
        if code in {_SSL_REQUEST, _GSS_REQUEST}:
            client.send(b"N")
            await client.flush()
        elif code == _STARTUP_V3 or code >> 16 == 3:
            return raw
        else:
            raise EOFError


async def _first_of(*works: Callable[[], Awaitable[None]]) -> None:
    """Run until the first has ended; raises what it raised."""
    tasks = [asyncio.ensure_future(work()) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
