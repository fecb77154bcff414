"""Keys for Restate, out of the context of a handler.

The invocation id is the same in every retry and replay of the invocation, and so is `ctx.uuid()` at
the same place of the program. A second request is a second invocation, unless both carry the same
idempotency key: send one from wherever the request can be repeated.
"""

from __future__ import annotations

from typing import Protocol

from effect_broker.operation_keys.segments import Segment, from_steps, named_step, required


class Request(Protocol):
    """What is read of `restate.context.Request`."""

    @property
    def id(self) -> str:
        """Of the invocation."""


class HandlerContext(Protocol):
    """What is read of `restate.Context` and of the contexts of objects and workflows."""

    def request(self) -> Request:
        """Return the invocation's request."""


def invocation_key(context: HandlerContext, *step: Segment) -> str:
    """Return the key of what this handler does.

    Args:
        context: the handler's context.
        step: your name of what is done, and of what it is done to.

    Raises:
        KeyRefused: the step has no name.
    """
    invocation_id = required(context.request().id, "The invocation has no id.")
    return from_steps("restate", invocation_id, *named_step(step))
