"""Bare DBOS: a workflow of one step that posts, called in the process that launched it.

The workflow id is the caller's key, and the downstream key as well. Executor id and application
version are the defaults, so that the process recovers its own workflows when it is started again,
as its documentation has it for one process. The variant `once` is `max_recovery_attempts=0`: what
was begun goes to its dead letter queue, from where only a person can resume it.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import httpx
from dbos import DBOS, DBOSConfig, SetWorkflowID

from bench.peers_of.program import POST_SECONDS, Order, Peer, main

_http: list[httpx.AsyncClient] = []


@DBOS.step()
async def post(url: str, body: dict[str, Any], key: str) -> Any:
    """The request."""
    answer = await _http[0].post(url, json=body, headers={"Idempotency-Key": key})
    return answer.raise_for_status().json()


@DBOS.workflow()
async def effect(url: str, body: dict[str, Any]) -> Any:
    """One effect."""
    assert DBOS.workflow_id is not None
    return await post(url, body, DBOS.workflow_id)


@DBOS.workflow(max_recovery_attempts=0)
async def effect_once(url: str, body: dict[str, Any]) -> Any:
    """One effect, never recovered."""
    assert DBOS.workflow_id is not None
    return await post(url, body, DBOS.workflow_id)


class BareDbos(Peer):
    """A library with an engine in it: whoever calls also sends."""

    def version(self) -> str:
        return version("dbos")

    async def open(self, clients: int) -> None:
        _http.append(httpx.AsyncClient(trust_env=False, timeout=POST_SECONDS))
        config: DBOSConfig = {
            "name": "bench",
            "system_database_url": self.place.database_url,
            "log_level": "ERROR",
            "console_log_level": "ERROR",
        }
        DBOS(config=config)
        DBOS.launch()

    async def call(self, order: Order) -> Any:
        workflow = effect_once if order.variant == "once" else effect
        with SetWorkflowID(order.key):
            return await workflow(self.url(order.kind), order.body)

    async def state(self, order: Order) -> tuple[str, bool]:
        handle: Any = await DBOS.retrieve_workflow_async(order.key)
        status = (await handle.get_status()).status
        return status, status == "MAX_RECOVERY_ATTEMPTS_EXCEEDED"


if __name__ == "__main__":
    main(BareDbos)
