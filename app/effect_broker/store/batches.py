"""Decisions on many effects (`effect_broker.batches`): their rows, and the reads around them."""

from __future__ import annotations

import hashlib
from typing import Final
from uuid import UUID

from effect_broker.batches import BatchEffect, BatchOutcome, BatchRecord
from effect_broker.store import statements as sql
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.rows import Row

_COLUMNS: Final = " decision_id, content, digest, actor, recorded_at"
_ADD: Final = """
INSERT INTO effect_broker.batch_decisions (tenant_id, decision_id, content, digest, actor)
VALUES (%(tenant_id)s, %(decision_id)s, %(content)s, %(digest)s, %(actor)s)
ON CONFLICT (tenant_id, decision_id) DO NOTHING
"""
_OF: Final = " FROM effect_broker.batch_decisions WHERE tenant_id = %(tenant_id)s"
_ONE: Final = f"SELECT{_COLUMNS}{_OF} AND decision_id = %(decision_id)s"
_NEWEST: Final = (
    f"SELECT{_COLUMNS}{_OF} ORDER BY recorded_at DESC, decision_id DESC LIMIT %(limit)s"
)
_ADD_EFFECT: Final = """
INSERT INTO effect_broker.batch_effects (tenant_id, decision_id, effect_id, outcome, code)
VALUES (%(tenant_id)s, %(decision_id)s, %(effect_id)s, %(outcome)s, %(code)s)
ON CONFLICT (tenant_id, decision_id, effect_id) DO NOTHING
"""
_EFFECTS: Final = """
SELECT effect_id, outcome, code FROM effect_broker.batch_effects
WHERE tenant_id = %(tenant_id)s AND decision_id = %(decision_id)s
ORDER BY recorded_at, effect_id
"""


class PostgresBatches(PostgresApiStore):
    """The store of decisions on many effects, as the API's role."""

    async def add_batch(
        self, tenant_id: UUID, decision_id: str, content: bytes, actor: str
    ) -> BatchRecord:
        """Store a decision, or return the one that stands under its id.

        Raises:
            StoreError. After CommitUnknown the same call may be made again.
        """
        told = {
            "tenant_id": tenant_id,
            "decision_id": decision_id,
            "content": content.decode(),
            "digest": hashlib.sha256(content).digest(),
            "actor": actor,
        }
        async with self.connection() as (connection, progress), connection.transaction():
            await connection.execute(sql.SET_TENANT, told)
            await connection.execute(_ADD, told)
            row = await (await connection.execute(_ONE, told)).fetchone()
            progress.committing = True
        assert row is not None, "it stands now, whoever has written it"
        return _record(row)

    async def batch(self, tenant_id: UUID, decision_id: str) -> BatchRecord | None:
        """Return a decision.

        Raises:
            StoreUnavailable, StoreBusy.
        """
        (rows,) = await self._read(tenant_id, (_ONE,), decision_id=decision_id)
        return _record(rows[0]) if rows else None

    async def batches(self, tenant_id: UUID, limit: int) -> tuple[BatchRecord, ...]:
        """Return the newest decisions.

        Raises:
            StoreUnavailable, StoreBusy.
        """
        (rows,) = await self._read(tenant_id, (_NEWEST,), limit=limit)
        return tuple(_record(row) for row in rows)

    async def add_batch_effect(
        self, tenant_id: UUID, decision_id: str, effect: BatchEffect
    ) -> None:
        """Store what became of an effect; the first record stays.

        Raises:
            StoreError. After CommitUnknown the same call may be made again.
        """
        told = {
            "tenant_id": tenant_id,
            "decision_id": decision_id,
            "effect_id": effect.effect_id,
            "outcome": effect.outcome.value,
            "code": effect.code,
        }
        async with self.connection() as (connection, progress), connection.transaction():
            await connection.execute(sql.SET_TENANT, told)
            await connection.execute(_ADD_EFFECT, told)
            progress.committing = True

    async def batch_effects(self, tenant_id: UUID, decision_id: str) -> tuple[BatchEffect, ...]:
        """Return what became of the effects of a decision, in that order.

        Raises:
            StoreUnavailable, StoreBusy.
        """
        (rows,) = await self._read(tenant_id, (_EFFECTS,), decision_id=decision_id)
        return tuple(
            BatchEffect(row["effect_id"], BatchOutcome(row["outcome"]), row["code"]) for row in rows
        )


def _record(row: Row) -> BatchRecord:
    return BatchRecord(**{**row, "content": row["content"].encode()})
