"""The events of an effect on Postgres, as the history reads them: read-only, a page at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from effect_broker.history import HistoryHead
from effect_broker.protocol.ports import EffectMissing
from effect_broker.store import statements as sql
from effect_broker.store.errors import store_errors
from effect_broker.store.pool import Pool, session
from effect_contracts.trace.log import EventRecord

_HEAD: Final = """
SELECT version, event_digest FROM effect_broker.effect_intents
WHERE tenant_id = %(tenant_id)s AND effect_id = %(effect_id)s
"""

_LOST: Final = """
SELECT ordinal, lost_at FROM effect_broker.effect_attempts
WHERE tenant_id = %(tenant_id)s AND effect_id = %(effect_id)s AND lost_at IS NOT NULL
"""

_EVENTS: Final = """
SELECT sequence, kind, event, from_state, to_state, reason, actor, at, metadata,
       encode(previous_digest, 'hex') AS previous_digest, encode(digest, 'hex') AS digest
FROM effect_broker.effect_events
WHERE tenant_id = %(tenant_id)s AND effect_id = %(effect_id)s AND sequence >= %(sequence)s
ORDER BY sequence LIMIT %(limit)s
"""


class PostgresHistory:
    """The reads of `effect_broker.history` over a pool whose lifetime is the caller's."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def head(self, tenant_id: UUID, effect_id: UUID) -> HistoryHead:
        """Return the head.

        Raises:
            EffectMissing, StoreError.
        """
        target = {"tenant_id": tenant_id, "effect_id": effect_id}
        intents, lost = await self._read((_HEAD, _LOST), target)
        if not intents:
            raise EffectMissing("no such effect of this tenant")
        row = intents[0]
        return HistoryHead(
            row["version"],
            bytes(row["event_digest"]),
            {one["ordinal"]: one["lost_at"] for one in lost},
        )

    async def events_from(
        self, tenant_id: UUID, effect_id: UUID, sequence: int, limit: int
    ) -> Sequence[EventRecord]:
        """Return events in order, from this number on.

        Raises:
            StoreError.
        """
        wanted = {
            "tenant_id": tenant_id, "effect_id": effect_id, "sequence": sequence, "limit": limit,
        }  # fmt: skip
        (rows,) = await self._read((_EVENTS,), wanted)
        return [EventRecord(**row) for row in rows]

    async def _read(
        self, queries: Sequence[str], target: Mapping[str, object]
    ) -> list[list[dict[str, Any]]]:
        """Run queries as of one moment, in one round trip."""
        with store_errors():
            async with session(self._pool) as connection:
                async with connection.pipeline():
                    await connection.execute(sql.BEGIN_READ)
                    await connection.execute(sql.SET_TENANT, target)
                    cursors = [await connection.execute(query, target) for query in queries]
                    await connection.execute(sql.COMMIT)
                return [await cursor.fetchall() for cursor in cursors]
