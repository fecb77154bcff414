"""Temporal: an activity that is retried, and workflows that are reset, retried and continued.

The server is the real one, with its database in memory. No workflow is cached, so that each of its
tasks is a replay from the start. A workflow tells what it sees each time that it is run or
replayed, as a scenario of its own: `<scenario>.workflow`.
"""

# The framework is in the environment that this program runs in, not in the one that checks it.
# mypy: disable-error-code="import-not-found,misc,untyped-decorator"

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.common import RetryPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    # The sandbox loads these once, as it has to where a workflow makes keys.
    from sightings import key_or_refusal, sighted

    from effect_broker.operation_keys.temporal import activity_key, workflow_key

QUEUE = "orders"
QUICK = RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_attempts=2)
NEVER_AGAIN = RetryPolicy(maximum_attempts=1)
SECONDS = timedelta(seconds=20)


@activity.defn
async def charge(scenario: str, ids: dict[str, Any], keys: dict[str, str]) -> None:
    """Tells what it is called with; the scenario `retry` fails once."""
    info = activity.info()
    sighted(
        scenario,
        {
            "workflow_id": info.workflow_id,
            "run_id": info.workflow_run_id,
            "activity_id": info.activity_id,
            "attempt": info.attempt,
            **{f"workflow.{name}": value for name, value in ids.items()},
        },
        {
            "activity.workflow": activity_key(info, "charge"),
            "activity.run": activity_key(info, "charge", scope="run"),
            "activity.run.counted": activity_key(info, scope="run"),
            "activity.counted": key_or_refusal(lambda: activity_key(info)),
            "activity.with_run_id": key_or_refusal(
                lambda: activity_key(info, f"charge-{info.workflow_run_id}")
            ),
            **{f"workflow.{name}": key for name, key in keys.items()},
        },
    )
    if scenario == "retry" and info.attempt == 1:
        raise ApplicationError("the first try fails")


@workflow.defn
class Order:
    """Charges, and then does what its scenario says."""

    @workflow.run
    async def run(self, scenario: str, rounds: int) -> None:
        info = workflow.info()
        ids = {
            "run_id": info.run_id,
            "original": info.original_execution_run_id,
            "first": info.first_execution_run_id,
        }
        keys = {
            "workflow": workflow_key(info, "charge"),
            "chain": workflow_key(info, "charge", scope="chain"),
            "execution": workflow_key(info, "charge", scope="execution"),
            "run": workflow_key(info, "charge", scope="run"),
        }
        seen = {"workflow_id": info.workflow_id, "replaying": workflow.unsafe.is_replaying()}
        sighted(f"{scenario}.workflow", seen | ids, keys)
        await workflow.execute_activity(
            charge,
            args=[scenario, ids, keys],
            activity_id="charge" if scenario == "named" else None,
            start_to_close_timeout=SECONDS,
            retry_policy=QUICK,
        )
        if scenario == "workflow_retry" and info.attempt == 1:
            raise ApplicationError("the first run fails")
        if scenario == "continue_as_new" and rounds > 1:
            workflow.continue_as_new(args=[scenario, rounds - 1])


async def finished(client: Client, scenario: str, rounds: int = 1) -> None:
    """Run one workflow to its end; a second call under the same id is a second start."""
    await client.execute_workflow(
        Order.run,
        args=[scenario, rounds],
        id=f"order-42-{scenario}",
        task_queue=QUEUE,
        id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        retry_policy=QUICK if scenario == "workflow_retry" else NEVER_AGAIN,
    )


async def reset(client: Client, scenario: str) -> None:
    """Go back to the end of the first workflow task, before the activity was scheduled."""
    handle = client.get_workflow_handle(f"order-42-{scenario}")
    described = await handle.describe()
    answer = await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=described.id, run_id=described.run_id),
            reason="the test goes back",
            request_id="reset-1",
            workflow_task_finish_event_id=4,
        )
    )
    await client.get_workflow_handle(described.id, run_id=answer.run_id).result()


async def main(server: str) -> None:
    """Run every scenario, one after the other."""
    environment = await WorkflowEnvironment.start_local(
        ip="127.0.0.1", dev_server_existing_path=server, dev_server_log_level="error"
    )
    async with (
        environment as running,
        Worker(
            running.client,
            task_queue=QUEUE,
            workflows=[Order],
            activities=[charge],
            max_cached_workflows=0,
        ),
    ):
        client = running.client
        await finished(client, "retry")
        await finished(client, "named")
        await finished(client, "continue_as_new", rounds=2)
        await finished(client, "workflow_retry")
        for _ in range(2):
            await finished(client, "second_start")
        await client.execute_activity(
            charge,
            args=["alone", {}, {}],
            id="order-42-charge",
            task_queue=QUEUE,
            start_to_close_timeout=SECONDS,
        )
        await finished(client, "reset")
        await reset(client, "reset")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
    # The threads of the SDK's core outlive the loop, and crash an interpreter that ends in order.
    os._exit(0)
