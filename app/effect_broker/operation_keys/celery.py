"""Keys for Celery, out of the `request` of a bound task.

The task id is the same in a retry, in `autoretry_for`, and when the message is delivered again. It
is another one when the message is published again: by a second `apply_async`, by beat, by a web
request that is repeated. Where that can happen, make the key of a business id among the task's
arguments, or give the task an id of your own:
`apply_async(task_id=from_steps("order", 42, "mail"))`.
"""

from __future__ import annotations

from typing import Protocol

from effect_broker.operation_keys.segments import Segment, from_steps, named_step, required


class TaskRequest(Protocol):
    """What is read of `celery.app.task.Context`."""

    @property
    def id(self) -> str | None:
        """Of the message; None where the task was called like a function."""


def task_key(request: TaskRequest, *step: Segment) -> str:
    """Return the key of what this task does.

    Args:
        request: `self.request` of a task with `bind=True`.
        step: your name of what is done, and of what it is done to.

    Raises:
        KeyRefused: the task was called without a message, or the step has no name.
    """
    task_id = required(
        request.id,
        "The task has no id: it was called like a function. Make the key of a business id.",
    )
    return from_steps("celery", task_id, *named_step(step))
