"""A server on pipes, for one conversation: started for it, and gone after it.

Unlike the SDK's own transport this one has a gate directly before the write of a call, a limit for
what the server may say, and an end that comes at once: a process that is still at work when the
time of the exchange is over is stopped, not waited for. What the server writes to stderr may hold
arguments, and of a worker's it goes nowhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client._transport import TransportStreams
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest, jsonrpc_message_adapter

from effect_adapters.mcp.gate import CallRefused, Gate
from effect_adapters.mcp.programs import Runnable

# A server that has answered has time to put its own house in order; then it is asked to go (the
# specification, "Shutdown"), and then it goes.
_LEAVE_SECONDS: Final = 2.0
_TERMINATE_SECONDS: Final = 1.0


class StartFailed(Exception):
    """The program could not be started, so nothing was sent."""


@asynccontextmanager
async def program_transport(
    program: Runnable,
    gate: Gate,
    line_bytes_max: int,
    *,
    errors: int | None = asyncio.subprocess.DEVNULL,
) -> AsyncIterator[TransportStreams]:
    """Start the program and give its streams; it is gone when the block ends.

    Args:
        line_bytes_max: of one message of the server; after a longer one nothing more is read.
        errors: where its stderr goes, as for `subprocess`; None is that of this process.

    Raises:
        StartFailed.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            program.command,
            *program.args,
            env=dict(program.env),
            cwd=program.cwd,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            limit=line_bytes_max,
            start_new_session=True,
        )
    except (OSError, ValueError):
        raise StartFailed from None
    to_session, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_server, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    peaceful = False
    try:
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(_read(process, to_session, gate))
            writing = tasks.create_task(_write(process, from_session, to_session, gate))
            try:
                yield from_server, to_server
                peaceful = True
            finally:
                reading.cancel()
                writing.cancel()
    finally:
        try:
            await _end(process, peaceful=peaceful)
        finally:
            # Also where the wait above was cancelled: no server outlives its call.
            _signal(process, signal.SIGKILL)
            _close_pipes(process)
            for stream in (to_session, from_server, to_server, from_session):
                stream.close()


async def _read(
    process: asyncio.subprocess.Process,
    to_session: MemoryObjectSendStream[SessionMessage | Exception],
    gate: Gate,
) -> None:
    assert process.stdout is not None
    async with to_session:
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:
                gate.trouble = "response_too_large"
                return
            if not line.endswith(b"\n"):
                gate.trouble = "program_ended"
                return
            if not line.strip():
                continue
            message: SessionMessage | Exception
            try:
                message = SessionMessage(
                    jsonrpc_message_adapter.validate_json(line.decode(), by_name=False)
                )
            except ValueError:
                # The text of the library's error would hold the line.
                message = ValueError("no message of JSON-RPC")
            try:
                await to_session.send(message)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return


async def _write(
    process: asyncio.subprocess.Process,
    from_session: MemoryObjectReceiveStream[SessionMessage],
    to_session: MemoryObjectSendStream[SessionMessage | Exception],
    gate: Gate,
) -> None:
    assert process.stdin is not None
    async with from_session:
        async for envelope in from_session:
            message = envelope.message
            line = message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
            try:
                if gate.spent:
                    return to_session.close()
                if isinstance(message, JSONRPCRequest) and message.method == "tools/call":
                    gate.open()
                process.stdin.write(line)
                await process.stdin.drain()
            except (CallRefused, OSError):
                # The session hears that its server is gone, and asks for nothing more.
                return to_session.close()


async def _end(process: asyncio.subprocess.Process, *, peaceful: bool) -> None:
    """Let the process leave, or make it; also those that it has started."""
    assert process.stdin is not None
    process.stdin.close()
    if peaceful and await _gone_within(process, _LEAVE_SECONDS):
        return
    _signal(process, signal.SIGTERM)
    await _gone_within(process, _TERMINATE_SECONDS)


def _close_pipes(process: asyncio.subprocess.Process) -> None:
    # Nothing public closes them while somebody that the program has started holds the other end.
    with contextlib.suppress(PermissionError):
        process._transport.close()  # type: ignore[attr-defined]


async def _gone_within(process: asyncio.subprocess.Process, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await process.wait()
    except TimeoutError:
        return False
    return True


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    # The group stays as long as one of its processes does, and its number is not given again.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
