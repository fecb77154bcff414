"""Temporal: its development server, one workflow of one activity that posts, one worker.

The workflow id is the caller's key. The downstream key is workflow id, run id and activity id, as
its documentation advises: the same on each attempt. The server holds its state in memory, which
is its default. The variant `once` is `RetryPolicy(maximum_attempts=1)`.
"""

# The peer is in the environment that this program runs in, not in the one that checks it.
# mypy: disable-error-code="import-not-found,misc,untyped-decorator"

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.common import RetryPolicy

# A workflow's module is loaded anew for each workflow, but for what is passed through.
with workflow.unsafe.imports_passed_through():
    import asyncio
    import subprocess
    import sys
    from importlib.metadata import version
    from pathlib import Path

    import httpx
    from temporalio.client import Client
    from temporalio.service import RPCError
    from temporalio.worker import Worker

    from bench.peers_of.program import LEASE_SECONDS, POST_SECONDS, Order, Peer, main

QUEUE = "effects"


class Activities:
    """The activity, with the HTTP client that it shares over its calls."""

    def __init__(self) -> None:
        self._http = httpx.AsyncClient(trust_env=False, timeout=POST_SECONDS)

    @activity.defn
    async def post(self, url: str, body: dict[str, Any]) -> Any:
        """The request."""
        info = activity.info()
        key = f"{info.workflow_id}-{info.workflow_run_id}-{info.activity_id}"
        answer = await self._http.post(url, json=body, headers={"Idempotency-Key": key})
        return answer.raise_for_status().json()


@workflow.defn
class Effect:
    """One effect."""

    @workflow.run
    async def run(self, url: str, body: dict[str, Any], once: bool) -> Any:
        """Have it posted."""
        return await workflow.execute_activity_method(
            Activities.post,
            args=[url, body],
            start_to_close_timeout=timedelta(seconds=LEASE_SECONDS),
            retry_policy=RetryPolicy(maximum_attempts=1) if once else None,
        )


class Temporal(Peer):
    """An engine: a server, a worker, and callers."""

    def version(self) -> str:
        command = [str(Path(sys.executable).with_name("temporal")), "--version"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        server = said.partition("(Server ")[2].partition(",")[0]
        return f"server {server}, SDK {version('temporalio')}"

    def server(self) -> list[str]:
        port, http, metrics = (str(port) for port in self.place.ports[:3])
        command = [str(Path(sys.executable).with_name("temporal")), "server", "start-dev"]
        command += ["--headless", "--ip", "127.0.0.1", "--port", port, "--http-port", http]
        command += ["--metrics-port", metrics, "--log-level", "error"]
        # Its one shard reads its queue twenty times a second by default, which would make any
        # workflow take two such ticks: 100 ms instead of 43, seen here. A cluster has many shards.
        return [*command, "--dynamic-config-value", "history.transferProcessorMaxPollRPS=1000"]

    async def _connected(self) -> Client:
        while True:
            try:
                return await Client.connect(f"127.0.0.1:{self.place.ports[0]}")
            except (RPCError, RuntimeError):
                await asyncio.sleep(0.1)  # the server is starting; the benchmark limits the wait

    async def work(self) -> None:
        client, activities = await self._connected(), Activities()
        worker = Worker(client, task_queue=QUEUE, workflows=[Effect], activities=[activities.post])
        self._running = asyncio.create_task(worker.run())

    async def open(self, clients: int) -> None:
        self._client = await self._connected()

    async def call(self, order: Order) -> Any:
        return await self._client.execute_workflow(
            Effect.run,
            args=[self.url(order.kind), order.body, order.variant == "once"],
            id=order.key,
            task_queue=QUEUE,
        )

    async def state(self, order: Order) -> tuple[str, bool]:
        described = await self._client.get_workflow_handle(order.key).describe()
        assert described.status is not None
        attempts = [each.attempt for each in described.raw_description.pending_activities]
        waiting = f", attempt {attempts[0]} of the activity open" if attempts else ""
        return f"{described.status.name}{waiting}", False


if __name__ == "__main__":
    main(Temporal)
