"""The broker's other way: the caller makes the call itself, between an election and its receipt.

The SDK serves the calls from the database, so that no other process is in the way of an effect. A
worker runs beside it, as in production: it settles what a killed caller has left behind.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any

import httpx

from bench.peers_of.program import POST_SECONDS, NotDone, Order, Peer, main
from effect_broker import AsyncBroker, Performed


class EffectBrokerPerformed(Peer):
    """A library with workers behind it: whoever calls also sends."""

    def version(self) -> str:
        return version("effect-broker")

    async def open(self, clients: int) -> None:
        place = self.place
        self._http = httpx.AsyncClient(trust_env=False, timeout=POST_SECONDS)
        self._broker = AsyncBroker.on_postgres(
            place.database_url, api_key=place.api_key, key_ring=place.key_ring
        )

    async def call(self, order: Order) -> Any:
        perform = self._broker.perform(f"proof.{order.kind}", order.body, operation_key=order.key)
        async with perform as effect:
            headers = {
                "Idempotency-Key": effect.downstream_key,
                "Content-Type": "application/json",
            }
            # The bytes that a worker would send: other ones would be another request.
            body = json.dumps(order.body, sort_keys=True, separators=(",", ":")).encode()
            answer = await self._http.post(self.url(order.kind), content=body, headers=headers)
            done = answer.raise_for_status().json()
            await effect.confirm(done, external_id=done["id"])
        outcome = effect.outcome
        if not isinstance(outcome, Performed):
            raise NotDone(type(outcome).__name__)
        return outcome.result

    async def state(self, order: Order) -> tuple[str, bool]:
        shown = await self._broker.submit(
            f"proof.{order.kind}", order.body, operation_key=order.key
        )  # the same key again: what is known of it
        return shown.state.value, shown.waits_for_person


if __name__ == "__main__":
    main(EffectBrokerPerformed)
