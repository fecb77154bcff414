"""A wire between the store and its server that a test can cut at a chosen moment."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

_CHUNK_BYTES = 65536


class Wire:
    """Passes bytes both ways until it sees `cut_at` on the way to the server.

    Attributes:
        url: where to connect instead.
        cut_at: bytes of a client's message; None passes everything.
        swallow: True loses that message, False lets it through and loses the answer.
        turns: how often the direction has changed from client to server: round trips.
    """

    def __init__(self, upstream: dict[str, Any], directory: Path) -> None:
        self._upstream = upstream
        user, database = str(upstream["user"]), str(upstream["dbname"])
        self._path = directory / ".s.PGSQL.5432"
        self.url = f"postgresql://{quote(user)}@/{quote(database)}?host={directory}&port=5432"
        self.cut_at: bytes | None = None
        self.swallow = True
        self.turns = 0
        self._server_spoke = True
        self._muted = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> asyncio.Server:
        """Listen."""
        return await asyncio.start_unix_server(self._accept, self._path)

    def heal(self) -> None:
        """Pass everything again; connections that were cut stay so."""
        self.cut_at = None
        self._muted = False

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = str(self._upstream["host"]), str(self._upstream.get("port", "5432"))
        if host.startswith("/"):
            path = f"{host}/.s.PGSQL.{port}"
            up_reader, up_writer = await asyncio.open_unix_connection(path)
        else:
            up_reader, up_writer = await asyncio.open_connection(host, int(port))
        self._start(self._to_server(reader, writer, up_writer))
        self._start(self._to_client(up_reader, writer, up_writer))

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _to_server(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream: asyncio.StreamWriter,
    ) -> None:
        with suppress(ConnectionError):
            while sent := await reader.read(_CHUNK_BYTES):
                if self._server_spoke:
                    self.turns += 1
                    self._server_spoke = False
                if self.cut_at is not None and self.cut_at in sent:
                    self._muted = True
                    if not self.swallow:
                        upstream.write(sent)
                        await upstream.drain()
                        await asyncio.sleep(0.2)  # time for the server to commit
                    writer.transport.abort()
                    break
                upstream.write(sent)
                await upstream.drain()
        upstream.close()

    async def _to_client(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream: asyncio.StreamWriter,
    ) -> None:
        with suppress(ConnectionError):
            while answered := await reader.read(_CHUNK_BYTES):
                self._server_spoke = True
                if self._muted:
                    break
                writer.write(answered)
                await writer.drain()
        if not self._muted:
            writer.close()
            upstream.close()


@asynccontextmanager
async def wire_to(url: str) -> AsyncIterator[Wire]:
    """Put a wire before the server of `url`."""
    with tempfile.TemporaryDirectory(prefix="effect-broker-wire-", dir="/tmp") as directory:
        wire = Wire(dict(conninfo_to_dict(url)), Path(directory))
        server = await wire.serve()
        try:
            yield wire
        finally:
            server.close()
            for task in list(wire._tasks):
                task.cancel()
