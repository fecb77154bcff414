"""The trace context that was stored with an intent."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from effect_broker.store import statements as sql
from effect_broker.store.errors import store_errors
from effect_broker.store.pool import Pool, session

_TRACEPARENT: Final = """
SELECT traceparent FROM effect_broker.effect_intents
WHERE tenant_id = %(tenant_id)s AND effect_id = %(effect_id)s
"""


class PostgresTraceparents:
    """`effect_broker.tracing.TraceparentReads`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def traceparent(self, tenant_id: UUID, effect_id: UUID) -> str | None:
        """Return what was stored with an intent; None where nothing was.

        Raises:
            StoreUnavailable, StoreBusy.
        """
        target = {"tenant_id": tenant_id, "effect_id": effect_id}
        with store_errors():
            async with session(self._pool) as connection:
                async with connection.pipeline():
                    await connection.execute(sql.BEGIN_READ)
                    await connection.execute(sql.SET_TENANT, target)
                    found = await connection.execute(_TRACEPARENT, target)
                    await connection.execute(sql.COMMIT)
                row = await found.fetchone()
        return None if row is None else row["traceparent"]
