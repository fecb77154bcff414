"""The stream of a tenant's events on Postgres; see the migration `event_stream` for its order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from effect_broker.event_stream import StreamHead
from effect_broker.store import statements as sql
from effect_broker.store.errors import store_errors
from effect_broker.store.pool import Pool, session
from effect_contracts.event_stream import Place, StreamEvent

_HEAD: Final = """
SELECT effect_broker.stream_era() AS era,
       pg_snapshot_xmax(pg_current_snapshot())::text AS next_transaction,
       (SELECT array_agg(k.epoch::text || ' ' || k.epoch_id::text)
        FROM effect_broker.event_epochs AS k) AS epochs,
       p.era AS pruned_era, p.place::text AS pruned_place
FROM (VALUES (%(tenant_id)s::uuid)) AS t (tenant_id)
LEFT JOIN effect_broker.event_prunes AS p ON p.tenant_id = t.tenant_id
"""
FOLLOW: Final = "SELECT effect_broker.follow_event_stream() AS epoch"

# An event whose place is not below the oldest running transaction may yet get a neighbour before
# it. The bound is stated twice: by era and place, where an index ends at it, however much waits
# behind a transaction that lasts; and alone, for what was prepared before a failover and is not
# decided yet.
EVENTS_AFTER: Final = """
SELECT e.era, e.place::text AS place, e.effect_id, e.sequence, e.kind, e.from_state, e.to_state,
       e.reason, e.at, e.digest, i.operation_key, i.tool
FROM (SELECT v.era, v.place, v.effect_id, v.sequence, v.tenant_id, v.kind, v.from_state, v.to_state,
             v.reason, v.at, v.digest
      FROM effect_broker.effect_events AS v
      WHERE v.tenant_id = %(tenant_id)s
        AND (v.era, v.place, v.effect_id, v.sequence)
            > (%(era)s::bigint, %(place)s::text::xid8, %(effect_id)s::uuid, %(sequence)s::integer)
        AND (v.era, v.place)
            < ((SELECT effect_broker.stream_era()), pg_snapshot_xmin(pg_current_snapshot()))
        AND (v.era < (SELECT effect_broker.stream_era() >> 32 << 32)
             OR v.place < pg_snapshot_xmin(pg_current_snapshot()))
      ORDER BY v.era, v.place, v.effect_id, v.sequence LIMIT %(limit)s) AS e
JOIN effect_broker.effect_intents AS i
    ON i.tenant_id = e.tenant_id AND i.effect_id = e.effect_id
ORDER BY e.era, e.place, e.effect_id, e.sequence
"""

# The end of what can be read.
_END: Final = """
SELECT v.era, v.place::text AS place, v.effect_id, v.sequence
FROM effect_broker.effect_events AS v
WHERE v.tenant_id = %(tenant_id)s
  AND (v.era, v.place)
      < ((SELECT effect_broker.stream_era()), pg_snapshot_xmin(pg_current_snapshot()))
  AND (v.era < (SELECT effect_broker.stream_era() >> 32 << 32)
       OR v.place < pg_snapshot_xmin(pg_current_snapshot()))
ORDER BY v.era DESC, v.place DESC, v.effect_id DESC, v.sequence DESC LIMIT 1
"""


class PostgresStream:
    """`effect_broker.event_stream.StreamReads` over a pool of the API or of a worker."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def head(self, tenant_id: UUID) -> StreamHead:
        """Return where the stream stands; a new epoch is written down at this first look.

        Raises:
            StoreError.
        """
        found = await self._head(tenant_id)
        if found.epoch not in found.epochs:
            with store_errors():
                async with session(self._pool) as connection:
                    await connection.execute(FOLLOW)
            found = await self._head(tenant_id)
        return found

    async def events_after(
        self, tenant_id: UUID, place: Place, limit: int
    ) -> Sequence[StreamEvent]:
        """Return what follows a place, as far as nothing can come in between any more.

        Raises:
            StoreError.
        """
        rows = await self._read(EVENTS_AFTER, {"tenant_id": tenant_id, "limit": limit} | at(place))
        return [stream_event(row) for row in rows]

    async def end(self, tenant_id: UUID) -> Place | None:
        """Return the last place that can be read; None where there is no event.

        Raises:
            StoreError.
        """
        rows = await self._read(_END, {"tenant_id": tenant_id})
        return _place(rows[0]) if rows else None

    async def _head(self, tenant_id: UUID) -> StreamHead:
        (row,) = await self._read(_HEAD, {"tenant_id": tenant_id})
        epochs = [text.split(" ") for text in row["epochs"]]
        pruned = None
        if row["pruned_era"] is not None:
            pruned = (row["pruned_era"], int(row["pruned_place"]))
        return StreamHead(
            epochs={int(epoch): UUID(epoch_id) for epoch, epoch_id in epochs},
            era=row["era"],
            next_transaction=int(row["next_transaction"]),
            pruned_through=pruned,
        )

    async def _read(self, query: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
        with store_errors():
            async with session(self._pool) as connection:
                async with connection.pipeline():
                    await connection.execute(sql.BEGIN_READ)
                    await connection.execute(sql.SET_TENANT, parameters)
                    cursor = await connection.execute(query, parameters)
                    await connection.execute(sql.COMMIT)
                return await cursor.fetchall()


def at(place: Place) -> dict[str, Any]:
    """Return the parameters that name a place."""
    return {
        "era": place.era,
        "place": str(place.transaction),
        "effect_id": place.effect_id,
        "sequence": place.sequence,
    }


def stream_event(row: dict[str, Any]) -> StreamEvent:
    """Return the event of a row of `EVENTS_AFTER`."""
    return StreamEvent(
        place=_place(row),
        kind=row["kind"],
        from_state=row["from_state"],
        to_state=row["to_state"],
        reason=row["reason"],
        at=row["at"],
        digest=bytes(row["digest"]),
        operation_key=row["operation_key"],
        tool=row["tool"],
    )


def _place(row: dict[str, Any]) -> Place:
    return Place(row["era"], int(row["place"]), row["effect_id"], row["sequence"])
