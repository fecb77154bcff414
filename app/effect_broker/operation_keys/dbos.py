"""Keys for DBOS, out of the class `DBOS` itself as it is inside a workflow or a step.

A retry of a step and the recovery of a workflow keep workflow id and step id. A fork copies the
inputs and runs what comes after its first step under a new workflow id, and children that DBOS has
named get the new id too. So the key holds the id that the workflow would have without any fork: a
fork is the same intent. Step ids are counted; a fork to another version of the program counts
otherwise, so the step has a name that the caller has chosen. The ids of children that DBOS has
named are counted too: below a fork to another version nobody knows which child of the origin's one
is, and there is no key.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Final, Literal, Protocol, TypeAlias

from effect_broker.operation_keys.segments import (
    KeyRefusal,
    KeyRefused,
    Segment,
    from_steps,
    named_step,
    refuse_values,
    required,
)

Forks: TypeAlias = Literal["same", "new"]

# Each look is a query; a longer chain is a loop that somebody has built out of forks.
_LOOKS_MAX: Final = 100

_OUTSIDE: Final = "There is no workflow here: call it inside a DBOS workflow or step."


class WorkflowStatus(Protocol):
    """What is read of `dbos.WorkflowStatus`."""

    @property
    def app_version(self) -> str | None:
        """The version of the program that runs it."""

    @property
    def forked_from(self) -> str | None:
        """The workflow id of which this one is a fork."""

    @property
    def parent_workflow_id(self) -> str | None:
        """The workflow that has started this one."""


class Running(Protocol):
    """What is read of the class `dbos.DBOS`, together with its `workflow_id`.

    That one is a property of the class, which a type checker does not find in a protocol.
    """

    def get_workflow_status(self, workflow_id: str, /) -> WorkflowStatus | None:
        """Return what is stored of a workflow; for threads."""

    def get_workflow_status_async(
        self, workflow_id: str, /
    ) -> Coroutine[Any, Any, WorkflowStatus | None]:
        """Return what is stored of a workflow; for coroutines."""


def step_key(dbos: Running, *step: Segment, forks: Forks = "same") -> str:
    """Return the key of what this step does.

    Call it in a step, or in a workflow at a place that every replay reaches: there each look at
    the origin is a step of its own.

    Args:
        dbos: the class `dbos.DBOS`.
        step: your name of what is done, and of what it is done to.
        forks: `same` looks up what the workflow was forked from, and its parents (a query for
            each); `new` makes every fork a new intent, so that it sends again.

    Raises:
        KeyRefused: there is no workflow here, the step has no name, a workflow on the way to
            the origin is no longer stored, or DBOS has named this child by a count of another
            version of the program.
    """
    current = _current(dbos)
    if forks == "new":
        return _key("fork", current, step, current)
    search = _origin(current)
    try:
        asked = next(search)
        while True:
            asked = search.send(dbos.get_workflow_status(asked))
    except StopIteration as found:
        return _key("workflow", str(found.value), step, current)


async def step_key_async(dbos: Running, *step: Segment, forks: Forks = "same") -> str:
    """Return what `step_key` returns, for coroutines.

    Raises:
        KeyRefused: as there.
    """
    current = _current(dbos)
    if forks == "new":
        return _key("fork", current, step, current)
    search = _origin(current)
    try:
        asked = next(search)
        while True:
            asked = search.send(await dbos.get_workflow_status_async(asked))
    except StopIteration as found:
        return _key("workflow", str(found.value), step, current)


def _current(dbos: Running) -> str:
    found: object = getattr(dbos, "workflow_id", None)
    return required(found if isinstance(found, str) else None, _OUTSIDE)


def _origin(workflow_id: str) -> Generator[str, WorkflowStatus | None, str]:
    """Ask for workflows, and return the id that this one would have without any fork."""
    current, below, fork = workflow_id, "", None
    for _ in range(_LOOKS_MAX):
        status = yield current
        if status is None:
            break
        if below and fork is not None and fork.app_version != status.app_version:
            raise KeyRefused(
                KeyRefusal.COUNTED,
                "DBOS has named this child by a count, and the fork that has started it runs "
                "another version of the program, which may count otherwise. Start the child under "
                "an id of its own (SetWorkflowID), make the key of an id among its inputs, or ask "
                "for forks='new'.",
            )
        parent, fork = status.parent_workflow_id, None
        if status.forked_from is not None:
            current, fork = status.forked_from, status
        elif parent is not None and current.startswith(f"{parent}-"):
            # DBOS has named it after its parent, which may be a fork.
            current, below = parent, current[len(parent) :] + below
        else:
            return current + below
    raise KeyRefused(
        KeyRefusal.ORIGIN_UNKNOWN,
        "What this workflow was forked from, or started by, is no longer stored. Make the key of "
        "an id among the workflow's inputs, or ask for forks='new'.",
    )


def _key(kind: str, workflow_id: str, step: tuple[Segment, ...], current: str) -> str:
    named_step(step)
    if current != workflow_id:
        refuse_values(step, {"the id of this fork": current})
    return from_steps("dbos", kind, workflow_id, *step)
