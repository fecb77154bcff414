"""DBOS: a step that is retried, a process that dies in a step, recovery, forks, a lost origin.

    python dbos_program.py DATABASE_URL crash|recover|changed

Each word is a process of its own, over one database. The first dies inside its step; the second
recovers the workflow, and then forks it. The third is another version of the program, with one more
step before the others, and forks the workflow to that.
"""

# What stands beside this program is found when it runs.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import os
import sys
from typing import Any, Final

from dbos import DBOS, SetWorkflowID, WorkflowHandle
from sightings import key_or_refusal, sighted

from effect_broker.operation_keys import KeyRefused
from effect_broker.operation_keys.dbos import step_key, step_key_async

ORDER: Final = "order-42"
POLL_SECONDS: Final = 0.05


PHASE: Final = sys.argv[2]
_VERSION: Final = "2" if PHASE == "changed" else "1"


def _scenario(what: str) -> str:
    """The phase for the workflow itself, and the id for a fork of it; then what is done."""
    workflow_id = DBOS.workflow_id
    assert workflow_id is not None
    root = workflow_id.removesuffix("-3" if PHASE == "changed" else "-2")
    return f"{PHASE if root == ORDER else root}.{what}"


def _tell(what: str, given: str) -> None:
    workflow_id = DBOS.workflow_id
    status = DBOS.step_status
    assert workflow_id is not None
    assert status is not None
    stored = DBOS.get_workflow_status(workflow_id)
    assert stored is not None
    sighted(
        _scenario(what),
        {
            "workflow_id": workflow_id,
            "step_id": DBOS.step_id,
            "attempt": status.current_attempt,
            "forked_from": stored.forked_from,
            "input": given,
        },
        {
            "same": key_or_refusal(lambda: step_key(DBOS, what)),
            "new": step_key(DBOS, what, forks="new"),
            "with_own_id": key_or_refusal(lambda: step_key(DBOS, f"{what}-{workflow_id}")),
        },
    )


@DBOS.step(retries_allowed=True, max_attempts=2, interval_seconds=0.01)
def charge(number: str) -> None:
    """Fails once; in the phase `crash` the second try dies with the process."""
    _tell("charge", number)
    status = DBOS.step_status
    assert status is not None
    if status.current_attempt == 0:
        raise ConnectionError("the first try fails")
    if PHASE == "crash":
        os._exit(9)


@DBOS.step()
async def ship() -> None:
    """Tells the key as a coroutine makes it."""
    try:
        key = await step_key_async(DBOS, "ship")
    except KeyRefused as refused:
        key = f"?{refused.reason}"
    new = await step_key_async(DBOS, "ship", forks="new")
    sighted(_scenario("ship"), {"workflow_id": DBOS.workflow_id}, {"same": key, "new": new})


@DBOS.workflow()
async def delivery() -> None:
    """A child that DBOS names."""
    await ship()


@DBOS.step()
def check(number: str) -> None:
    """What the second version of the program has in addition."""
    assert number == ORDER


@DBOS.workflow()
def order(number: str) -> None:
    """Charges, then delivers."""
    if PHASE == "changed":
        check(number)
    charge(number)
    child: WorkflowHandle[Any] = DBOS.start_workflow(delivery)
    child.get_result(polling_interval_sec=POLL_SECONDS)


def _forked(workflow_id: str, own_id: str) -> WorkflowHandle[None]:
    with SetWorkflowID(own_id):
        return DBOS.fork_workflow(workflow_id, 1, application_version=_VERSION)


def main(url: str) -> None:
    """Run the phase."""
    DBOS(
        config={
            "name": "orders",
            "system_database_url": url,
            "application_version": _VERSION,
            "executor_id": "the-only-one",
            "log_level": "CRITICAL",
        }
    )
    DBOS.launch()
    if PHASE == "crash":
        with SetWorkflowID(ORDER):
            order(ORDER)
    if PHASE == "changed":
        _forked(ORDER, "changed_fork").get_result(polling_interval_sec=POLL_SECONDS)
        os._exit(0)
    DBOS.retrieve_workflow(ORDER).get_result(polling_interval_sec=POLL_SECONDS)
    sighted("outside", {}, {"same": key_or_refusal(lambda: step_key(DBOS, "charge"))})
    # The queue of forks is asked once in a second: two at once.
    for fork in [_forked(ORDER, "first_fork"), _forked("first_fork", "fork_of_fork")]:
        fork.get_result(polling_interval_sec=POLL_SECONDS)
    DBOS.delete_workflow("first_fork")
    _forked("fork_of_fork", "orphan").get_result(polling_interval_sec=POLL_SECONDS)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
