"""The worker's store: the effect store, and what repair asks about executors, runs and effects.

All ages are judged on the database clock. The engine's tables are read here and written nowhere;
while its schema is away, no run can be started, and what is due waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from effect_broker import hosting
from effect_broker.protocol.ports import IdentityOf
from effect_broker.repair import DrilledRun, DueEffect, EndedCompensation
from effect_broker.store import statements as sql
from effect_broker.store.errors import ENGINE_MISSING
from effect_broker.store.pool import Connection
from effect_broker.store.postgres import PostgresStore
from effect_contracts.certified import of_target, standing_certificate
from effect_contracts.facts import EffectState

# A run that is pending on a live executor although its effect has been due for this long hangs:
# waits inside a run are a few seconds, and while an attempt is open its deadline is the due time.
RUN_OVERDUE_SECONDS: Final = 60.0
# The engine wakes delayed runs by a worker's clock, about once a second.
DELAY_OVERDUE_SECONDS: Final = 10.0

_OURS: Final[dict[str, Any]] = {
    "workflow": hosting.WORKFLOW_NAME,
    "queue": hosting.QUEUE_NAME,
    "application_name": hosting.APPLICATION_NAME,
    "application_version": hosting.APPLICATION_VERSION,
}

_BEAT: Final = """
INSERT INTO effect_broker.workers (executor_id, ttl_seconds)
VALUES (%(executor_id)s, %(ttl_seconds)s)
ON CONFLICT (executor_id) DO UPDATE
SET beat_at = clock_timestamp(), ttl_seconds = excluded.ttl_seconds
"""

_DESCRIBE: Final = """
UPDATE effect_broker.workers SET host = %(host)s, pid = %(pid)s, version = %(version)s
WHERE executor_id = %(executor_id)s
"""

_DRAIN: Final = """
UPDATE effect_broker.workers SET draining_at = coalesce(draining_at, clock_timestamp())
WHERE executor_id = %(executor_id)s
"""

_STOP: Final = """
UPDATE effect_broker.workers SET stopped_at = coalesce(stopped_at, clock_timestamp())
WHERE executor_id = %(executor_id)s
"""

# Rows of executors that have been gone for a day say nothing any more.
_FORGET: Final = """
DELETE FROM effect_broker.workers AS k
WHERE coalesce(k.stopped_at, k.beat_at) < clock_timestamp() - interval '1 day'
  AND NOT EXISTS (SELECT 1 FROM dbos.workflow_status AS w
                  WHERE w.status = 'PENDING' AND w.executor_id = k.executor_id)
"""

_DEAD: Final = """
SELECT DISTINCT w.executor_id
FROM dbos.workflow_status AS w
WHERE w.status = 'PENDING' AND w.executor_id IS NOT NULL
  AND w.application_name = %(application_name)s
  AND w.application_version = %(application_version)s
  AND NOT EXISTS (
      SELECT 1 FROM effect_broker.workers AS k
      WHERE k.executor_id = w.executor_id AND k.stopped_at IS NULL
        AND k.beat_at > clock_timestamp() - make_interval(secs => k.ttl_seconds))
"""

# By name too: a row of another hand is claimed from our queue like any, and never runs.
_PENDING: Final = """
SELECT w.workflow_uuid
FROM dbos.workflow_status AS w
WHERE w.status = 'PENDING' AND w.executor_id = %(executor_id)s
  AND w.name = %(workflow)s
  AND w.queue_name = %(queue)s
  AND w.application_name = %(application_name)s
  AND w.application_version = %(application_version)s
  AND coalesce(w.started_at_epoch_ms, w.updated_at)
      < extract(epoch FROM clock_timestamp()) * 1000 - %(older_than_seconds)s::float8 * 1000
ORDER BY w.workflow_uuid
"""

# The anti-join comes before the LIMIT: a backlog of due effects whose runs are queued must not
# hide the one whose run is lost.
# A queued run in no tenant's part (enqueued before the queue was parted) is claimed by nobody.
_DUE: Final = """
SELECT i.tenant_id, i.effect_id, i.generation
FROM effect_broker.effect_intents AS i
WHERE i.next_action_at <= clock_timestamp()
  AND NOT EXISTS (
      SELECT 1 FROM dbos.workflow_status AS w
      WHERE w.workflow_uuid = i.effect_id::text || '.' || i.generation::text
        AND w.queue_name = %(queue)s
        AND w.application_name = %(application_name)s
        AND w.application_version = %(application_version)s
        AND ((w.status = 'ENQUEUED' AND w.queue_partition_key IS NOT NULL)
             OR (w.status = 'DELAYED'
                 AND w.delay_until_epoch_ms > extract(epoch FROM clock_timestamp()) * 1000
                     - %(delay_overdue_seconds)s::float8 * 1000)
             OR (w.status = 'PENDING'
                 AND i.next_action_at > clock_timestamp()
                     - make_interval(secs => %(run_overdue_seconds)s)
                 AND EXISTS (
                     SELECT 1 FROM effect_broker.workers AS k
                     WHERE k.executor_id = w.executor_id AND k.stopped_at IS NULL
                       AND k.beat_at
                           > clock_timestamp() - make_interval(secs => k.ttl_seconds)))))
ORDER BY i.next_action_at
LIMIT %(limit)s
"""

# The first run of a drilled effect is in a queue that only the drill's worker listens to. It comes
# back when that worker is dead, and when the ordinary path has taken the effect already. Drills of
# long ago are let be: their effects were due in any case.
_DRILLED: Final = """
SELECT w.workflow_uuid AS run_id, w.queue_name
FROM effect_broker.drills AS d
JOIN effect_broker.effect_intents AS i ON i.tenant_id = d.tenant_id AND i.effect_id = d.effect_id
JOIN dbos.workflow_status AS w ON w.workflow_uuid = d.effect_id::text || '.1'
WHERE d.matched_at > clock_timestamp() - interval '1 day'
  AND w.queue_name = %(drill_queue_prefix)s || d.drill_id::text
  AND w.application_name = %(application_name)s
  AND w.application_version = %(application_version)s
  AND ((w.status = 'ENQUEUED' AND (
           i.generation > 1 OR i.next_action_at IS NULL OR i.next_action_at <= clock_timestamp()))
       OR (w.status IN ('ENQUEUED', 'PENDING')
           AND coalesce(w.executor_id, d.executor_id) IS NOT NULL
           AND NOT EXISTS (
               SELECT 1 FROM effect_broker.workers AS k
               WHERE k.executor_id = coalesce(w.executor_id, d.executor_id)
                 AND k.stopped_at IS NULL
                 AND k.beat_at > clock_timestamp() - make_interval(secs => k.ttl_seconds))))
"""

# A worker of an older release registers it undivided when it starts.
_QUEUE: Final = """
SELECT EXISTS (SELECT 1 FROM dbos.queues
               WHERE name = %(queue)s AND partition_worker_concurrency IS NOT NULL) AS registered
"""

_LIVE: Final = """
SELECT count(*)::integer AS live FROM effect_broker.workers
WHERE stopped_at IS NULL AND draining_at IS NULL
  AND beat_at > clock_timestamp() - make_interval(secs => ttl_seconds)
"""


# Writes only where the server is another one, or went on from an earlier point, or where the
# tables are not those that the row was written beside: it came here in a dump.
_HALT: Final = """
UPDATE effect_broker.database_identity AS d SET halted_at = clock_timestamp()
FROM effect_broker.this_database AS t
WHERE d.singleton AND d.halted_at IS NULL
  AND ((d.system_identifier, d.timeline, d.relation_oid)
           IS DISTINCT FROM (t.system_identifier, t.timeline, t.relation_oid)
       OR d.database_oid <> t.database_oid)
"""
_HALTED: Final = """
SELECT halted_at IS NOT NULL AS halted FROM effect_broker.database_identity WHERE singleton
"""

# Whoever lifts a hold changes one row. What stood still for it is found here, by looking, so that
# an effect which was parked at the very moment of the lifting is not forgotten. A row that is
# locked is just being moved; the next look finds it.
_RELEASE: Final = """
UPDATE effect_broker.effect_intents AS i
SET parked = false, next_action_at = clock_timestamp(), updated_at = clock_timestamp()
FROM (
    SELECT h.tenant_id, h.effect_id FROM effect_broker.effect_intents AS h
    WHERE h.reason IN ('paused', 'frozen', 'tenant_disabled', 'database_restored')
      AND (h.parked OR h.next_action_at > clock_timestamp())
      AND CASE h.reason
          WHEN 'tenant_disabled' THEN EXISTS (
              SELECT 1 FROM effect_broker.tenants AS t
              WHERE t.tenant_id = h.tenant_id AND t.disabled_at IS NULL)
          WHEN 'database_restored' THEN NOT EXISTS (
              SELECT 1 FROM effect_broker.database_identity AS d WHERE d.halted_at IS NOT NULL)
          ELSE NOT EXISTS (
              SELECT 1 FROM effect_broker.holds AS o
              WHERE o.lifted_at IS NULL AND o.kind = h.reason
                AND (o.tenant_id IS NULL OR o.tenant_id = h.tenant_id)
                AND (o.tool IS NULL OR o.tool = h.tool)
                AND (o.contract_name IS NULL OR (o.contract_name, o.contract_version)
                     = (h.contract_name, h.contract_version)))
          END
    LIMIT %(limit)s FOR NO KEY UPDATE OF h SKIP LOCKED) AS lifted
WHERE i.tenant_id = lifted.tenant_id AND i.effect_id = lifted.effect_id
"""


# Certificates are few, and what waits for one is found by its contract. Whether one fits is no
# question for SQL: it depends on who has signed it, and on what the contract demands.
_CERTIFIED_AND_AWAITED: Final = """
SELECT DISTINCT c.contract_digest FROM effect_broker.certificates AS c
WHERE c.expires_at > clock_timestamp() AND EXISTS (
    SELECT 1 FROM effect_broker.effect_intents AS i
    WHERE i.reason = 'awaiting_certificate' AND i.contract_digest = c.contract_digest
      AND (i.parked OR i.next_action_at > clock_timestamp()))
"""
_RELEASE_CERTIFIED: Final = """
UPDATE effect_broker.effect_intents AS i
SET parked = false, next_action_at = clock_timestamp(), updated_at = clock_timestamp()
FROM (
    SELECT h.tenant_id, h.effect_id FROM effect_broker.effect_intents AS h
    WHERE h.reason = 'awaiting_certificate' AND h.contract_digest = %(contract_digest)s
      AND (h.parked OR h.next_action_at > clock_timestamp())
    LIMIT %(limit)s FOR NO KEY UPDATE OF h SKIP LOCKED) AS certified
WHERE i.tenant_id = certified.tenant_id AND i.effect_id = certified.effect_id
"""


# Few at any moment: a link leaves this index when its meaning is written. OFFSET as in `LINKS_OF`.
_ENDED_COMPENSATIONS: Final = """
SELECT l.tenant_id, l.effect_id, l.compensates_id, i.state
FROM effect_broker.effect_links AS l
CROSS JOIN LATERAL (
    SELECT c.state FROM effect_broker.effect_intents AS c
    WHERE c.tenant_id = l.tenant_id AND c.effect_id = l.effect_id OFFSET 0) AS i
WHERE l.compensates_id IS NOT NULL AND l.settled_at IS NULL
  AND i.state IN ('succeeded', 'failed_final', 'cancelled', 'compensated')
ORDER BY l.created_at LIMIT %(limit)s
"""
_SETTLE_LINK: Final = """
UPDATE effect_broker.effect_links SET settled_at = clock_timestamp()
WHERE tenant_id = %(tenant_id)s AND effect_id = %(effect_id)s AND settled_at IS NULL
"""


class PostgresWorkerStore(PostgresStore):
    """All that a worker needs of the store (`effect_broker.worker.WorkerStore`)."""

    async def beat(self, executor_id: str, ttl_seconds: float) -> None:
        """Note that this executor lives now.

        Raises:
            StoreUnavailable, StoreBusy, CommitUnknown.
        """
        await self._write(_BEAT, executor_id=executor_id, ttl_seconds=ttl_seconds)

    async def watch_database(self) -> bool:
        """Halt dispatch if the server was restored or has failed over; return whether it is.

        Raises:
            StoreUnavailable, StoreBusy, CommitUnknown.
        """
        async with self.connection() as (connection, progress):
            progress.committing = True
            await connection.execute(_HALT)
            row = await (await connection.execute(_HALTED)).fetchone()
            return row is not None and bool(row["halted"])

    async def release_certified(self, limit: int, identity_of: IdentityOf) -> int:
        """Let effects go on for which a fitting certificate is in force now; return how many.

        Raises:
            StoreUnavailable, StoreBusy, CommitUnknown.
        """
        released = 0
        async with self.connection() as (connection, progress):
            rows = await (await connection.execute(_CERTIFIED_AND_AWAITED)).fetchall()
            for row in rows:
                document = await self._document(connection, bytes(row["contract_digest"]))
                demand, digest = document.policy().certificate, document.digest()
                assert demand is not None, "only a contract that demands one lets effects wait"
                found = await self._certificates.of_contract(connection, digest)
                clock = await (await connection.execute(sql.READ_CLOCK)).fetchone()
                assert clock is not None, "the clock answers"
                own = of_target(found, demand, identity_of(document))
                if standing_certificate(own, demand, clock["now"]) is None:
                    continue
                told = {"contract_digest": digest, "limit": limit - released}
                progress.committing = True
                released += (await connection.execute(_RELEASE_CERTIFIED, told)).rowcount
                progress.committing = False
        return released

    async def release_lifted(self, limit: int) -> int:
        """Let effects go on whose hold was lifted; return how many.

        Raises:
            StoreUnavailable, StoreBusy, CommitUnknown.
        """
        async with self.connection() as (connection, progress):
            progress.committing = True
            return (await connection.execute(_RELEASE, {"limit": limit})).rowcount

    async def ended_compensations(self, limit: int) -> Sequence[EndedCompensation]:
        """Return compensations that have ended and whose meaning was not written yet.

        Raises:
            StoreUnavailable, StoreBusy.
        """
        async with self.connection() as (connection, _):
            cursor = await connection.execute(_ENDED_COMPENSATIONS, {"limit": limit})
            rows = await cursor.fetchall()
        return [EndedCompensation(**{**row, "state": EffectState(row["state"])}) for row in rows]

    async def settle_link(self, tenant_id: UUID, effect_id: UUID) -> None:
        """Note that what a compensation means was written.

        Raises:
            StoreUnavailable, StoreBusy, CommitUnknown.
        """
        await self._write(_SETTLE_LINK, tenant_id=tenant_id, effect_id=effect_id)

    async def describe_executor(self, executor_id: str, host: str, pid: int, version: str) -> None:
        """Add what a reader wants to know of an executor that has beaten once."""
        await self._write(_DESCRIBE, executor_id=executor_id, host=host, pid=pid, version=version)

    async def drain_executor(self, executor_id: str) -> None:
        """Note that this executor takes no new work; its runs stay its own."""
        await self._write(_DRAIN, executor_id=executor_id)

    async def stop_executor(self, executor_id: str) -> None:
        """Note that this executor has ended, so that its runs are handed on at once."""
        await self._write(_STOP, executor_id=executor_id)

    async def forget_executors(self) -> None:
        """Remove executors that have been gone for a day and hold no run."""
        async with self.connection() as (connection, _):
            await _engine_rows(connection, _FORGET, {}, ())

    async def live_executors(self) -> int:
        """Return how many executors beat and take work."""
        async with self.connection() as (connection, _):
            return await live_executors(connection)

    async def dead_executors(self) -> Sequence[str]:
        """Return executors that hold runs of ours and have stopped or not beaten for their TTL."""
        async with self.connection() as (connection, _):
            rows = await _engine_rows(connection, _DEAD, _OURS, ())
        return [row["executor_id"] for row in rows or ()]

    async def abandoned_drilled_runs(self) -> Sequence[DrilledRun]:
        """Return runs in a drill's queue whose worker is dead, or was too late."""
        parameters = {**_OURS, "drill_queue_prefix": hosting.drill_queue_name("")}
        async with self.connection() as (connection, _):
            rows = await _engine_rows(connection, _DRILLED, parameters, ())
        return [DrilledRun(row["run_id"], row["queue_name"]) for row in rows or ()]

    async def pending_runs(self, executor_id: str, older_than_seconds: float) -> Sequence[str]:
        """Return the ids of our runs that are pending on this executor for longer than that."""
        own = {**_OURS, "executor_id": executor_id, "older_than_seconds": older_than_seconds}
        async with self.connection() as (connection, _):
            rows = await _engine_rows(connection, _PENDING, own, ())
        return [row["workflow_uuid"] for row in rows or ()]

    async def due_effects(self, limit: int) -> Sequence[DueEffect]:
        """Return effects that are due and have no live run, the longest due first.

        None while the engine's schema is away: a run could not be put anywhere, and generations
        that are used up without one would make healthy effects look as if their runs failed.

        Raises:
            StoreUnavailable, StoreBusy.
        """
        parameters = {
            **_OURS,
            "limit": limit,
            "run_overdue_seconds": RUN_OVERDUE_SECONDS,
            "delay_overdue_seconds": DELAY_OVERDUE_SECONDS,
        }
        async with self.connection() as (connection, _):
            rows = await _engine_rows(connection, _DUE, parameters, ())
        return [DueEffect(r["tenant_id"], r["effect_id"], r["generation"]) for r in rows or ()]

    async def queue_registered(self) -> bool:
        """Return whether the engine's queue exists; True if its whole schema is missing."""
        queue = {"queue": hosting.QUEUE_NAME}
        async with self.connection() as (connection, _):
            rows = await _engine_rows(connection, _QUEUE, queue, None)
        return True if rows is None else bool(rows[0]["registered"])

    async def _write(self, statement: str, **parameters: object) -> None:
        async with self.connection() as (connection, progress):
            progress.committing = True
            await connection.execute(statement, parameters)


async def live_executors(connection: Connection) -> int:
    """Return how many executors beat and take work."""
    row = await (await connection.execute(_LIVE)).fetchone()
    return 0 if row is None else int(row["live"])


async def _engine_rows(
    connection: Connection,
    query: str,
    parameters: dict[str, Any],
    missing: Sequence[dict[str, Any]] | None,
) -> Sequence[dict[str, Any]] | None:
    """Return the rows of a query on the engine's tables, `missing` where they are away."""
    try:
        # Not prepared: the tables may be dropped and made anew under a plan.
        cursor = await connection.execute(query, parameters, prepare=False)
        return await cursor.fetchall() if cursor.description else ()
    except ENGINE_MISSING:
        return missing
