"""No peer: the POST alone, with the caller's key as the downstream key, and no record of it.

It is the floor under every cost, and what a caller has who calls again after a crash.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import httpx

from bench.peers_of.program import POST_SECONDS, Order, Peer, main


class BarePost(Peer):
    """A request: whoever calls also sends."""

    def version(self) -> str:
        return f"httpx {version('httpx')}"

    async def open(self, clients: int) -> None:
        self._http = httpx.AsyncClient(trust_env=False, timeout=POST_SECONDS)

    async def call(self, order: Order) -> Any:
        headers = {"Idempotency-Key": order.key}
        answer = await self._http.post(self.url(order.kind), json=order.body, headers=headers)
        return answer.raise_for_status().json()

    async def state(self, order: Order) -> tuple[str, bool]:
        return "no record", False


if __name__ == "__main__":
    main(BarePost)
