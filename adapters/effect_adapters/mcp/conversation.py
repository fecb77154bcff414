"""One tools/call in a conversation of its own: this file owns what is proved to have left.

For every attempt a connection is made, the two sides greet each other, one call is sent, one answer
is read. The SDK's own ways to make a call are not used, since they may put it on the wire more than
once (rounds of `input_required`, a refused header) or ask for more after the answer is in (the
check of an output schema). The end is a value of `effect_adapters.mcp.ends`, and no exception of a
library leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, Literal

import httpx2
import mcp_types as types
from mcp.client import Client
from mcp.client._transport import TransportStreams
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
)
from pydantic import TypeAdapter, ValidationError

from effect_adapters.base import Budget, Reach
from effect_adapters.mcp.ends import End, Lost, NotSent, Told, ToolCall
from effect_adapters.mcp.gate import CallRefused, Gate
from effect_adapters.mcp.program_transport import StartFailed
from effect_adapters.mcp.quiet import silence_libraries

silence_libraries()

Way = Callable[[Gate], AbstractAsyncContextManager[TransportStreams]]
"""Opens a connection whose calls pass the gate."""

# The library makes these itself, so that they are no word of the server.
_MADE_HERE: Final = frozenset(
    {CONNECTION_CLOSED, REQUEST_TIMEOUT, PARSE_ERROR, INVALID_REQUEST, INTERNAL_ERROR}
)
# More pages than a person would page through; a list that never ends may not use up the budget.
_LIST_PAGES_MAX: Final = 20

_RESULT: Final[TypeAdapter[types.CallToolResult | types.InputRequiredResult]] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)

# What a failure is called once the gate has said what it proves; the most telling first.
_CODES: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (StartFailed, "program_not_started"),
    (httpx2.ConnectTimeout, "connect_timeout"),
    (httpx2.ConnectError, "connect_failed"),
    (httpx2.TimeoutException, "deadline"),
    (httpx2.RemoteProtocolError, "closed_without_answer"),
    (httpx2.LocalProtocolError, "invalid_request"),
    (httpx2.NetworkError, "reset"),
    (httpx2.TransportError, "response_too_large"),
)


async def converse(
    way: Way,
    call: ToolCall,
    budget: Budget,
    reach: Reach,
    *,
    mode: Literal["auto", "legacy"],
    lists_tools_first: bool,
) -> End:
    """Send `call` at most once, within the budget.

    Raises:
        asyncio.CancelledError: the task was cancelled; the connection is gone.
    """
    gate = Gate(budget, reach)
    if gate.spent:
        return NotSent("budget_spent")
    answers: list[End] = []
    code = "connection_closed"
    try:
        # One deadline over the whole: a server may drip for ever.
        async with asyncio.timeout(max(budget.remaining_seconds(), 0)):
            async with Client(way(gate), mode=mode, cache=None) as client:
                if lists_tools_first:
                    await _list_tools(client)
                answers.append(await _told(client, call, gate))
    except TimeoutError:
        code = "deadline"
    except Exception as error:
        # The mapping boundary: what the texts hold nobody may read.
        code = _code_of(error)
    if answers:
        return answers[0]
    return _unanswered(gate, code)


def _unanswered(gate: Gate, code: str) -> NotSent | Lost:
    if not gate.passed:
        return NotSent(gate.refusal or gate.trouble or code)
    return Lost(gate.refusal or gate.trouble or code, gate.status)


async def _told(client: Client, call: ToolCall, gate: Gate) -> End:
    request = types.CallToolRequest(
        params=types.CallToolRequestParams.model_validate(
            {"name": call.tool, "arguments": call.arguments, "_meta": call.meta}
        )
    )
    try:
        result = await client.session.send_request(request, _RESULT)
    except MCPError as error:
        return _refused(error, gate)
    except ValidationError:
        return _unanswered(gate, "answer_invalid")
    if isinstance(result, types.InputRequiredResult):
        # What the server has done before it asked is not known.
        return Lost("input_required", gate.status)
    told = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    return Told(told, None, gate.status)


def _refused(error: MCPError, gate: Gate) -> End:
    """What an error proves: one that the library may have made itself, nothing."""
    if not gate.passed:
        return NotSent(gate.refusal or gate.trouble or "connection_closed")
    by_status = error.code == METHOD_NOT_FOUND and gate.status == 404
    made_here = error.code in _MADE_HERE or by_status
    failed_status = gate.status is not None and gate.status >= 400
    if made_here and not failed_status:
        code = "deadline" if error.code == REQUEST_TIMEOUT else "connection_closed"
        return Lost(gate.refusal or gate.trouble or code, gate.status)
    said = None
    if not made_here:
        said = {"code": error.code, "message": error.message, "data": error.data}
    return Told(None, said, gate.status)


async def _list_tools(client: Client) -> None:
    cursor: str | None = None
    for _ in range(_LIST_PAGES_MAX):
        page = await client.list_tools(cursor=cursor, cache_mode="bypass")
        cursor = page.next_cursor
        if cursor is None:
            return


def _code_of(error: BaseException) -> str:
    leaves = list(_leaves(error))
    for kind, code in _CODES:
        if any(isinstance(leaf, kind) for leaf in leaves):
            return code
    refused = next((leaf for leaf in leaves if isinstance(leaf, CallRefused)), None)
    if refused is not None:
        return refused.code
    if any(isinstance(leaf, MCPError) for leaf in leaves):
        return "handshake_failed"
    return "adapter_error"


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in _leaves(part)]
    return [error]
