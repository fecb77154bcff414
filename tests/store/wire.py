"""A wire between the store and its server that a test can cut at a chosen moment."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

_CHUNK_BYTES = 65536
# How long the server may take to do what it was sent, whose answer is lost. Not a wait.
_ANSWER_SECONDS = 60.0
_READY_FOR_QUERY = re.compile(rb"Z\x00\x00\x00\x05[ITE]$")


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
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> asyncio.Server:
        """Listen."""
        return await asyncio.start_unix_server(self._accept, self._path)

    async def close(self) -> None:
        """End every connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        host, port = str(self._upstream["host"]), str(self._upstream.get("port", "5432"))
        if host.startswith("/"):
            path = f"{host}/.s.PGSQL.{port}"
            up_reader, up_writer = await asyncio.open_unix_connection(path)
        else:
            up_reader, up_writer = await asyncio.open_connection(host, int(port))
        answers = asyncio.ensure_future(self._pass_answers(up_reader, writer))
        try:
            if await self._pass_requests(reader, up_writer, answers) and not self.swallow:
                await _lose_answer(up_reader)
        finally:
            answers.cancel()
            for end in (writer, up_writer):
                end.transport.abort()
            with suppress(ConnectionError, asyncio.CancelledError):
                await answers
            self._tasks.discard(task)

    async def _pass_requests(
        self,
        reader: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
        answers: asyncio.Task[None],
    ) -> bool:
        """Return whether the wire was cut."""
        with suppress(ConnectionError):
            while sent := await reader.read(_CHUNK_BYTES):
                if self._server_spoke:
                    self.turns += 1
                    self._server_spoke = False
                cut = self.cut_at is not None and self.cut_at in sent
                if cut:
                    answers.cancel()
                    await asyncio.wait([answers])
                if not cut or not self.swallow:
                    upstream.write(sent)
                    await upstream.drain()
                if cut:
                    return True
        return False

    async def _pass_answers(
        self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(ConnectionError):
            while answered := await upstream.read(_CHUNK_BYTES):
                self._server_spoke = True
                writer.write(answered)
                await writer.drain()
            writer.close()


async def _lose_answer(upstream: asyncio.StreamReader) -> None:
    """Wait until the server has done what it was sent, and tell nobody."""
    async with asyncio.timeout(_ANSWER_SECONDS):
        answered = b""
        while not _READY_FOR_QUERY.search(answered):
            more = await upstream.read(_CHUNK_BYTES)
            if not more:
                return
            answered = answered[-5:] + more


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
            await wire.close()
