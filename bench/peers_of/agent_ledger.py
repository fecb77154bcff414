"""agent-ledger on Postgres, as its README has it: `run(call, handler)` in the caller's process.

The downstream key is `effect.idem_key`, as its README advises. The variant `takeover` is its
`StaleOptions`: an effect that is older than so long is run again by whoever calls.
"""

# The peer is in the environment that this program runs in, not in the one that checks it.
# mypy: disable-error-code="import-not-found,misc,untyped-decorator"

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import httpx
from agent_ledger import EffectLedger, EffectLedgerOptions, RunOptions, StaleOptions, ToolCall
from agent_ledger.stores.postgres import SCHEMA_SQL, PostgresStore
from agent_ledger.utils import compute_idem_key
from psycopg_pool import AsyncConnectionPool

from bench.peers_of.program import LEASE_SECONDS, POST_SECONDS, Order, Peer, main


class AgentLedger(Peer):
    """A library: whoever calls also sends."""

    def version(self) -> str:
        return version("agent-ledger")

    async def prepare(self) -> None:
        async with (
            AsyncConnectionPool(conninfo=self.place.database_url) as pool,
            pool.connection() as connection,
        ):
            await connection.execute(SCHEMA_SQL)

    async def open(self, clients: int) -> None:
        pool = AsyncConnectionPool(
            conninfo=self.place.database_url, min_size=max(clients, 4), open=False
        )
        await pool.open(wait=True)
        self._ledger = EffectLedger(EffectLedgerOptions(store=PostgresStore(pool=pool)))
        self._http = httpx.AsyncClient(trust_env=False, timeout=POST_SECONDS)

    def _call(self, order: Order) -> Any:
        return ToolCall(workflow_id=order.key, tool=order.kind, args=order.body)

    async def call(self, order: Order) -> Any:
        async def post(effect: Any) -> Any:
            headers = {"Idempotency-Key": effect.idem_key}
            answer = await self._http.post(self.url(order.kind), json=order.body, headers=headers)
            return answer.raise_for_status().json()

        takeover = RunOptions(stale=StaleOptions(after_ms=LEASE_SECONDS * 1000))
        options = takeover if order.variant == "takeover" else None
        return await self._ledger.run(self._call(order), handler=post, run_options=options)

    async def state(self, order: Order) -> tuple[str, bool]:
        effect = await self._ledger.find_by_idem_key(compute_idem_key(self._call(order)))
        return effect.status.value, effect.status.value == "requires_approval"


if __name__ == "__main__":
    main(AgentLedger)
