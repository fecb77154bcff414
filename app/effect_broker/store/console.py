"""The reads of the console on Postgres (`effect_broker.console.ConsoleReads`), all read-only.

Counts stop at `COUNTED_MAX` rows of an index of open effects, so that a backlog costs no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from effect_broker.console import (
    COUNTED_MAX,
    EVIDENCE_MAX,
    LISTED_MAX,
    QueueCounts,
    Said,
    SeenEvidence,
    WaitingProposal,
    WorkerRecord,
)
from effect_broker.resolving import ProposalRecord
from effect_broker.store import statements as sql
from effect_broker.store.errors import store_errors
from effect_broker.store.pool import Pool, session
from effect_broker.store.rows import Row
from effect_broker.unresolved import OVERDUE_SECONDS

_LIMITS: Final[dict[str, object]] = {
    "evidence_max": EVIDENCE_MAX,
    "listed_max": LISTED_MAX,
    "counted_max": COUNTED_MAX,
    "overdue_seconds": OVERDUE_SECONDS,
}
_EVIDENCE: Final = """
SELECT * FROM (
    SELECT source, verdict, code, began_at, recorded_at, covers_through, external_ids
    FROM effect_broker.effect_evidence
    WHERE tenant_id = %(tenant_id)s AND effect_id = %(effect_id)s
    ORDER BY began_at DESC LIMIT %(evidence_max)s) AS newest
ORDER BY began_at
"""
_SAID: Final = """
SELECT decision_id, content, actor, recorded_at FROM effect_broker.effect_resolutions
WHERE tenant_id = %(tenant_id)s AND effect_id = %(effect_id)s
UNION ALL
SELECT decision_id, content, actor, recorded_at FROM effect_broker.effect_approvals
WHERE tenant_id = %(tenant_id)s AND effect_id = %(effect_id)s
ORDER BY recorded_at LIMIT %(listed_max)s
"""
_PROPOSALS: Final = """
SELECT p.effect_id, p.decision_id, p.content, p.digest, p.actor, p.recorded_at,
       i.operation_key, i.tool, i.version
FROM effect_broker.effect_proposals AS p
JOIN effect_broker.effect_intents AS i USING (tenant_id, effect_id)
WHERE p.tenant_id = %(tenant_id)s
  AND i.state NOT IN ('succeeded', 'failed_final', 'cancelled', 'compensated')
  AND NOT EXISTS (
      SELECT 1 FROM effect_broker.effect_resolutions AS r
      WHERE r.tenant_id = p.tenant_id AND r.decision_id = p.decision_id)
ORDER BY p.recorded_at, p.decision_id LIMIT %(listed_max)s
"""
_WORKERS: Final = """
SELECT executor_id, host, version, started_at, seconds_since_beat,
       beats AND draining_at IS NULL AS live,
       beats AND draining_at IS NOT NULL AS draining, stopped_at IS NOT NULL AS stopped
FROM (
    SELECT executor_id, host, version, started_at, draining_at, stopped_at,
           extract(epoch FROM clock_timestamp() - beat_at)::float8 AS seconds_since_beat,
           stopped_at IS NULL
           AND beat_at > clock_timestamp() - make_interval(secs => ttl_seconds) AS beats
    FROM effect_broker.workers
    WHERE beat_at > clock_timestamp() - interval '1 day') AS w
ORDER BY beats DESC, seconds_since_beat LIMIT %(listed_max)s
"""
_WAITING: Final = """
SELECT count(*)::integer AS waiting,
       (count(*) FILTER (WHERE late > %(overdue_seconds)s))::integer AS overdue,
       greatest(coalesce(max(late), 0), 0)::float8 AS overdue_seconds,
       clock_timestamp() AS now
FROM (
    SELECT extract(epoch FROM clock_timestamp() - next_action_at) AS late
    FROM effect_broker.effect_intents
    WHERE tenant_id = %(tenant_id)s AND next_action_at IS NOT NULL
    LIMIT %(counted_max)s) AS w
"""
_PARKED: Final = """
SELECT reason, count(*)::integer AS effects FROM (
    SELECT reason, parked FROM effect_broker.effect_intents
    WHERE tenant_id = %(tenant_id)s
      AND state NOT IN ('succeeded', 'failed_final', 'cancelled', 'compensated')
    LIMIT %(counted_max)s) AS o
WHERE parked GROUP BY reason ORDER BY count(*) DESC, reason
"""
_ALERTS: Final = """
SELECT count(*)::integer AS alerts FROM (
    SELECT 1 FROM effect_broker.effect_intents
    WHERE tenant_id = %(tenant_id)s AND alert IS NOT NULL LIMIT %(counted_max)s) AS a
"""


class PostgresConsole:
    """The reads over a pool of the API's role, whose lifetime is the caller's."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def evidence(self, tenant_id: UUID, effect_id: UUID) -> tuple[SeenEvidence, ...]:
        """Return the newest evidence of an effect, the oldest of it first."""
        (rows,) = await self._read((_EVIDENCE,), tenant_id, effect_id)
        return tuple(
            SeenEvidence(**{**row, "external_ids": tuple(row["external_ids"])}) for row in rows
        )

    async def said(self, tenant_id: UUID, effect_id: UUID) -> tuple[Said, ...]:
        """Return what persons have stated: resolutions, approvals and denials."""
        (rows,) = await self._read((_SAID,), tenant_id, effect_id)
        return tuple(Said(**{**row, "content": row["content"].encode()}) for row in rows)

    async def proposals(self, tenant_id: UUID) -> tuple[WaitingProposal, ...]:
        """Return what waits for a second person in this tenant, the oldest first."""
        (rows,) = await self._read((_PROPOSALS,), tenant_id)
        return tuple(_proposal(row) for row in rows)

    async def workers(self) -> tuple[WorkerRecord, ...]:
        """Return the workers of every tenant, those that beat first."""
        with store_errors():
            async with session(self._pool) as connection:
                rows = await (await connection.execute(_WORKERS, _LIMITS)).fetchall()
        return tuple(WorkerRecord(**row) for row in rows)

    async def queue(self, tenant_id: UUID) -> QueueCounts:
        """Return how a tenant's work stands."""
        (waiting,), parked, (alerts,) = await self._read((_WAITING, _PARKED, _ALERTS), tenant_id)
        return QueueCounts(
            **waiting,
            parked={row["reason"]: row["effects"] for row in parked},
            alerts=alerts["alerts"],
        )

    async def _read(
        self, queries: Sequence[str], tenant_id: UUID, effect_id: UUID | None = None
    ) -> list[list[Row]]:
        """Run queries as of one moment, in one round trip."""
        target = {**_LIMITS, "tenant_id": tenant_id, "effect_id": effect_id}
        with store_errors():
            async with session(self._pool) as connection:
                async with connection.pipeline():
                    await connection.execute(sql.BEGIN_READ)
                    await connection.execute(sql.SET_TENANT, target)
                    cursors = [await connection.execute(query, target) for query in queries]
                    await connection.execute(sql.COMMIT)
                return [list(await cursor.fetchall()) for cursor in cursors]


def _proposal(row: Row) -> WaitingProposal:
    record = ProposalRecord(
        effect_id=row["effect_id"],
        decision_id=row["decision_id"],
        content=row["content"].encode(),
        digest=row["digest"],
        actor=row["actor"],
        recorded_at=row["recorded_at"],
    )
    return WaitingProposal(record, row["operation_key"], row["tool"], row["version"])
