"""Keys for Pydantic AI, out of the `RunContext` of a tool.

`tool_call_id` is new whenever the model is asked again, `ModelRetry` included, and `run_id` is new
with each `Agent.run` that is not given one. What stays is what the caller has stored: the request
that the agent works on, or a message history that ends with the model's calls.
"""

from __future__ import annotations

from typing import Protocol

from effect_broker.operation_keys.segments import Segment, required
from effect_broker.operation_keys.tool_calls import stored_call_key, tool_key

__all__ = ["ToolRun", "call_key", "request_key"]


class ToolRun(Protocol):
    """What is read of `pydantic_ai.RunContext`."""

    @property
    def run_id(self) -> str | None:
        """Of one call of `Agent.run`."""

    @property
    def tool_call_id(self) -> str | None:
        """Made by the model."""

    @property
    def tool_name(self) -> str | None:
        """As the model calls it."""


def request_key(context: ToolRun, request_id: Segment, *about: Segment) -> str:
    """Return the key of what this tool does for a request.

    Args:
        context: the tool's `RunContext`.
        request_id: stored before the agent's first run, and handed to each run, as in `deps`.
        about: what it is done to, where one request may lead to several.

    Raises:
        KeyRefused: also where a part holds the run id or the tool call id.
    """
    name = required(context.tool_name, "There is no tool call here: call it inside a tool.")
    changing = {"the run id": context.run_id, "the tool call id": context.tool_call_id}
    return tool_key(request_id, name, *about, changing=changing)


def call_key(context: ToolRun, history_id: Segment) -> str:
    """Return the key of this call, where the model's answer is stored before its tools run.

    Args:
        history_id: under which you store the messages. A next try hands them to `Agent.run` as
            `message_history`, so that the stored calls are run.

    Raises:
        KeyRefused.
    """
    return stored_call_key(history_id, context.tool_call_id)
