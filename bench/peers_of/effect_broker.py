"""The broker's caller: one `POST /v1/effects?wait=` for each effect, over loopback.

API and worker are the broker's own processes. Which contract counts follows from the kind: its tool
is `proof.KIND`.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import httpx

from bench.peers_of.program import NotDone, Order, Peer, main

WAIT_SECONDS = 20.0
CALL_SECONDS = 60.0


class EffectBroker(Peer):
    """A caller; workers send."""

    def version(self) -> str:
        return version("effect-broker")

    async def open(self, clients: int) -> None:
        self._http = httpx.AsyncClient(
            base_url=self.place.api_url,
            headers={"Authorization": f"Bearer {self.place.api_key}"},
            trust_env=False,
            timeout=CALL_SECONDS,
        )

    async def _submitted(self, order: Order, wait: float) -> Any:
        body = {"operation_key": order.key, "tool": f"proof.{order.kind}", "arguments": order.body}
        answer = await self._http.post("/v1/effects", json=body, params={"wait": wait})
        return answer.raise_for_status().json()

    async def call(self, order: Order) -> Any:
        shown = await self._submitted(order, WAIT_SECONDS)
        if shown["state"] != "succeeded":
            raise NotDone(shown["state"])
        return shown["effect_id"]

    async def state(self, order: Order) -> tuple[str, bool]:
        shown = await self._submitted(order, 0.0)  # the same key again: what is known of it
        return shown["state"], shown["waits_for_person"]


if __name__ == "__main__":
    main(EffectBroker)
