"""Removing what is no longer needed of settled effects, and sealing payloads under a new key.

Over a pool of the prune role, in bounded batches, each of them one transaction. Only effects that
are settled, have nothing ahead and no alert are touched, and of these the identity (key, request
hash, state, receipt digest), the receipt and what persons have said always stay: a pruned operation
key is still a replay, or a conflict. The steps follow each other on every effect:

    engine      its finished runs in the engine's tables; the broker's own rows are the authority
    payloads    arguments, request, answers and preview; digests and receipts stay verifiable
    rows        attempts, evidence and events; the receipt and the head of the chain stay
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final
from uuid import UUID

from effect_broker.protocol.ports import Sealed, Vault
from effect_broker.store.errors import ENGINE_MISSING, store_errors
from effect_broker.store.pool import Connection, Pool, session
from effect_broker.subscriptions import SEALED_COLUMN

# Longer than the other sessions have: a batch is a few milliseconds, its commit waits for a disk.
_PATIENCE: Final = "SET LOCAL statement_timeout = '30s'"

# The states are those of `effects_to_prune`, word for word, so that the index is taken.
_TAKE: Final = """
SELECT effect_id, tenant_id, generation FROM effect_broker.effect_intents
WHERE state IN ('succeeded', 'failed_final', 'cancelled', 'compensated')
  AND next_action_at IS NULL AND alert IS NULL AND retention_stage < 3
  AND retention_stage = %(stage)s - 1
  AND updated_at < statement_timestamp() - make_interval(secs => %(age_seconds)s)
ORDER BY updated_at LIMIT %(limit)s
FOR NO KEY UPDATE SKIP LOCKED
"""
_MOVE: Final = """
UPDATE effect_broker.effect_intents SET retention_stage = %(stage)s
WHERE effect_id = ANY (%(effect_ids)s) AND tenant_id = ANY (%(tenant_ids)s)
"""
# Three tables of the engine have no foreign key on the run, so each is named. A run that has not
# ended ends by itself: it finds its effect settled.
_DROP_RUNS: Final = """
WITH ended AS (
    DELETE FROM dbos.workflow_status
    WHERE workflow_uuid = ANY (%(run_ids)s)
      AND status NOT IN ('PENDING', 'ENQUEUED', 'DELAYED')
    RETURNING workflow_uuid),
inputs AS (DELETE FROM dbos.workflow_input USING ended
    WHERE workflow_input.workflow_uuid = ended.workflow_uuid),
outputs AS (DELETE FROM dbos.workflow_output USING ended
    WHERE workflow_output.workflow_uuid = ended.workflow_uuid),
steps AS (DELETE FROM dbos.operation_outputs USING ended
    WHERE operation_outputs.workflow_uuid = ended.workflow_uuid)
SELECT count(*)::integer AS removed FROM ended
"""
_ERASE: Final = (
    """
UPDATE effect_broker.effect_payloads SET ciphertext = NULL, erased_at = clock_timestamp()
WHERE tenant_id = ANY (%(tenant_ids)s) AND effect_id = ANY (%(effect_ids)s)
  AND ciphertext IS NOT NULL
""",
    """
UPDATE effect_broker.effect_intents SET preview = NULL
WHERE tenant_id = ANY (%(tenant_ids)s) AND effect_id = ANY (%(effect_ids)s)
""",
)
# Readers of the stream are told that there were events here (`effect_broker.event_stream`).
_NOTE_GAP: Final = """
INSERT INTO effect_broker.event_prunes AS p (tenant_id, era, place)
SELECT DISTINCT ON (e.tenant_id) e.tenant_id, e.era, e.place FROM effect_broker.effect_events AS e
WHERE e.tenant_id = ANY (%(tenant_ids)s) AND e.effect_id = ANY (%(effect_ids)s)
ORDER BY e.tenant_id, e.era DESC, e.place DESC
ON CONFLICT (tenant_id) DO UPDATE
SET era = excluded.era, place = excluded.place, pruned_at = clock_timestamp()
WHERE (p.era, p.place) < (excluded.era, excluded.place)
"""
# Evidence that a person's conclusion rests on stays with it.
_DROP_ROWS: Final = (
    """
DELETE FROM effect_broker.effect_events
WHERE tenant_id = ANY (%(tenant_ids)s) AND effect_id = ANY (%(effect_ids)s)
""",
    """
DELETE FROM effect_broker.effect_attempts
WHERE tenant_id = ANY (%(tenant_ids)s) AND effect_id = ANY (%(effect_ids)s)
""",
    """
DELETE FROM effect_broker.effect_evidence AS d
WHERE d.tenant_id = ANY (%(tenant_ids)s) AND d.effect_id = ANY (%(effect_ids)s)
  AND NOT EXISTS (
      SELECT 1 FROM effect_broker.effect_resolutions AS r WHERE r.evidence_id = d.evidence_id)
""",
    """
DELETE FROM effect_broker.effect_payloads
WHERE tenant_id = ANY (%(tenant_ids)s) AND effect_id = ANY (%(effect_ids)s)
""",
)

# A window of the primary key, whoever of it needs a new key: no query reads more than it.
_WINDOW: Final = """
SELECT tenant_id, effect_id, kind, ref, key_id,
       CASE WHEN key_id <> %(active)s THEN ciphertext END AS ciphertext
FROM effect_broker.effect_payloads
WHERE (effect_id, kind, ref) > (%(effect_id)s, %(kind)s, %(ref)s)
ORDER BY effect_id, kind, ref LIMIT %(limit)s
"""
_RESEAL: Final = """
UPDATE effect_broker.effect_payloads SET key_id = %(key_id)s, ciphertext = %(ciphertext)s
WHERE tenant_id = %(tenant_id)s AND effect_id = %(effect_id)s AND kind = %(kind)s
  AND ref = %(ref)s AND key_id = %(old_key_id)s AND ciphertext IS NOT NULL
"""
_OLD_SECRETS: Final = """
SELECT tenant_id, subscription_id, key_id, ciphertext FROM effect_broker.event_subscriptions
WHERE key_id <> %(active)s FOR NO KEY UPDATE
"""
_RESEAL_SECRET: Final = """
UPDATE effect_broker.event_subscriptions SET key_id = %(key_id)s, ciphertext = %(ciphertext)s
WHERE tenant_id = %(tenant_id)s AND subscription_id = %(subscription_id)s
"""
_OLD_RETIRING: Final = """
SELECT tenant_id, subscription_id, retired_at, key_id, ciphertext
FROM effect_broker.event_retiring_secrets
WHERE key_id <> %(active)s AND signs_until > clock_timestamp() FOR NO KEY UPDATE
"""
_RESEAL_RETIRING: Final = """
UPDATE effect_broker.event_retiring_secrets SET key_id = %(key_id)s, ciphertext = %(ciphertext)s
WHERE tenant_id = %(tenant_id)s AND subscription_id = %(subscription_id)s
  AND retired_at = %(retired_at)s
"""
_OLD_DELIVERIES: Final = """
SELECT count(*)::integer AS waiting FROM effect_broker.evidence_inbox
WHERE next_match_at IS NOT NULL AND key_id <> %(active)s
"""


class Stage(IntEnum):
    """What is removed of a settled effect; each stage follows the one before."""

    ENGINE = 1
    PAYLOADS = 2
    ROWS = 3


@dataclass(frozen=True, slots=True)
class Pruned:
    """What one batch has removed: effects that moved a stage on, and rows (or payloads) of them."""

    effects: int = 0
    removed: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the payloads, by their primary key."""

    effect_id: UUID
    kind: str
    ref: str


BEFORE_ALL: Final = Place(UUID(int=0), "", "")


@dataclass(frozen=True, slots=True)
class Resealed:
    """What one window has shown: how many payloads were read and sealed anew, and where it ends.

    Attributes:
        end: None after the last payload.
    """

    read: int
    sealed: int
    end: Place | None


class Retention:
    """Pruning and key rotation, over a pool of the prune role."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def prune(self, stage: Stage, age_seconds: float, limit: int) -> Pruned:
        """Move the oldest settled effects one stage on; those of at least that age.

        Nothing was lost where it raises: the batch is whole or has not happened.

        Raises:
            StoreError.
        """
        asked = {"stage": int(stage), "age_seconds": age_seconds, "limit": limit}
        with store_errors() as progress:
            async with session(self._pool) as connection, connection.transaction():
                await connection.execute(_PATIENCE)
                rows = await (await connection.execute(_TAKE, asked)).fetchall()
                if not rows:
                    return Pruned()
                effects = {
                    "stage": int(stage),
                    "effect_ids": [row["effect_id"] for row in rows],
                    "tenant_ids": list({row["tenant_id"] for row in rows}),
                }
                await connection.execute(_MOVE, effects)
                removed = await _removed(connection, stage, rows, effects)
                progress.committing = True
        return Pruned(len(rows), removed)

    async def reseal(self, vault: Vault, active: str, after: Place, limit: int) -> Resealed:
        """Seal the payloads of one window under the active key.

        Args:
            active: the id of the vault's active key.

        Raises:
            VaultError: the ring lacks the key of a payload; nothing of the window was changed.
            StoreError.
        """
        place = {"effect_id": after.effect_id, "kind": after.kind, "ref": after.ref}
        asked = {**place, "active": active, "limit": limit}
        with store_errors() as progress:
            async with session(self._pool) as connection, connection.transaction():
                await connection.execute(_PATIENCE)
                rows = await (await connection.execute(_WINDOW, asked)).fetchall()
                sealed = 0
                for row in rows:
                    if row["ciphertext"] is not None:
                        anew = await connection.execute(_RESEAL, _sealed_anew(vault, row))
                        sealed += anew.rowcount
                progress.committing = True
        if len(rows) < limit:
            return Resealed(len(rows), sealed, None)
        last = rows[-1]
        return Resealed(len(rows), sealed, Place(last["effect_id"], last["kind"], last["ref"]))

    async def reseal_secrets(self, vault: Vault, active: str) -> int:
        """Seal the secrets of subscriptions under the active key; return how many.

        Raises:
            VaultError: the ring lacks the key of one; nothing was changed.
            StoreError.
        """
        with store_errors() as progress:
            async with session(self._pool) as connection, connection.transaction():
                await connection.execute(_PATIENCE)
                sealed = 0
                # Subscriptions first, as for whoever replaces a secret.
                for old, reseal in (
                    (_OLD_SECRETS, _RESEAL_SECRET),
                    (_OLD_RETIRING, _RESEAL_RETIRING),
                ):
                    cursor = await connection.execute(old, {"active": active})
                    for row in await cursor.fetchall():
                        await connection.execute(reseal, _secret_sealed_anew(vault, row))
                        sealed += 1
                progress.committing = True
        return sealed

    async def old_deliveries(self, active: str) -> int:
        """Return how many deliveries in the inbox wait under another key; they end by themselves.

        Raises:
            StoreError.
        """
        with store_errors():
            async with session(self._pool) as connection:
                row = await (
                    await connection.execute(_OLD_DELIVERIES, {"active": active})
                ).fetchone()
        return 0 if row is None else int(row["waiting"])


async def _removed(
    connection: Connection, stage: Stage, rows: Sequence[dict[str, Any]], effects: dict[str, Any]
) -> int:
    match stage:
        case Stage.ENGINE:
            runs = [
                f"{row['effect_id']}.{generation}"
                for row in rows
                for generation in range(1, row["generation"] + 1)
            ]
            return await _drop_runs(connection, runs)
        case Stage.PAYLOADS:
            erase, forget = _ERASE
            erased = await connection.execute(erase, effects)
            await connection.execute(forget, effects)
            return erased.rowcount
        case Stage.ROWS:
            await connection.execute(_NOTE_GAP, effects)
            return sum([(await connection.execute(drop, effects)).rowcount for drop in _DROP_ROWS])


async def _drop_runs(connection: Connection, runs: Sequence[str]) -> int:
    """Remove finished runs; none where the engine's schema is away, and so are they."""
    try:
        async with connection.transaction():
            # Not prepared: the tables may be dropped and made anew under a plan.
            cursor = await connection.execute(_DROP_RUNS, {"run_ids": runs}, prepare=False)
            row = await cursor.fetchone()
    except ENGINE_MISSING:
        return 0
    return 0 if row is None else int(row["removed"])


def _secret_sealed_anew(vault: Vault, row: dict[str, Any]) -> dict[str, Any]:
    names = (row["tenant_id"], row["subscription_id"], SEALED_COLUMN)
    new = vault.seal(*names, vault.unseal(*names, Sealed(row["key_id"], bytes(row["ciphertext"]))))
    return row | {"key_id": new.key_id, "ciphertext": new.ciphertext}


def _sealed_anew(vault: Vault, row: dict[str, Any]) -> dict[str, Any]:
    tenant_id, effect_id, kind = row["tenant_id"], row["effect_id"], row["kind"]
    old = Sealed(row["key_id"], bytes(row["ciphertext"]))
    new = vault.seal(tenant_id, effect_id, kind, vault.unseal(tenant_id, effect_id, kind, old))
    return {
        "tenant_id": tenant_id,
        "effect_id": effect_id,
        "kind": kind,
        "ref": row["ref"],
        "old_key_id": old.key_id,
        "key_id": new.key_id,
        "ciphertext": new.ciphertext,
    }
