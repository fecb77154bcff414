"""Restate: its server, one service whose handler posts in `ctx.run`, callers through its ingress.

The caller's key is the header `idempotency-key` of its ingress. The downstream key is `ctx.uuid()`,
the same on each attempt, as its documentation advises. The variant `once` is a retry policy of one
attempt, after which the invocation is paused until a person resumes it.
"""

# The peer is in the environment that this program runs in, not in the one that checks it.
# mypy: disable-error-code="import-not-found,misc,untyped-decorator"

from __future__ import annotations

import asyncio
import subprocess
from importlib.metadata import version
from typing import Any

import httpx
import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config
from restate.retry_policy import InvocationRetryPolicy

from bench.peers_of.program import POST_SECONDS, NotDone, Order, Peer, main

SERVICE = restate.Service("orders")
_http: list[httpx.AsyncClient] = []
CALL_SECONDS = 300.0


async def _posted(context: restate.Context, asked: dict[str, Any]) -> Any:
    key = str(context.uuid())

    async def post() -> Any:
        headers = {"Idempotency-Key": key}
        answer = await _http[0].post(asked["url"], json=asked["body"], headers=headers)
        return answer.raise_for_status().json()

    return await context.run_typed("post", post)


@SERVICE.handler()
async def effect(context: restate.Context, asked: dict[str, Any]) -> Any:
    """One effect."""
    return await _posted(context, asked)


@SERVICE.handler(
    invocation_retry_policy=InvocationRetryPolicy(max_attempts=1, on_max_attempts="pause")
)
async def effect_once(context: restate.Context, asked: dict[str, Any]) -> Any:
    """One effect, in one attempt."""
    return await _posted(context, asked)


class Restate(Peer):
    """An engine: a server, a service that it calls, and callers."""

    def __init__(self, place: Any) -> None:
        super().__init__(place)
        names = ("ingress", "admin", "node", "service")
        ports = zip(names, self.place.ports, strict=False)
        self._at = {name: f"127.0.0.1:{port}" for name, port in ports}

    def version(self) -> str:
        command = [self.place.server, "--version"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return f"server {said.split()[1]}, SDK {version('restate-sdk')}"

    def server(self) -> list[str]:
        # All else is the server's default; nothing may listen beyond this machine.
        settings = {
            "RESTATE_INGRESS__BIND_ADDRESS": self._at["ingress"],
            "RESTATE_ADMIN__BIND_ADDRESS": self._at["admin"],
            "RESTATE_BIND_ADDRESS": self._at["node"],
            "RESTATE_ADVERTISED_ADDRESS": f"http://{self._at['node']}",
            "RESTATE_LISTEN_MODE": "tcp",
            "RESTATE_DISABLE_TELEMETRY": "true",
            "RESTATE_LOG_FILTER": "warn",
            "RESTATE_BASE_DIR": f"{self.place.directory}/restate-data",
        }
        pairs = [f"{name}={value}" for name, value in settings.items()]
        return ["env", *pairs, self.place.server, "--no-logo"]

    async def work(self) -> None:
        _http.append(httpx.AsyncClient(trust_env=False, timeout=POST_SECONDS))
        config = Config()
        config.bind = [self._at["service"]]
        self._running = asyncio.create_task(serve(restate.app([SERVICE]), config))
        await self._registered()

    async def _registered(self) -> None:
        """Tell the server where the service is; a second time changes nothing."""
        async with httpx.AsyncClient(trust_env=False) as http:
            while True:  # server and service are starting; the benchmark limits the wait
                try:
                    uri = {"uri": f"http://{self._at['service']}"}
                    answer = await http.post(f"http://{self._at['admin']}/deployments", json=uri)
                    if answer.is_success:
                        return
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.1)

    async def open(self, clients: int) -> None:
        self._client = httpx.AsyncClient(trust_env=False, timeout=CALL_SECONDS)

    async def call(self, order: Order) -> Any:
        handler = "effect_once" if order.variant == "once" else "effect"
        answer = await self._client.post(
            f"http://{self._at['ingress']}/orders/{handler}",
            json={"url": self.url(order.kind), "body": order.body},
            headers={"idempotency-key": order.key},
        )
        if not answer.is_success:
            raise NotDone(f"{answer.status_code} {answer.text}")
        return answer.json()

    async def state(self, order: Order) -> tuple[str, bool]:
        query = (
            "SELECT status, completion_result, retry_count FROM sys_invocation"
            f" WHERE idempotency_key = '{order.key}'"
        )
        answer = await self._client.post(
            f"http://{self._at['admin']}/query",
            json={"query": query},
            headers={"accept": "application/json"},
        )
        (row,) = answer.raise_for_status().json()["rows"]
        result = f", {row['completion_result']}" if row.get("completion_result") else ""
        return f"{row['status']}{result}", row["status"] == "paused"


if __name__ == "__main__":
    main(Restate)
