"""Subscriptions in Postgres, for those who make them and look after them; as the API's role."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from effect_broker.protocol.ports import Sealed
from effect_broker.reading import CursorInvalid
from effect_broker.store import statements as sql
from effect_broker.store.errors import store_errors
from effect_broker.store.event_stream import at
from effect_broker.store.pool import Pool, session
from effect_broker.subscriptions import (
    DeadLetter,
    DeadLetters,
    NewSubscription,
    Replaced,
    SubscriptionRecord,
)
from effect_contracts.event_stream import EventFilter, Place

# Numbers in a listing end here; the dead letters themselves are listed whole, by pages.
_COUNT_MAX: Final = 10_000

# One tenant's are made one after the other, so that the limit holds.
_LOCK: Final = """
SELECT pg_advisory_xact_lock(hashtextextended('subscriptions ' || %(tenant_id)s::text, 0))
"""
# From now on: what has a place below the oldest running transaction was there before.
_ADD: Final = """
INSERT INTO effect_broker.event_subscriptions (
    subscription_id, tenant_id, url, types, states, description, key_id, ciphertext, created_by,
    era, place, effect_id, sequence)
SELECT %(subscription_id)s, %(tenant_id)s, %(url)s, %(types)s, %(states)s, %(description)s,
       %(key_id)s, %(ciphertext)s, %(actor)s,
       coalesce(%(era)s::bigint, effect_broker.stream_era()),
       coalesce(%(place)s::text::xid8, pg_snapshot_xmin(pg_current_snapshot())),
       %(effect_id)s::uuid, %(sequence)s::integer
WHERE (SELECT count(*) FROM effect_broker.event_subscriptions AS n
       WHERE n.tenant_id = %(tenant_id)s) < %(limit)s
"""
_RECORD: Final = """
SELECT s.subscription_id, s.url, s.types, s.states, s.description, s.created_by, s.created_at,
       s.era, s.place::text AS place, s.effect_id, s.sequence, s.failing_since, s.last_code,
       s.delivered_at, s.paused_at, s.pause_code,
       (SELECT max(r.signs_until) FROM effect_broker.event_retiring_secrets AS r
        WHERE r.tenant_id = s.tenant_id AND r.subscription_id = s.subscription_id
          AND r.signs_until > statement_timestamp()) AS old_secret_until,
       (SELECT count(*) FROM (
           SELECT 1 FROM effect_broker.event_deliveries AS d
           WHERE d.tenant_id = s.tenant_id AND d.subscription_id = s.subscription_id
             AND d.next_try_at IS NOT NULL LIMIT %(count_max)s) AS w) AS waiting,
       (SELECT count(*) FROM (
           SELECT 1 FROM effect_broker.event_deliveries AS d
           WHERE d.tenant_id = s.tenant_id AND d.subscription_id = s.subscription_id
             AND d.dead_at IS NOT NULL LIMIT %(count_max)s) AS g) AS dead
FROM effect_broker.event_subscriptions AS s
WHERE s.tenant_id = %(tenant_id)s"""
_ONE: Final = f"{_RECORD} AND s.subscription_id = %(subscription_id)s"
_ALL: Final = f"{_RECORD} ORDER BY s.created_at, s.subscription_id"
_THIS: Final = "WHERE tenant_id = %(tenant_id)s AND subscription_id = %(subscription_id)s"
_REMOVE: Final = "".join(("DELETE FROM effect_broker.event_subscriptions ", _THIS))
_PAUSE: Final = "".join(
    (
        "UPDATE effect_broker.event_subscriptions SET paused_at = coalesce(paused_at,"
        " clock_timestamp()), pause_code = coalesce(pause_code, %(code)s) ",
        _THIS,
    )
)
_RESUME: Final = "".join(
    (
        "UPDATE effect_broker.event_subscriptions SET paused_at = NULL, pause_code = NULL,"
        " failing_since = NULL, failures = 0, look_at = clock_timestamp() ",
        _THIS,
    )
)
# The row of the subscription first, as for whoever delivers.
_LOCK_THIS: Final = "".join(
    ("SELECT key_id FROM effect_broker.event_subscriptions ", _THIS, " FOR UPDATE")
)
_FORGET_RETIRED: Final = "".join(
    (
        "DELETE FROM effect_broker.event_retiring_secrets ",
        _THIS,
        " AND (%(overlap_seconds)s = 0 OR signs_until <= clock_timestamp())",
    )
)
_RETIRE: Final = """
INSERT INTO effect_broker.event_retiring_secrets AS r (
    tenant_id, subscription_id, retired_at, signs_until, key_id, ciphertext)
SELECT s.tenant_id, s.subscription_id, t.now, t.now + make_interval(secs => %(overlap_seconds)s),
       s.key_id, s.ciphertext
FROM effect_broker.event_subscriptions AS s, (SELECT clock_timestamp() AS now) AS t
WHERE s.tenant_id = %(tenant_id)s AND s.subscription_id = %(subscription_id)s
  AND (SELECT count(*) FROM effect_broker.event_retiring_secrets AS n
       WHERE n.tenant_id = s.tenant_id AND n.subscription_id = s.subscription_id) < %(limit)s
"""
# Whoever delivers knows the old secret only, and has to lease it anew.
_REPLACE: Final = "".join(
    (
        "UPDATE effect_broker.event_subscriptions SET key_id = %(key_id)s,"
        " ciphertext = %(ciphertext)s, lease_id = NULL, lease_executor_id = NULL,"
        " lease_until = NULL, look_at = clock_timestamp() ",
        _THIS,
    )
)
_DEAD: Final = """
SELECT d.effect_id, d.sequence, e.digest, e.kind, d.tries, d.first_tried_at, d.dead_at, d.code,
       d.status
FROM effect_broker.event_deliveries AS d
LEFT JOIN effect_broker.effect_events AS e
    ON e.tenant_id = d.tenant_id AND e.effect_id = d.effect_id AND e.sequence = d.sequence
WHERE d.tenant_id = %(tenant_id)s AND d.subscription_id = %(subscription_id)s
  AND d.dead_at IS NOT NULL
  AND (d.dead_at, d.effect_id, d.sequence)
      > (%(after_at)s::timestamptz, %(after_id)s::uuid, %(after_sequence)s::integer)
ORDER BY d.dead_at, d.effect_id, d.sequence LIMIT %(limit)s
"""
_REDELIVER: Final = "".join(
    (
        "UPDATE effect_broker.event_deliveries SET tries = 0, first_tried_at = NULL,"
        " next_try_at = clock_timestamp(), dead_at = NULL ",
        _THIS,
        " AND dead_at IS NOT NULL",
    )
)
_THIS_EVENT: Final = " AND effect_id = %(effect_id)s AND sequence = %(sequence)s"
_LOOK_NOW: Final = "".join(
    ("UPDATE effect_broker.event_subscriptions SET look_at = clock_timestamp() ", _THIS)
)

_STANDINGS: Final = """
SELECT t.name AS tenant, s.subscription_id, s.pause_code, s.failing_since, s.last_code,
       EXISTS (SELECT 1 FROM effect_broker.event_deliveries AS d
               WHERE d.tenant_id = s.tenant_id AND d.subscription_id = s.subscription_id
                 AND d.dead_at IS NOT NULL) AS dead
FROM effect_broker.event_subscriptions AS s
JOIN effect_broker.tenants AS t ON t.tenant_id = s.tenant_id
ORDER BY s.paused_at IS NULL, s.failing_since IS NULL, s.created_at LIMIT %(limit)s
"""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_CURSOR_KIND: Final = "dead"
_START: Final = (_EPOCH, UUID(int=0), 0)


@dataclass(frozen=True, slots=True)
class Standing:
    """How a subscription of any tenant stands, for whoever looks after the broker."""

    tenant: str
    subscription_id: UUID
    pause_code: str | None
    failing_since: datetime | None
    last_code: str | None
    dead: bool


async def standings(pool: Pool, limit: int) -> tuple[Standing, ...]:
    """Return how subscriptions stand, those in trouble first; as the worker's role.

    Raises:
        StoreError.
    """
    with store_errors():
        async with session(pool) as connection:
            cursor = await connection.execute(_STANDINGS, {"limit": limit})
            return tuple(Standing(**row) for row in await cursor.fetchall())


class PostgresSubscriptions:
    """`effect_broker.subscriptions.SubscriptionStore` over a pool of the API's role."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def add(self, tenant_id: UUID, new: NewSubscription, limit: int) -> bool:
        """Store one; False where the tenant has `limit` already.

        Raises:
            StoreError.
        """
        order, place = new.order, new.place
        parameters = {
            "subscription_id": new.subscription_id,
            "url": order.url,
            "types": sorted(order.wanted.types),
            "states": sorted(order.wanted.states),
            "description": order.description,
            "key_id": new.sealed.key_id,
            "ciphertext": new.sealed.ciphertext,
            "actor": new.actor,
            "limit": limit,
            "era": None,
            "place": None,
            "effect_id": UUID(int=0),
            "sequence": 0,
        } | ({} if place is None else at(place))
        _, added = await self._write(tenant_id, (_LOCK, _ADD), parameters)
        return added == 1

    async def listing(self, tenant_id: UUID) -> tuple[SubscriptionRecord, ...]:
        """Return all of a tenant, the oldest first.

        Raises:
            StoreError.
        """
        rows = await self._read(tenant_id, _ALL, {"count_max": _COUNT_MAX})
        return tuple(_record(row) for row in rows)

    async def one(self, tenant_id: UUID, subscription_id: UUID) -> SubscriptionRecord | None:
        """Return one; None without it.

        Raises:
            StoreError.
        """
        asked = {"subscription_id": subscription_id, "count_max": _COUNT_MAX}
        rows = await self._read(tenant_id, _ONE, asked)
        return _record(rows[0]) if rows else None

    async def remove(self, tenant_id: UUID, subscription_id: UUID) -> bool:
        """Remove one and what waits for it; False without it.

        Raises:
            StoreError.
        """
        return await self._changed(tenant_id, _REMOVE, subscription_id)

    async def pause(self, tenant_id: UUID, subscription_id: UUID, code: str) -> bool:
        """Deliver nothing more until it is resumed; False without it.

        Raises:
            StoreError.
        """
        return await self._changed(tenant_id, _PAUSE, subscription_id, code=code)

    async def resume(self, tenant_id: UUID, subscription_id: UUID) -> bool:
        """Let it go on at once; False without it.

        Raises:
            StoreError.
        """
        return await self._changed(tenant_id, _RESUME, subscription_id)

    async def replace_secret(
        self,
        tenant_id: UUID,
        subscription_id: UUID,
        sealed: Sealed,
        overlap_seconds: float,
        limit: int,
    ) -> Replaced:
        """Sign with this secret, and for so long with those before; not at all with 0.

        Raises:
            StoreError.
        """
        told = {
            "tenant_id": tenant_id,
            "subscription_id": subscription_id,
            "overlap_seconds": overlap_seconds,
            "limit": limit,
            "key_id": sealed.key_id,
            "ciphertext": sealed.ciphertext,
        }
        with store_errors() as progress:
            async with session(self._pool) as connection, connection.transaction():
                await connection.execute(sql.SET_TENANT, told)
                if (await connection.execute(_LOCK_THIS, told)).rowcount == 0:
                    return Replaced.MISSING
                await connection.execute(_FORGET_RETIRED, told)
                if overlap_seconds and (await connection.execute(_RETIRE, told)).rowcount == 0:
                    return Replaced.TOO_MANY
                await connection.execute(_REPLACE, told)
                progress.committing = True
        return Replaced.DONE

    async def dead_letters(
        self, tenant_id: UUID, subscription_id: UUID, cursor: str | None, limit: int
    ) -> DeadLetters:
        """Return a page of what was given up, the oldest first.

        Raises:
            CursorInvalid, StoreError.
        """
        after_at, after_id, after_sequence = _START if cursor is None else _position(cursor)
        asked = {
            "subscription_id": subscription_id,
            "after_at": after_at,
            "after_id": after_id,
            "after_sequence": after_sequence,
            "limit": limit + 1,
        }
        rows = await self._read(tenant_id, _DEAD, asked)
        letters = tuple(
            DeadLetter(**row | {"digest": row["digest"] and bytes(row["digest"])})
            for row in rows[:limit]
        )
        following = _cursor_after(letters[-1]) if len(rows) > limit else None
        return DeadLetters(letters, following)

    async def redeliver(
        self, tenant_id: UUID, subscription_id: UUID, event: tuple[UUID, int] | None
    ) -> int:
        """Let one dead letter wait again, all with None; return how many.

        Raises:
            StoreError.
        """
        told: dict[str, Any] = {"subscription_id": subscription_id}
        query = _REDELIVER
        if event is not None:
            told |= {"effect_id": event[0], "sequence": event[1]}
            query += _THIS_EVENT
        # The subscription's row first, as for whoever delivers.
        _, again = await self._write(tenant_id, (_LOOK_NOW, query), told)
        return again

    async def _changed(
        self, tenant_id: UUID, statement: str, subscription_id: UUID, **more: Any
    ) -> bool:
        told = {"subscription_id": subscription_id, **more}
        (changed,) = await self._write(tenant_id, (statement,), told)
        return changed == 1

    async def _write(
        self, tenant_id: UUID, statements: Sequence[str], parameters: dict[str, Any]
    ) -> list[int]:
        target = {**parameters, "tenant_id": tenant_id}
        with store_errors() as progress:
            async with session(self._pool) as connection, connection.transaction():
                await connection.execute(sql.SET_TENANT, target)
                counts = [(await connection.execute(one, target)).rowcount for one in statements]
                progress.committing = True
        return counts

    async def _read(
        self, tenant_id: UUID, query: str, parameters: dict[str, Any]
    ) -> list[dict[str, Any]]:
        target = {**parameters, "tenant_id": tenant_id}
        with store_errors():
            async with session(self._pool) as connection:
                async with connection.pipeline():
                    await connection.execute(sql.BEGIN_READ)
                    await connection.execute(sql.SET_TENANT, target)
                    cursor = await connection.execute(query, target)
                    await connection.execute(sql.COMMIT)
                return await cursor.fetchall()


def _record(row: dict[str, Any]) -> SubscriptionRecord:
    return SubscriptionRecord(
        subscription_id=row["subscription_id"],
        url=row["url"],
        wanted=EventFilter(frozenset(row["types"]), frozenset(row["states"])),
        description=row["description"],
        created_by=row["created_by"],
        created_at=row["created_at"],
        place=Place(row["era"], int(row["place"]), row["effect_id"], row["sequence"]),
        failing_since=row["failing_since"],
        last_code=row["last_code"],
        delivered_at=row["delivered_at"],
        paused_at=row["paused_at"],
        pause_code=row["pause_code"],
        old_secret_until=row["old_secret_until"],
        waiting=row["waiting"],
        dead=row["dead"],
    )


def _cursor_after(letter: DeadLetter) -> str:
    moment = (letter.dead_at - _EPOCH) // _MICROSECOND
    text = f"{_CURSOR_KIND}.{moment}.{letter.effect_id.hex}.{letter.sequence}"
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _position(cursor: str) -> tuple[datetime, UUID, int]:
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        kind, moment, effect_id, sequence = urlsafe_b64decode(padded).decode("ascii").split(".")
        if kind != _CURSOR_KIND or not 0 <= int(sequence) < 2**31:
            raise ValueError(kind)
        return _EPOCH + int(moment) * _MICROSECOND, UUID(hex=effect_id), int(sequence)
    except (ValueError, OverflowError):
        raise CursorInvalid("the cursor was not made by this listing") from None
