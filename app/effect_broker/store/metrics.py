"""The numbers over all tenants that `/metrics` shows; a function of the database reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from effect_broker.metrics_ledger import LedgerNumber
from effect_broker.store.errors import store_errors
from effect_broker.store.pool import Pool, session

# The role's own transaction sees one tenant; this returns numbers of all and no row of any.
LEDGER_NUMBERS: Final = """
SELECT measure, tool, safety, state, value FROM effect_broker.ledger_numbers(%(count_max)s)
"""
SUBSCRIPTION_NUMBERS: Final = """
SELECT measure, tool, safety, state, value FROM effect_broker.subscription_numbers(%(count_max)s)
"""


class PostgresLedgerNumbers:
    """`effect_broker.metrics_ledger.LedgerReads`, for the roles of the API and of the workers."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def ledger_numbers(self, count_max: int) -> Sequence[LedgerNumber]:
        """Read the numbers; counting stops at `count_max`.

        Raises:
            StoreUnavailable, StoreBusy.
        """
        with store_errors():
            async with session(self._pool) as connection:
                # Not prepared: the engine's tables may be dropped and made anew under a plan.
                cursor = await connection.execute(
                    LEDGER_NUMBERS, {"count_max": count_max}, prepare=False
                )
                rows = await cursor.fetchall()
                cursor = await connection.execute(SUBSCRIPTION_NUMBERS, {"count_max": count_max})
                rows += await cursor.fetchall()
        return tuple(LedgerNumber(**row) for row in rows)
