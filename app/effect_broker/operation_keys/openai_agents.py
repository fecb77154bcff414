"""Keys for the OpenAI Agents SDK, out of the `ToolContext` of a tool.

`tool_call_id` is new whenever the model is asked again, so also in the next `Runner.run` of the
same input. It is kept in a stored `RunState`, which goes on with the calls that the model had made.
"""

from __future__ import annotations

from typing import Protocol

from effect_broker.operation_keys.segments import Segment
from effect_broker.operation_keys.tool_calls import stored_call_key, tool_key

__all__ = ["ToolRun", "call_key", "request_key"]


class ToolRun(Protocol):
    """What is read of `agents.tool_context.ToolContext`."""

    @property
    def tool_call_id(self) -> str:
        """Made by the model."""

    @property
    def tool_name(self) -> str:
        """As the model calls it."""


def request_key(context: ToolRun, request_id: Segment, *about: Segment) -> str:
    """Return the key of what this tool does for a request.

    Args:
        context: the tool's `ToolContext`.
        request_id: stored before the agent's first run, and handed to each run as its context.
        about: what it is done to, where one request may lead to several.

    Raises:
        KeyRefused: also where a part holds the tool call id.
    """
    changing = {"the tool call id": context.tool_call_id}
    return tool_key(request_id, context.tool_name, *about, changing=changing)


def call_key(context: ToolRun, history_id: Segment) -> str:
    """Return the key of this call, where the model's answer is stored before its tools run.

    Args:
        history_id: under which you store the `RunState`.

    Raises:
        KeyRefused.
    """
    return stored_call_key(history_id, context.tool_call_id)
