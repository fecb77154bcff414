"""Keys for LangGraph, out of the `ExecutionInfo` that a node finds in its `Runtime`.

A retry of a node and a run that goes on after a failure keep thread id and task id. Whoever goes
back to an earlier checkpoint, or forks one by `update_state`, keeps the thread id only: task ids
are made of the checkpoint. So the key holds the thread and a name that the caller has chosen. A
thread with many turns names in the step what the turn is about.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias, assert_never

from effect_broker.operation_keys.segments import (
    Segment,
    from_steps,
    named_step,
    refuse_values,
    required,
)

Scope: TypeAlias = Literal["thread", "task"]

_NO_THREAD = (
    "There is no thread: without a checkpointer and a thread_id nothing survives, so a node cannot "
    "know that it has run before."
)


class ExecutionInfo(Protocol):
    """What is read of `langgraph.runtime.ExecutionInfo`."""

    @property
    def thread_id(self) -> str | None:
        """Chosen by the caller of the graph; None without a checkpointer."""

    @property
    def task_id(self) -> str:
        """Made of the checkpoint that the task starts from, and of the node."""

    @property
    def checkpoint_id(self) -> str:
        """Another one at each step of the graph, and after each fork."""

    @property
    def run_id(self) -> str | None:
        """Another one at each call of the graph."""


def node_key(info: ExecutionInfo, *step: Segment, scope: Scope = "thread") -> str:
    """Return the key of what this node does.

    Args:
        info: `runtime.execution_info`, of the node's argument `runtime: Runtime`.
        step: your name of what is done, and of what it is done to.
        scope: `thread` is the same intent at every replay and in every fork of the thread; `task`
            makes a replay from an earlier checkpoint a new intent, so that it sends again.

    Raises:
        KeyRefused: there is no thread, the step has no name, or it holds an id that changes.
    """
    thread_id = required(info.thread_id, _NO_THREAD)
    named_step(step)
    refuse_values(
        (thread_id, *step),
        {
            "the task id": info.task_id,
            "the checkpoint id": info.checkpoint_id,
            "the run id": info.run_id,
        },
    )
    match scope:
        case "thread":
            return from_steps("langgraph", "thread", thread_id, *step)
        case "task":
            task_id = required(info.task_id, "The node runs in no task of a graph.")
            return from_steps("langgraph", "task", thread_id, task_id, *step)
        case _:
            assert_never(scope)
