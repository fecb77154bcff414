"""effect-ledger: `EffectExecutor.execute` in the caller's process, with its Postgres store.

Its handler is synchronous, so that concurrent callers are threads. The downstream key is the stored
`operation.provider_key`. `effect_ledger_sqlite` is its other store, a file. The variant `lookup` is
its recovery policy: here one that asks the target for the key and completes what it finds there.
"""

# The peer is in the environment that this program runs in, not in the one that checks it.
# mypy: disable-error-code="import-not-found,misc,untyped-decorator"

from __future__ import annotations

import asyncio
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
from effect_ledger import EffectExecutor
from effect_ledger.postgres import PostgresOperationStore
from effect_ledger.recovery import RecoveryDecision

from bench.peers_of.program import POST_SECONDS, NotDone, Order, Peer, main


class EffectLedger(Peer):
    """A library: whoever calls also sends."""

    sqlite = False

    def version(self) -> str:
        return version("effect-ledger")

    async def prepare(self) -> None:
        self._executor()  # makes its tables

    def _executor(self) -> Any:
        if self.sqlite:
            path = Path(self.place.directory) / "effects.sqlite"
            return EffectExecutor(path, scope="account-1", recovery=self._looked_up)
        store = PostgresOperationStore(self.place.database_url)
        return EffectExecutor(scope="account-1", store=store, recovery=self._looked_up)

    async def open(self, clients: int) -> None:
        self._http = httpx.Client(trust_env=False, timeout=POST_SECONDS)
        self._effects = self._executor()

    def _looked_up(self, operation: Any) -> Any:
        """The policy: a decision by what the target says, or none."""
        url = self.url(operation.effect)
        found = self._http.get(url, params={"key": operation.provider_key}).json()["data"]
        if len(found) != 1:
            return None  # a failed look-up is no evidence of absence, says the peer
        decided = f"{operation.operation_id}-{operation.version}"
        return RecoveryDecision("complete", decided, "found at the target", found[0])

    async def call(self, order: Order) -> Any:
        return await asyncio.to_thread(self._call, order)

    def _call(self, order: Order) -> Any:
        def post(operation: Any) -> Any:
            headers = {"Idempotency-Key": operation.provider_key}
            answer = self._http.post(self.url(order.kind), json=order.body, headers=headers)
            return answer.raise_for_status().json()

        if order.variant == "lookup" and self._effects.get(order.key) is not None:
            # True: the benchmark has seen the process that sent die.
            self._effects.recover(order.key, workers_stopped=True)
        done = self._effects.execute(order.key, order.kind, order.body, post)
        if done.state != "completed":
            raise NotDone(f"{done.state}, next_action {done.response()['next_action']}")
        return done.result

    async def state(self, order: Order) -> tuple[str, bool]:
        return await asyncio.to_thread(self._state, order)

    def _state(self, order: Order) -> tuple[str, bool]:
        found = self._effects.get(order.key)
        # The list of what awaits a decision, as its operators see it.
        awaiting = {each.operation_id for each in self._effects.unresolved(limit=1000)}
        return found.state, order.key in awaiting


if __name__ == "__main__":
    main(EffectLedger)
