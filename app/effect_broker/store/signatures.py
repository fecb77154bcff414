"""Signatures of receipts on Postgres: written with the receipt, read with it, and added later.

Whoever settles an effect and holds a signing key signs in the same transaction, as one more
statement of a pipeline that is sent anyway. What was settled without a key is signed later, in
batches. A signature is added once for each key and never changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from effect_broker.protocol.ports import AddReceipt, Intent, Signer, Write
from effect_broker.reading import SignatureRecord
from effect_broker.store.errors import store_errors
from effect_broker.store.pool import Pool, session
from effect_broker.store.rows import Row
from effect_broker.store.writes import Statement

# Receipts of one batch: some milliseconds of signing, and no long transaction.
BATCH_RECEIPTS: Final = 500

ADD_SIGNATURE: Final = """
INSERT INTO effect_broker.effect_receipt_signatures (
    tenant_id, effect_id, receipt_digest, key_id, algorithm, signature, signed_at)
VALUES (%(tenant_id)s, %(effect_id)s, %(receipt_digest)s, %(key_id)s, %(algorithm)s,
        %(signature)s, clock_timestamp())
"""

READ_SIGNATURES: Final = """
SELECT s.key_id, s.algorithm, s.signature, s.signed_at
FROM effect_broker.effect_receipt_signatures AS s
JOIN effect_broker.effect_receipts AS r
    ON r.tenant_id = s.tenant_id AND r.effect_id = s.effect_id AND r.digest = s.receipt_digest
WHERE s.tenant_id = %(tenant_id)s AND s.effect_id = %(effect_id)s
ORDER BY s.signed_at, s.key_id
"""

# A page of receipts in the order of their effects' ids, which is that of an index: however many are
# signed already, a page costs the same. `key_id` is NULL where a signature by any key will do.
_PAGE: Final = """
SELECT p.tenant_id, p.effect_id, p.digest, w.wanted,
       CASE WHEN w.wanted THEN p.content END AS content
FROM (SELECT r.tenant_id, r.effect_id, r.content, r.digest
      FROM effect_broker.effect_receipts AS r
      WHERE r.effect_id > %(after)s ORDER BY r.effect_id LIMIT %(page)s) AS p,
     LATERAL (SELECT (%(tenant_id)s::uuid IS NULL OR p.tenant_id = %(tenant_id)s)
                     AND NOT EXISTS (
                         SELECT 1 FROM effect_broker.effect_receipt_signatures AS s
                         WHERE s.tenant_id = p.tenant_id AND s.effect_id = p.effect_id
                           AND (%(key_id)s::text IS NULL OR s.key_id = %(key_id)s)) AS wanted) AS w
ORDER BY p.effect_id
"""

# Another process may sign the same receipts meanwhile.
_ADD_UNLESS_THERE: Final = f"{ADD_SIGNATURE}ON CONFLICT (effect_id, key_id) DO NOTHING"

# Ids of effects are digests, so that their order is that of a sample.
_UNSIGNED: Final = """
SELECT count(*)::integer AS looked_at,
       (count(*) FILTER (WHERE NOT EXISTS (
           SELECT 1 FROM effect_broker.effect_receipt_signatures AS s
           WHERE s.tenant_id = p.tenant_id AND s.effect_id = p.effect_id)))::integer AS unsigned
FROM (SELECT r.tenant_id, r.effect_id FROM effect_broker.effect_receipts AS r
      ORDER BY r.effect_id LIMIT %(limit)s) AS p
"""

_BEFORE_ALL: Final = UUID(int=0)


@dataclass(frozen=True, slots=True)
class UnsignedReceipts:
    """How many of a sample of receipts bear no signature."""

    looked_at: int
    unsigned: int


async def unsigned_receipts(pool: Pool, limit: int) -> UnsignedReceipts:
    """Look at so many receipts at most, as the worker's role.

    Raises:
        StoreError.
    """
    with store_errors():
        async with session(pool) as connection:
            row = await (await connection.execute(_UNSIGNED, {"limit": limit})).fetchone()
    return UnsignedReceipts(0, 0) if row is None else UnsignedReceipts(**row)


def signature_statements(
    signer: Signer, intent: Intent, writes: Iterable[Write]
) -> Iterator[Statement]:
    """Yield the statements that sign the receipts of a change; they follow the receipts' own."""
    for write in writes:
        if isinstance(write, AddReceipt):
            yield (
                ADD_SIGNATURE,
                _parameters(
                    signer, intent.tenant_id, intent.effect_id, write.content, write.digest
                ),
            )


def _parameters(
    signer: Signer, tenant_id: UUID, effect_id: UUID, content: bytes, digest: bytes
) -> dict[str, Any]:
    made = signer.sign(content)
    return {
        "tenant_id": tenant_id,
        "effect_id": effect_id,
        "receipt_digest": digest,
        "key_id": made.key_id,
        "algorithm": made.algorithm,
        "signature": made.signature,
    }


def signature_of(row: Row) -> SignatureRecord:
    """Return a stored signature."""
    return SignatureRecord(
        row["key_id"], row["algorithm"], bytes(row["signature"]), row["signed_at"]
    )


class LateSignatures:
    """Signs receipts that were written without a key, or before the present one."""

    def __init__(self, pool: Pool, signer: Signer) -> None:
        self._pool = pool
        self._signer = signer
        self._after = _BEFORE_ALL

    async def sign_batch(
        self,
        *,
        by_key: str | None,
        tenant_id: UUID | None = None,
        page: int = BATCH_RECEIPTS,
        signed_max: int | None = None,
    ) -> tuple[int, bool]:
        """Look at the next receipts and sign those that lack a signature, in one transaction; go
        on where the call before ended.

        Args:
            by_key: those that lack one by this key; None for those that have none at all.
            page: look at so many.
            signed_max: sign at most so many of them, at least one.

        Returns:
            How many were signed, and whether the last receipt was reached.

        Raises:
            StoreError: nothing of this batch was committed, or, on a lost answer, all of it.
        """
        looked = {"after": self._after, "key_id": by_key, "tenant_id": tenant_id, "page": page}
        with store_errors() as progress:
            async with session(self._pool) as connection:
                rows = await (await connection.execute(_PAGE, looked)).fetchall()
                wanted = [row for row in rows if row["wanted"]]
                chosen = wanted[:signed_max]
                signed = [self._of(row) for row in chosen]
                async with connection.transaction(), connection.pipeline():
                    progress.committing = True
                    cursors = [await connection.execute(_ADD_UNLESS_THERE, one) for one in signed]
        whole = len(chosen) == len(wanted)
        if rows:
            self._after = (rows if whole else chosen)[-1]["effect_id"]
        return sum(cursor.rowcount for cursor in cursors), whole and len(rows) < page

    def _of(self, row: Row) -> dict[str, Any]:
        content = row["content"].encode()
        return _parameters(
            self._signer, row["tenant_id"], row["effect_id"], content, bytes(row["digest"])
        )
