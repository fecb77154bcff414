"""Keys for tools that a model calls.

The id of a tool call (`call_…`, `toolu_…`) is made by the model together with the call. When the
model is asked again, after a crash or because the tool refused the arguments, the same intent comes
with another id. So it is no key by itself. Two things are stable:

* the request that the agent works on, if it is stored before the agent starts: `tool_key`;
* a call in a stored answer of the model, if the next try begins at the stored answer and does not
  ask the model again: `stored_call_key`.
"""

from __future__ import annotations

from collections.abc import Mapping

from effect_broker.operation_keys.segments import (
    KeyRefusal,
    KeyRefused,
    Segment,
    from_steps,
    refuse_values,
    required,
)
from effect_contracts.key_smells import STORED_CALL, Smell, key_smells


def tool_key(
    request_id: Segment,
    tool_name: str,
    *about: Segment,
    changing: Mapping[str, object] | None = None,
) -> str:
    """Return the key of what a tool does for a request.

    Args:
        request_id: of what the agent was asked to do; stored before its first run, and the same in
            every further one.
        about: what it is done to, where one request may lead to several: the order's number, not
            the words or the amount that the model has chosen.
        changing: names and values of what is new in each run; a part that holds one is refused.

    Raises:
        KeyRefused: also where the request is named by the id of a model's tool call.
    """
    parts = (request_id, *about)
    refuse_values(parts, dict(changing or {}))
    for number, part in enumerate(parts, start=1):
        if isinstance(part, str) and Smell.TOOL_CALL in key_smells(part):
            raise KeyRefused(
                KeyRefusal.CHANGES,
                f"Part {number} is the id of a tool call, which the model makes anew when it is "
                "asked again. Where its answer is stored first, use stored_call_key.",
            )
    return from_steps("request", request_id, tool_name, *about)


def stored_call_key(history_id: Segment, tool_call_id: str | None) -> str:
    """Return the key of a tool call in a stored answer of the model.

    It is right only where the answer is durable before its tools run, and where a next try runs
    the stored calls. Whoever asks the model again gets another id, and sends again.

    Args:
        history_id: of the conversation or run in which the answer is stored.
        tool_call_id: as it stands in the stored answer; some models count them from 0 in each.

    Raises:
        KeyRefused.
    """
    call = required(tool_call_id, "The tool call has no id.")
    return from_steps(STORED_CALL, history_id, call)
