"""Certificates on Postgres: kept as they were signed, and ended by what is found out later.

A certificate is revoked where a revocation names it, or names its contract and is not older than
the beginning of its trials. The second kind is written in the commit that freezes the contract
(`statements.FREEZE_CONTRACT`), so that it ends a certificate too that is stored only afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from effect_broker.protocol.ports import ReceiptSignature
from effect_broker.store.errors import store_errors
from effect_broker.store.pool import Pool, session
from effect_broker.store.rows import Row
from effect_contracts.certificates import Certificate
from effect_contracts.receipts import receipt_digest

_NOW: Final = "SELECT clock_timestamp() AS now"
_STORE: Final = """
INSERT INTO effect_broker.certificates (
    certificate_id, contract_digest, contract_name, contract_version, target_identity, content,
    digest, key_id, algorithm, signature, begun_at, ended_at, expires_at, stored_by)
VALUES (%(certificate_id)s, %(contract_digest)s, %(contract_name)s, %(contract_version)s,
        %(target_identity)s, %(content)s, %(digest)s, %(key_id)s, %(algorithm)s, %(signature)s,
        %(begun_at)s, %(ended_at)s, %(expires_at)s, %(stored_by)s)
"""
_LIST: Final = """
SELECT c.certificate_id, c.contract_digest, c.contract_name, c.contract_version, c.target_identity,
       c.content, c.digest, c.key_id, c.algorithm, c.signature, c.ended_at, c.expires_at,
       c.expires_at <= clock_timestamp() AS expired, r.reason AS revoked_reason, r.revoked_at,
       EXISTS (SELECT 1 FROM effect_broker.active_contracts AS a
               WHERE a.digest = c.contract_digest) AS active
FROM effect_broker.certificates AS c
LEFT JOIN LATERAL (
    SELECT v.reason, v.revoked_at FROM effect_broker.certificate_revocations AS v
    WHERE v.certificate_id = c.certificate_id
       OR (v.certificate_id IS NULL AND v.contract_digest = c.contract_digest
           AND v.revoked_at >= c.begun_at)
    ORDER BY v.revoked_at LIMIT 1) AS r ON true
WHERE (%(certificate_id)s::uuid IS NULL OR c.certificate_id = %(certificate_id)s)
ORDER BY c.ended_at DESC, c.certificate_id LIMIT %(limit)s
"""
_REVOKE: Final = """
INSERT INTO effect_broker.certificate_revocations (
    contract_digest, certificate_id, reason, actor)
SELECT c.contract_digest, c.certificate_id, %(reason)s, %(actor)s
FROM effect_broker.certificates AS c WHERE c.certificate_id = %(certificate_id)s
RETURNING revocation_id
"""


@dataclass(frozen=True, slots=True)
class CertificateRecord:
    """One stored certificate and how it stands.

    Attributes:
        content: as it was signed.
        revoked_reason, revoked_at: of the earliest revocation that ends it; None where none does.
        active: its contract is the active one of its tool.
    """

    certificate_id: UUID
    contract_digest: bytes
    contract_name: str
    contract_version: str
    target_identity: str
    content: bytes
    digest: bytes
    signature: ReceiptSignature
    ended_at: datetime
    expires_at: datetime
    expired: bool
    revoked_reason: str | None
    revoked_at: datetime | None
    active: bool

    @property
    def counts(self) -> bool:
        """Whether it is in force now."""
        return self.revoked_at is None and not self.expired


class Certificates:
    """Certificates, over a pool of the admin role; the worker's may read them."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def now(self) -> datetime:
        """Return the time by the database, on which certificates and revocations are compared.

        Raises:
            StoreError.
        """
        (row,) = await self._rows(_NOW)
        now: datetime = row["now"]
        return now

    async def store(
        self, certificate: Certificate, content: bytes, signature: ReceiptSignature, actor: str
    ) -> None:
        """Keep a certificate for good; `content` is what was signed.

        Raises:
            StoreError.
        """
        told = {
            "certificate_id": UUID(certificate.certificate_id),
            "contract_digest": bytes.fromhex(certificate.contract.digest),
            "contract_name": certificate.contract.name,
            "contract_version": certificate.contract.version,
            "target_identity": certificate.target.identity,
            "content": content.decode(),
            "digest": receipt_digest(content),
            "key_id": signature.key_id,
            "algorithm": signature.algorithm,
            "signature": signature.signature,
            "begun_at": certificate.begun_at,
            "ended_at": certificate.ended_at,
            "expires_at": certificate.expires_at,
            "stored_by": actor,
        }
        with store_errors() as progress:
            async with session(self._pool) as connection, connection.transaction():
                await connection.execute(_STORE, told)
                progress.committing = True

    async def listing(
        self, *, limit: int, certificate_id: UUID | None = None
    ) -> tuple[CertificateRecord, ...]:
        """Return the newest certificates, or the one of an id.

        Raises:
            StoreError.
        """
        rows = await self._rows(_LIST, limit=limit, certificate_id=certificate_id)
        return tuple(_record(row) for row in rows)

    async def revoke(self, certificate_id: UUID, reason: str, actor: str) -> bool:
        """End one certificate; False where there is none of this id.

        Raises:
            StoreError.
        """
        told = {"certificate_id": certificate_id, "reason": reason, "actor": actor}
        with store_errors() as progress:
            async with session(self._pool) as connection, connection.transaction():
                row = await (await connection.execute(_REVOKE, told)).fetchone()
                progress.committing = True
        return row is not None

    async def _rows(self, query: str, **told: Any) -> list[dict[str, Any]]:
        with store_errors():
            async with session(self._pool) as connection:
                return await (await connection.execute(query, told)).fetchall()


def _record(row: Row) -> CertificateRecord:
    signature = ReceiptSignature(row["key_id"], row["algorithm"], bytes(row["signature"]))
    return CertificateRecord(
        certificate_id=row["certificate_id"],
        contract_digest=bytes(row["contract_digest"]),
        contract_name=row["contract_name"],
        contract_version=row["contract_version"],
        target_identity=row["target_identity"],
        content=row["content"].encode(),
        digest=bytes(row["digest"]),
        signature=signature,
        ended_at=row["ended_at"],
        expires_at=row["expires_at"],
        expired=row["expired"],
        revoked_reason=row["revoked_reason"],
        revoked_at=row["revoked_at"],
        active=row["active"],
    )
