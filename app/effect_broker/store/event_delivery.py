"""Deliveries in Postgres, for workers: leases on subscriptions, and what was not accepted.

A lease is taken with SKIP LOCKED and ends with its time, or with the heartbeat of whoever has it.
Whatever a batch has come to is written in one transaction that first sees the lease on the locked
row of the subscription: a worker that was given up writes nothing, and a subscription that was
removed takes its notes with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from effect_broker.event_delivery import Served
from effect_broker.event_sending import Batch, Leased, Note, Waiting
from effect_broker.protocol.ports import Sealed
from effect_broker.store import statements as sql
from effect_broker.store.errors import store_errors
from effect_broker.store.event_stream import EVENTS_AFTER, FOLLOW, at, stream_event
from effect_broker.store.pool import Pool, session
from effect_contracts.event_stream import EventFilter, Place
from effect_contracts.webhook_sending import SendingPolicy

# Nothing is written where there is nothing to do. Without a subscription this is one look at an
# empty index.
LEASE: Final = """
UPDATE effect_broker.event_subscriptions AS s
SET lease_id = gen_random_uuid(), lease_executor_id = %(executor_id)s,
    lease_until = clock_timestamp() + make_interval(secs => %(seconds)s)
FROM (SELECT n.subscription_id, n.tenant_id
      FROM effect_broker.event_subscriptions AS n
      JOIN effect_broker.tenants AS t ON t.tenant_id = n.tenant_id AND t.disabled_at IS NULL
      WHERE n.paused_at IS NULL AND n.look_at <= statement_timestamp()
        AND (n.lease_id IS NULL OR n.lease_until <= clock_timestamp()
             OR NOT EXISTS (
                 SELECT 1 FROM effect_broker.workers AS w
                 WHERE w.executor_id = n.lease_executor_id AND w.stopped_at IS NULL
                   AND w.beat_at > clock_timestamp() - make_interval(secs => w.ttl_seconds)))
        AND (EXISTS (
                 SELECT 1 FROM effect_broker.event_deliveries AS d
                 WHERE d.subscription_id = n.subscription_id AND d.tenant_id = n.tenant_id
                   AND d.next_try_at <= statement_timestamp()
                   AND NOT EXISTS (
                       SELECT 1 FROM effect_broker.event_deliveries AS b
                       WHERE b.subscription_id = d.subscription_id AND b.tenant_id = d.tenant_id
                         AND b.effect_id = d.effect_id AND b.sequence < d.sequence
                         AND b.next_try_at IS NOT NULL))
             OR EXISTS (
                 SELECT 1 FROM effect_broker.effect_events AS e
                 WHERE e.tenant_id = n.tenant_id
                   AND (e.era, e.place, e.effect_id, e.sequence)
                       > (n.era, n.place, n.effect_id, n.sequence)
                   AND (e.era, e.place) < ((SELECT effect_broker.stream_era()),
                                           pg_snapshot_xmin(pg_current_snapshot()))))
      ORDER BY n.look_at LIMIT %(limit)s FOR NO KEY UPDATE OF n SKIP LOCKED) AS due
WHERE s.tenant_id = due.tenant_id AND s.subscription_id = due.subscription_id
RETURNING s.subscription_id, s.tenant_id, s.lease_id, s.url, s.types, s.states, s.key_id,
          s.ciphertext, s.era, s.place::text AS place, s.effect_id, s.sequence, s.failing_since,
          s.failures, clock_timestamp() AS now,
          ARRAY(SELECT r.key_id FROM effect_broker.event_retiring_secrets AS r
                WHERE r.tenant_id = s.tenant_id AND r.subscription_id = s.subscription_id
                  AND r.signs_until > statement_timestamp()
                ORDER BY r.retired_at DESC) AS retiring_key_ids,
          ARRAY(SELECT r.ciphertext FROM effect_broker.event_retiring_secrets AS r
                WHERE r.tenant_id = s.tenant_id AND r.subscription_id = s.subscription_id
                  AND r.signs_until > statement_timestamp()
                ORDER BY r.retired_at DESC) AS retiring_ciphertexts
"""
_THIS: Final = """
WHERE tenant_id = %(tenant_id)s AND subscription_id = %(subscription_id)s
  AND lease_id = %(lease_id)s"""
_HOLDS: Final = "".join(
    (
        "SELECT 1 FROM effect_broker.event_subscriptions",
        _THIS,
        " AND paused_at IS NULL AND lease_until > clock_timestamp()",
    )
)
_BLOCKED: Final = """
SELECT DISTINCT effect_id FROM effect_broker.event_deliveries
WHERE tenant_id = %(tenant_id)s AND subscription_id = %(subscription_id)s
  AND next_try_at IS NOT NULL
"""
# Of each effect the earliest is the one that waits; the others stand behind it.
_WAITING: Final = """
WITH heads AS (
    SELECT DISTINCT ON (d.effect_id) d.effect_id, d.next_try_at
    FROM effect_broker.event_deliveries AS d
    WHERE d.tenant_id = %(tenant_id)s AND d.subscription_id = %(subscription_id)s
      AND d.next_try_at IS NOT NULL
    ORDER BY d.effect_id, d.sequence)
SELECT d.effect_id, d.sequence, d.tries, d.first_tried_at, e.era, e.place::text AS place, e.kind,
       e.from_state, e.to_state, e.reason, e.at, e.digest, i.operation_key, i.tool
FROM heads AS h
JOIN effect_broker.event_deliveries AS d
    ON d.tenant_id = %(tenant_id)s AND d.subscription_id = %(subscription_id)s
    AND d.effect_id = h.effect_id AND d.next_try_at IS NOT NULL
LEFT JOIN effect_broker.effect_events AS e
    ON e.tenant_id = d.tenant_id AND e.effect_id = d.effect_id AND e.sequence = d.sequence
LEFT JOIN effect_broker.effect_intents AS i
    ON i.tenant_id = d.tenant_id AND i.effect_id = d.effect_id
WHERE h.next_try_at <= clock_timestamp()
ORDER BY h.next_try_at, d.effect_id, d.sequence LIMIT %(waiting)s
"""
_SERVED: Final = """
UPDATE effect_broker.event_subscriptions
SET era = %(era)s, place = %(place)s::text::xid8, effect_id = %(effect_id)s,
    sequence = %(sequence)s,
    look_at = clock_timestamp() + make_interval(secs => %(look_after_seconds)s),
    failing_since = %(failing_since)s, failures = %(failures)s,
    last_code = coalesce(%(last_code)s, last_code),
    delivered_at = CASE WHEN %(delivered)s THEN clock_timestamp() ELSE delivered_at END,
    paused_at = CASE WHEN %(pause_code)s::text IS NULL THEN paused_at
                     ELSE coalesce(paused_at, clock_timestamp()) END,
    pause_code = coalesce(pause_code, %(pause_code)s),
    lease_id = CASE WHEN %(release)s THEN NULL ELSE lease_id END,
    lease_executor_id = CASE WHEN %(release)s THEN NULL ELSE lease_executor_id END,
    lease_until = CASE WHEN %(release)s THEN NULL
                       ELSE clock_timestamp() + make_interval(secs => %(seconds)s) END
WHERE tenant_id = %(tenant_id)s AND subscription_id = %(subscription_id)s
  AND lease_id = %(lease_id)s
RETURNING 1
"""
_FORGET: Final = """
DELETE FROM effect_broker.event_deliveries AS d
USING unnest(%(effect_ids)s::uuid[], %(sequences)s::integer[]) AS done (effect_id, sequence)
WHERE d.tenant_id = %(tenant_id)s AND d.subscription_id = %(subscription_id)s
  AND d.effect_id = done.effect_id AND d.sequence = done.sequence
"""
_NOTE: Final = """
INSERT INTO effect_broker.event_deliveries AS d (
    subscription_id, tenant_id, effect_id, sequence, tries, first_tried_at, next_try_at, dead_at,
    code, status)
VALUES (%(subscription_id)s, %(tenant_id)s, %(effect_id)s, %(sequence)s, %(tries)s,
        %(first_tried_at)s, %(next_try_at)s, %(dead_at)s, %(code)s, %(status)s)
ON CONFLICT (subscription_id, effect_id, sequence) DO UPDATE
SET tries = excluded.tries, first_tried_at = excluded.first_tried_at,
    next_try_at = excluded.next_try_at, dead_at = excluded.dead_at, code = excluded.code,
    status = excluded.status
"""


class PostgresDeliveries:
    """`effect_broker.event_delivery.DeliveryStore` over a pool of a worker.

    Args:
        policy: how long leases are, and how much is read.
    """

    def __init__(self, pool: Pool, policy: SendingPolicy | None = None) -> None:
        self._pool = pool
        self._policy = policy or SendingPolicy()

    async def lease(self, executor_id: str, limit: int) -> Sequence[Leased]:
        """Take subscriptions that have something to deliver, those that wait longest first.

        Raises:
            StoreError.
        """
        seconds = self._policy.lease_seconds
        asked = {"executor_id": executor_id, "limit": limit, "seconds": seconds}
        with store_errors() as progress:
            async with session(self._pool) as connection:
                progress.committing = True
                rows = await (await connection.execute(LEASE, asked)).fetchall()
        return [_leased(row) for row in rows]

    async def holds(self, leased: Leased) -> bool:
        """Whether the subscription still is there, goes on, and is leased to us.

        Raises:
            StoreError.
        """
        with store_errors():
            async with session(self._pool) as connection:
                cursor = await connection.execute(_HOLDS, _names(leased))
                return await cursor.fetchone() is not None

    async def batch(self, leased: Leased, place: Place, waiting: int) -> Batch:
        """Read what is to be delivered, as of one moment.

        Raises:
            StoreError.
        """
        asked = _names(leased) | {"waiting": waiting}
        stream = {"tenant_id": leased.tenant_id, "limit": self._policy.batch} | at(place)
        with store_errors():
            async with session(self._pool) as connection:
                async with connection.pipeline():
                    await connection.execute(sql.BEGIN_READ)
                    clock = await connection.execute(sql.READ_CLOCK)
                    blocked = await connection.execute(_BLOCKED, asked)
                    noted = await connection.execute(_WAITING, asked)
                    events = await connection.execute(EVENTS_AFTER, stream)
                    await connection.execute(sql.COMMIT)
                now = await clock.fetchone()
                effects = frozenset(row["effect_id"] for row in await blocked.fetchall())
                again = [_waiting(row) for row in await noted.fetchall()]
                rows = await events.fetchall()
        assert now is not None
        if len(effects) >= self._policy.effects_waiting_max:
            rows = []  # the rest stays where it is: in the stream
        return Batch(again, effects, [stream_event(row) for row in rows], now["now"])

    async def served(self, leased: Leased, served: Served) -> bool:
        """Write what a batch has come to; False where the lease was lost, and nothing written.

        Raises:
            StoreError.
        """
        names = _names(leased)
        told = names | at(served.place) | {
            "look_after_seconds": served.look_after_seconds,
            "failing_since": served.failing_since,
            "failures": served.failures,
            "last_code": served.last_code,
            "delivered": served.delivered,
            "pause_code": served.pause_code,
            "release": served.release,
            "seconds": self._policy.lease_seconds,
        }  # fmt: skip
        with store_errors() as progress:
            async with session(self._pool) as connection, connection.transaction():
                held = await (await connection.execute(_SERVED, told)).fetchone()
                if held is not None and served.accepted:
                    await connection.execute(_FORGET, names | _accepted(served.accepted))
                if held is not None and served.notes:
                    async with connection.cursor() as cursor:
                        await cursor.executemany(_NOTE, [names | _noted(n) for n in served.notes])
                progress.committing = True
        return held is not None

    async def follow(self) -> None:
        """Write down that the database is another one, or has another timeline.

        Raises:
            StoreError.
        """
        with store_errors() as progress:
            async with session(self._pool) as connection:
                progress.committing = True
                await connection.execute(FOLLOW)


def _names(leased: Leased) -> dict[str, Any]:
    return {
        "tenant_id": leased.tenant_id,
        "subscription_id": leased.subscription_id,
        "lease_id": leased.lease_id,
    }


def _leased(row: dict[str, Any]) -> Leased:
    return Leased(
        subscription_id=row["subscription_id"],
        tenant_id=row["tenant_id"],
        lease_id=row["lease_id"],
        url=row["url"],
        wanted=EventFilter(frozenset(row["types"]), frozenset(row["states"])),
        sealed=Sealed(row["key_id"], bytes(row["ciphertext"])),
        place=Place(row["era"], int(row["place"]), row["effect_id"], row["sequence"]),
        failing_since=row["failing_since"],
        failures=row["failures"],
        now=row["now"],
        retiring=[
            Sealed(key_id, bytes(ciphertext))
            for key_id, ciphertext in zip(
                row["retiring_key_ids"], row["retiring_ciphertexts"], strict=True
            )
        ],
    )


def _waiting(row: dict[str, Any]) -> Waiting:
    event = None if row["digest"] is None else stream_event(row)
    return Waiting(row["effect_id"], row["sequence"], row["tries"], row["first_tried_at"], event)


def _accepted(accepted: Sequence[tuple[UUID, int]]) -> dict[str, Any]:
    return {
        "effect_ids": [effect_id for effect_id, _ in accepted],
        "sequences": [sequence for _, sequence in accepted],
    }


def _noted(note: Note) -> dict[str, Any]:
    return {
        "effect_id": note.effect_id,
        "sequence": note.sequence,
        "tries": note.tries,
        "first_tried_at": note.first_tried_at,
        "next_try_at": note.next_try_at,
        "dead_at": note.dead_at,
        "code": note.code,
        "status": note.status,
    }
