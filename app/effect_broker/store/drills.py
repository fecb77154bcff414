"""Drills on Postgres (`effect_broker.drills`): arming and reading, and what a worker says of one.

Arming acts as the API's role, one tenant at a time; announcing a worker and its death as the
worker's. That a new effect takes an armed drill is part of `effect_broker.submit_effect`, in SQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from effect_broker.drills import AttemptSeen, DrilledEffect, DrillOrder, DrillRecord, EvidenceSeen
from effect_broker.faultpoints import FaultPoint
from effect_broker.store import statements as sql
from effect_broker.store.pool import Connection
from effect_broker.store.postgres import PostgresStore
from effect_broker.store.rows import Row
from effect_contracts.errors import NotFound, TransitionRefused, UnknownTool
from effect_contracts.facts import Alert, EffectState, EvidenceSource, SafetyClass, Verdict

_KNOWN_TOOL: Final = "SELECT 1 FROM effect_broker.active_contracts WHERE tool = %(tool)s"
_KNOWN_KEY: Final = """
SELECT state FROM effect_broker.effect_intents
WHERE tenant_id = %(tenant_id)s AND operation_key = %(operation_key)s
"""

_ARM: Final = """
INSERT INTO effect_broker.drills (
    drill_id, tenant_id, operation_key, tool, fault_point, takeover_seconds, armed_by, reason,
    expires_at)
VALUES (%(drill_id)s, %(tenant_id)s, %(operation_key)s, %(tool)s, %(fault_point)s,
        %(takeover_seconds)s, %(actor)s, %(reason)s,
        clock_timestamp() + make_interval(secs => %(expires_seconds)s))
"""

# The command that started the worker has seen it die. If that command is gone too, the worker's
# last heartbeat tells, once it has been silent for its TTL.
_DRILL: Final = """
SELECT d.drill_id, d.tenant_id, d.operation_key, d.tool, d.fault_point, d.takeover_seconds,
       d.armed_by, d.reason, d.armed_at, d.expires_at, d.cancelled_by, d.cancelled_at,
       d.matched_at, d.executor_id, d.worker_ready_at,
       coalesce(d.died_at, CASE
           WHEN d.matched_at IS NOT NULL AND k.stopped_at IS NULL
                AND k.beat_at < clock_timestamp() - make_interval(secs => k.ttl_seconds)
           THEN greatest(k.beat_at, d.matched_at) END) AS died_at,
       coalesce(d.died_at IS NULL AND k.stopped_at IS NULL
           AND k.beat_at >= clock_timestamp() - make_interval(secs => k.ttl_seconds), false)
           AS worker_lives,
       clock_timestamp() AS now,
       d.effect_id, i.operation_key AS effect_key, i.tool AS effect_tool, i.safety, i.state,
       i.reason AS effect_reason, i.parked, i.alert, i.downstream_key,
       CASE WHEN i.receipt_digest IS NOT NULL THEN r.recorded_at
            WHEN i.parked THEN e.at END AS settled_at
FROM effect_broker.drills AS d
LEFT JOIN effect_broker.workers AS k ON k.executor_id = d.executor_id
LEFT JOIN effect_broker.effect_intents AS i
    ON i.tenant_id = d.tenant_id AND i.effect_id = d.effect_id
LEFT JOIN effect_broker.effect_receipts AS r
    ON r.tenant_id = i.tenant_id AND r.effect_id = i.effect_id
LEFT JOIN effect_broker.effect_events AS e
    ON e.tenant_id = i.tenant_id AND e.effect_id = i.effect_id AND e.sequence = i.version
WHERE d.tenant_id = %(tenant_id)s"""
_ONE: Final = f"{_DRILL} AND d.drill_id = %(drill_id)s"
_NEWEST: Final = f"{_DRILL} ORDER BY d.armed_at DESC, d.drill_id DESC LIMIT %(limit)s"

_ATTEMPTS: Final = """
SELECT a.effect_id, a.ordinal, a.started_at, a.executor_id FROM effect_broker.effect_attempts AS a
WHERE a.tenant_id = %(tenant_id)s AND a.effect_id = ANY(%(effect_ids)s)
ORDER BY a.effect_id, a.ordinal
"""
_EVIDENCE: Final = """
SELECT v.effect_id, v.source, v.verdict, v.began_at, v.recorded_at
FROM effect_broker.effect_evidence AS v
WHERE v.tenant_id = %(tenant_id)s AND v.effect_id = ANY(%(effect_ids)s)
ORDER BY v.effect_id, v.recorded_at, v.evidence_id
"""

_CANCEL: Final = """
UPDATE effect_broker.drills SET cancelled_by = %(actor)s, cancelled_at = clock_timestamp()
WHERE tenant_id = %(tenant_id)s AND drill_id = %(drill_id)s
  AND matched_at IS NULL AND cancelled_at IS NULL
"""

# A worker announces itself once, and again only in the place of one that has not died of it.
_ANNOUNCE: Final = """
UPDATE effect_broker.drills
SET executor_id = %(executor_id)s, worker_ready_at = clock_timestamp()
WHERE tenant_id = %(tenant_id)s AND drill_id = %(drill_id)s
  AND died_at IS NULL AND cancelled_at IS NULL AND executor_id IS DISTINCT FROM %(executor_id)s
"""
_DIED: Final = """
UPDATE effect_broker.drills SET died_at = clock_timestamp()
WHERE tenant_id = %(tenant_id)s AND drill_id = %(drill_id)s
  AND executor_id = %(executor_id)s AND matched_at IS NOT NULL AND died_at IS NULL
"""


class PostgresDrills(PostgresStore):
    """Drills over a pool whose lifetime is the caller's (`effect_broker.drills.DrillStore`)."""

    async def arm(self, tenant_id: UUID, order: DrillOrder, actor: str) -> DrillRecord:
        """Arm a drill; as the API's role.

        Raises:
            UnknownTool, TransitionRefused, StoreError.
        """
        told = {
            "tenant_id": tenant_id,
            "drill_id": order.drill_id,
            "operation_key": order.operation_key,
            "tool": order.tool,
            "fault_point": order.point.value,
            "takeover_seconds": order.takeover_seconds,
            "expires_seconds": order.expires_seconds,
            "reason": order.reason,
            "actor": actor,
        }
        async with self.connection() as (connection, progress):
            async with connection.transaction():
                await connection.execute(sql.SET_TENANT, told)
                await _check_subject(connection, told)
                await connection.execute(_ARM, told)
                progress.committing = True
            progress.committing = False
        return await self.drill(tenant_id, order.drill_id)

    async def drill(self, tenant_id: UUID, drill_id: UUID) -> DrillRecord:
        """Return a drill of this tenant with its effect; as either role.

        Raises:
            NotFound, StoreError.
        """
        records = await self._read(tenant_id, _ONE, drill_id=drill_id)
        if not records:
            raise NotFound
        return records[0]

    async def listing(self, tenant_id: UUID, limit: int) -> Sequence[DrillRecord]:
        """Return the newest drills; as either role.

        Raises:
            StoreError.
        """
        return await self._read(tenant_id, _NEWEST, limit=limit)

    async def cancel(self, tenant_id: UUID, drill_id: UUID, actor: str) -> DrillRecord:
        """Disarm a drill that has met no effect; as the API's role.

        Raises:
            NotFound, TransitionRefused, StoreError.
        """
        await self._write(_CANCEL, tenant_id=tenant_id, drill_id=drill_id, actor=actor)
        record = await self.drill(tenant_id, drill_id)
        if record.effect is not None:
            raise TransitionRefused(state=record.effect.state)
        return record

    async def announce(self, tenant_id: UUID, drill_id: UUID, executor_id: str) -> None:
        """Note which worker waits for the drill's effect; as the worker's role.

        Raises:
            StoreError.
        """
        await self._write(
            _ANNOUNCE, tenant_id=tenant_id, drill_id=drill_id, executor_id=executor_id
        )

    async def record_death(self, tenant_id: UUID, drill_id: UUID, executor_id: str) -> None:
        """Note that the drill's worker has just died of it; as the worker's role.

        Raises:
            StoreError.
        """
        await self._write(_DIED, tenant_id=tenant_id, drill_id=drill_id, executor_id=executor_id)

    async def _write(self, statement: str, **told: object) -> None:
        async with self.connection() as (connection, progress), connection.transaction():
            await connection.execute(sql.SET_TENANT, told)
            await connection.execute(statement, told)
            progress.committing = True

    async def _read(self, tenant_id: UUID, query: str, **asked: object) -> list[DrillRecord]:
        told: dict[str, Any] = {"tenant_id": tenant_id, **asked}
        async with self.connection() as (connection, _), connection.transaction():
            await connection.execute(sql.SET_TENANT, told)
            rows = await (await connection.execute(query, told)).fetchall()
            told["effect_ids"] = [row["effect_id"] for row in rows if row["effect_id"]]
            attempts = await (await connection.execute(_ATTEMPTS, told)).fetchall()
            evidence = await (await connection.execute(_EVIDENCE, told)).fetchall()
        return [_record(row, attempts, evidence) for row in rows]


async def _check_subject(connection: Connection, told: dict[str, Any]) -> None:
    """Refuse what no new effect can match; a contract that is withdrawn later changes nothing."""
    if told["tool"] is not None:
        if await (await connection.execute(_KNOWN_TOOL, told)).fetchone() is None:
            raise UnknownTool
        return
    known = await (await connection.execute(_KNOWN_KEY, told)).fetchone()
    if known is not None:
        raise TransitionRefused(state=EffectState(known["state"]))


def _record(row: Row, attempts: Sequence[Row], evidence: Sequence[Row]) -> DrillRecord:
    return DrillRecord(
        drill_id=row["drill_id"],
        tenant_id=row["tenant_id"],
        operation_key=row["operation_key"],
        tool=row["tool"],
        point=FaultPoint(row["fault_point"]),
        takeover_seconds=row["takeover_seconds"],
        armed_by=row["armed_by"],
        reason=row["reason"],
        armed_at=row["armed_at"],
        expires_at=row["expires_at"],
        cancelled_by=row["cancelled_by"],
        cancelled_at=row["cancelled_at"],
        matched_at=row["matched_at"],
        executor_id=row["executor_id"],
        worker_ready_at=row["worker_ready_at"],
        died_at=row["died_at"],
        worker_lives=row["worker_lives"],
        now=row["now"],
        effect=None if row["effect_id"] is None else _effect(row, attempts, evidence),
    )


def _effect(row: Row, attempts: Sequence[Row], evidence: Sequence[Row]) -> DrilledEffect:
    effect_id = row["effect_id"]
    return DrilledEffect(
        effect_id=effect_id,
        operation_key=row["effect_key"],
        tool=row["effect_tool"],
        safety=SafetyClass(row["safety"]),
        state=EffectState(row["state"]),
        reason=row["effect_reason"],
        parked=row["parked"],
        alert=Alert(row["alert"]) if row["alert"] else None,
        settled_at=row["settled_at"],
        downstream_key=row["downstream_key"],
        attempts=tuple(
            AttemptSeen(a["ordinal"], a["started_at"], a["executor_id"])
            for a in attempts
            if a["effect_id"] == effect_id
        ),
        evidence=tuple(
            EvidenceSeen(
                EvidenceSource(v["source"]), Verdict(v["verdict"]), v["began_at"], v["recorded_at"]
            )
            for v in evidence
            if v["effect_id"] == effect_id
        ),
    )
