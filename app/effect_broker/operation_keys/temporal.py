"""Keys for Temporal, out of `activity.info()` and `workflow.info()`.

A retry of an activity keeps workflow id, run id and activity id. A reset, a retry of the whole
workflow, a cron schedule and continue-as-new keep the workflow id only, and count activity ids from
1 again. So the key holds the workflow id and a name that the caller has chosen: whatever is done to
the run again is the same intent. A loop that continues as new names the round in the step.

Where each run is an intent of its own, ask for `scope="run"`. Then a reset sends again what was
sent after the point it goes back to.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias, assert_never

from effect_broker.operation_keys.segments import (
    KeyRefusal,
    KeyRefused,
    Segment,
    from_steps,
    named_step,
    refuse_values,
    required,
)

ActivityScope: TypeAlias = Literal["workflow", "run"]
WorkflowScope: TypeAlias = Literal["workflow", "chain", "execution", "run"]


class ActivityInfo(Protocol):
    """What is read of `temporalio.activity.Info`."""

    @property
    def activity_id(self) -> str:
        """The workflow's name of the activity, or a number that the SDK has counted."""

    @property
    def activity_run_id(self) -> str | None:
        """Of an activity without a workflow."""

    @property
    def namespace(self) -> str:
        """Of the activity."""

    @property
    def workflow_id(self) -> str | None:
        """None for an activity without a workflow."""

    @property
    def workflow_run_id(self) -> str | None:
        """Another one after each reset, retry of the workflow, and continue-as-new."""


class WorkflowInfo(Protocol):
    """What is read of `temporalio.workflow.Info`."""

    @property
    def namespace(self) -> str:
        """Of the workflow."""

    @property
    def workflow_id(self) -> str:
        """Chosen by who starts it."""

    @property
    def first_execution_run_id(self) -> str:
        """The run that the chain of resets, retries and continue-as-new began with."""

    @property
    def original_execution_run_id(self) -> str:
        """The run as it was before any reset."""

    @property
    def run_id(self) -> str:
        """The run as it is now."""


def activity_key(info: ActivityInfo, *step: Segment, scope: ActivityScope = "workflow") -> str:
    """Return the key of what this activity does.

    Without a step it is the activity id; with the scope `workflow` only where the workflow has
    chosen it, since the SDK's own numbers begin again in the next run.

    Args:
        info: `temporalio.activity.info()`.
        step: your name of what is done, and of what it is done to.
        scope: `workflow` is the same intent in every run under this workflow id; `run` is another
            one in every run.

    Raises:
        KeyRefused: there is no step, or it holds an id that a retry changes.
    """
    if step:
        named_step(step)
    if info.workflow_id is None:
        refuse_values(step, {"the activity's run id": info.activity_run_id})
        return from_steps("temporal", info.namespace, "activity", info.activity_id, *step)
    run_id = required(info.workflow_run_id, "The activity has no run id.")
    if not step and info.activity_id.isdecimal() and scope != "run":
        raise KeyRefused(
            KeyRefusal.COUNTED,
            "The activity id is a number that begins again in the next run. Name the step, give "
            "the activity an activity_id of your own, or ask for scope='run'.",
        )
    refuse_values((info.workflow_id, *step), {"the run id": run_id})
    match scope:
        case "workflow":
            start: tuple[str, ...] = ("temporal", info.namespace, "workflow", info.workflow_id)
        case "run":
            start = ("temporal", info.namespace, "run", info.workflow_id, run_id)
        case _:
            assert_never(scope)
    return from_steps(*start, *(step or (info.activity_id,)))


def workflow_key(info: WorkflowInfo, *step: Segment, scope: WorkflowScope = "workflow") -> str:
    """Return a key that a workflow makes and hands to an activity.

    Args:
        info: `temporalio.workflow.info()`.
        step: your name of what is done, and of what it is done to.
        scope: what is the same intent: every run under this workflow id (`workflow`); those of one
            start, with its resets, retries and continue-as-new (`chain`); one run with its resets
            (`execution`); one run, so that a reset is a new intent (`run`).

    Raises:
        KeyRefused: there is no step, or it holds the run id.
    """
    named_step(step)
    refuse_values((info.workflow_id, *step), {"the run id": info.run_id})
    match scope:
        case "workflow":
            run: tuple[str, ...] = ()
        case "chain":
            run = (info.first_execution_run_id,)
        case "execution":
            run = (info.original_execution_run_id,)
        case "run":
            run = (info.run_id,)
        case _:
            assert_never(scope)
    return from_steps("temporal", info.namespace, scope, info.workflow_id, *run, *step)
