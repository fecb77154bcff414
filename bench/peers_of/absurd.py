"""Absurd on Postgres: a task of one step that posts, one worker, callers who await the result.

The caller's key is the `idempotency_key` of `spawn`. The downstream key is made of the task's id,
as its documentation advises: the same on each attempt. The variant `once` is `max_attempts=1`.
"""

# The peer is in the environment that this program runs in, not in the one that checks it.
# mypy: disable-error-code="import-not-found,misc,untyped-decorator"

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
from absurd_sdk import Absurd

from bench.peers_of.program import LEASE_SECONDS, POST_SECONDS, NotDone, Order, Peer, main

QUEUE = "effects"
CONCURRENCY = 8


class AbsurdTasks(Peer):
    """An engine in the database: a worker, and callers."""

    def version(self) -> str:
        return version("absurd-sdk")

    async def prepare(self) -> None:
        await asyncio.to_thread(self._prepare)

    def _prepare(self) -> None:
        control = str(Path(sys.executable).with_name("absurdctl"))
        for command in (["init"], ["create-queue", QUEUE]):
            whole = [control, *command, "-d", self.place.database_url]
            subprocess.run(whole, check=True, stdout=sys.stderr)

    def _app(self) -> Any:
        return Absurd(self.place.database_url, queue_name=QUEUE)

    async def work(self) -> None:
        app = self._app()
        http = httpx.Client(trust_env=False, timeout=POST_SECONDS)

        @app.register_task(name="effect")
        def effect(asked: dict[str, Any], context: Any) -> Any:
            def post() -> Any:
                headers = {"Idempotency-Key": f"{context.task_id}:post"}
                answer = http.post(asked["url"], json=asked["body"], headers=headers)
                return answer.raise_for_status().json()

            return context.step("post", post)

        # Its poll is the default: every 0.25 s, and again at once after work was found.
        options = {"claim_timeout": LEASE_SECONDS, "concurrency": CONCURRENCY}
        threading.Thread(target=app.start_worker, kwargs=options, daemon=True).start()

    async def open(self, clients: int) -> None:
        self._apps = [self._app() for _ in range(clients)]

    async def call(self, order: Order) -> Any:
        return await asyncio.to_thread(self._call, order)

    def _spawn(self, app: Any, order: Order) -> str:
        """The same key again is the same task."""
        spawned = app.spawn(
            "effect",
            {"url": self.url(order.kind), "body": order.body},
            queue=QUEUE,
            max_attempts=1 if order.variant == "once" else None,
            idempotency_key=order.key,
        )
        return str(spawned["task_id"])

    def _call(self, order: Order) -> Any:
        app = self._apps[order.client]
        ended = app.await_task_result(self._spawn(app, order))
        if ended.state != "completed":
            raise NotDone(f"{ended.state}: {ended.failure}")
        return ended.result

    async def state(self, order: Order) -> tuple[str, bool]:
        app = self._app()
        task = await asyncio.to_thread(self._spawn, app, order)
        found = await asyncio.to_thread(app.fetch_task_result, task)
        failure = found.failure if isinstance(found.failure, dict) else {}
        why = f" ({failure['name']})" if failure.get("name") else ""
        return f"{found.state}{why}", False


if __name__ == "__main__":
    main(AbsurdTasks)
