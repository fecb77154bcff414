"""The evidence inbox in Postgres: what `effect_broker.evidence_inbox` asks of its store.

A delivery is one row, inserted before the sender is answered. Every statement names its tenant but
for two: the endpoint of a delivery is found before a tenant is known, and workers take due
deliveries of all tenants. A delivery that is taken is postponed in the same statement, so that two
workers do not take one, and one that dies loses it to nobody.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from effect_broker.evidence_inbox import (
    Candidate,
    Deliveries,
    Delivery,
    DeliveryFilter,
    DeliveryLine,
    DeliveryRecord,
    Endpoint,
    Verdicted,
)
from effect_broker.protocol.ports import Sealed
from effect_broker.protocol.webhook import DeliveryStatus
from effect_broker.reading import CursorInvalid
from effect_broker.store import statements as sql
from effect_broker.store.errors import store_errors
from effect_broker.store.pool import Pool, session
from effect_contracts.document import ContractDocument

# What is decided at once, by the process that took it in, is not taken from it.
_FIRST_MATCH_SECONDS: Final = 5.0
# A delivery is looked at again after as long as it has waited already, within these.
_AGAIN_SECONDS_MIN: Final = 2.0
_AGAIN_SECONDS_MAX: Final = 3600.0

# The version that is active, else the newest: what the contract's author says of the sender today.
_ENDPOINT: Final = """
SELECT clock_timestamp() AS now, t.tenant_id, c.document
FROM (SELECT effect_broker.tenant_named(%(tenant)s) AS tenant_id) AS t
JOIN LATERAL (
    SELECT c.document FROM effect_broker.contracts AS c
    LEFT JOIN effect_broker.active_contracts AS a ON a.tool = c.tool AND a.digest = c.digest
    WHERE c.name = %(contract)s
    ORDER BY a.digest IS NOT NULL DESC, c.applied_at DESC LIMIT 1) AS c ON true
WHERE t.tenant_id IS NOT NULL
"""
_ADD: Final = """
INSERT INTO effect_broker.evidence_inbox (
    delivery_id, tenant_id, contract_name, contract_version, contract_digest, senders_id,
    body_digest, received_at, status, code, decided_at, next_match_at, key_id, ciphertext)
SELECT %(delivery_id)s, %(tenant_id)s, %(contract_name)s, %(contract_version)s,
       %(contract_digest)s, %(senders_id)s, %(body_digest)s, n.now, %(status)s, %(code)s,
       CASE WHEN %(key_id)s::text IS NULL THEN n.now END,
       CASE WHEN %(key_id)s::text IS NOT NULL
            THEN n.now + make_interval(secs => %(first_match_seconds)s) END,
       %(key_id)s, %(ciphertext)s
FROM (SELECT clock_timestamp() AS now) AS n
ON CONFLICT ON CONSTRAINT one_delivery_per_senders_id DO NOTHING
RETURNING delivery_id, tenant_id, contract_name, contract_digest, received_at, key_id, ciphertext
"""
_STANDING: Final = """
SELECT status FROM effect_broker.evidence_inbox
WHERE tenant_id = %(tenant_id)s AND contract_name = %(contract_name)s
  AND senders_id = %(senders_id)s
"""
_BY_KEY: Final = """
SELECT effect_id, contract_name FROM effect_broker.effect_intents
WHERE tenant_id = %(tenant_id)s AND downstream_key = %(text)s LIMIT 2
"""
_BY_EXTERNAL_ID: Final = """
SELECT DISTINCT i.effect_id, i.contract_name
FROM (SELECT a.effect_id FROM effect_broker.effect_attempts AS a
      WHERE a.tenant_id = %(tenant_id)s AND a.external_id = %(text)s
      UNION ALL
      SELECT e.effect_id FROM effect_broker.effect_evidence AS e
      WHERE e.tenant_id = %(tenant_id)s AND e.external_ids[1] = %(text)s
        AND e.verdict = 'committed') AS found
JOIN effect_broker.effect_intents AS i
    ON i.tenant_id = %(tenant_id)s AND i.effect_id = found.effect_id
WHERE i.contract_name = %(contract_name)s LIMIT 2
"""
# What became of a delivery whose evidence stands although its row does not say so.
_VERDICTED: Final = """
SELECT e.effect_id, e.code,
       EXISTS (SELECT 1 FROM effect_broker.effect_receipts AS r
               WHERE r.tenant_id = e.tenant_id AND r.effect_id = e.effect_id
                 AND r.recorded_at = e.recorded_at) AS settled,
       EXISTS (SELECT 1 FROM effect_broker.effect_events AS v
               WHERE v.tenant_id = e.tenant_id AND v.effect_id = e.effect_id
                 AND v.at = e.recorded_at AND v.actor = 'webhook:' || e.evidence_id::text
                 AND v.metadata::jsonb ->> 'contradicts' = 'true') AS contradicts
FROM effect_broker.effect_evidence AS e
WHERE e.tenant_id = %(tenant_id)s AND e.evidence_id = %(delivery_id)s
"""
_DECIDE: Final = """
UPDATE effect_broker.evidence_inbox
SET status = %(status)s, code = %(code)s, effect_id = %(effect_id)s,
    decided_at = clock_timestamp(), next_match_at = NULL, key_id = NULL, ciphertext = NULL
WHERE tenant_id = %(tenant_id)s AND delivery_id = %(delivery_id)s AND decided_at IS NULL
"""
_POSTPONE: Final = """
UPDATE effect_broker.evidence_inbox
SET status = %(status)s, code = %(code)s, effect_id = %(effect_id)s,
    next_match_at = least(next_match_at, %(again_at)s::timestamptz)
WHERE tenant_id = %(tenant_id)s AND delivery_id = %(delivery_id)s AND decided_at IS NULL
"""
# statement_timestamp(), since an index condition cannot hold one that may differ at each row.
_TAKE: Final = """
UPDATE effect_broker.evidence_inbox AS d
SET next_match_at = clock_timestamp() + least(
        greatest(clock_timestamp() - d.received_at,
                 make_interval(secs => %(again_seconds_min)s)),
        make_interval(secs => %(again_seconds_max)s))
FROM (SELECT n.delivery_id FROM effect_broker.evidence_inbox AS n
      WHERE n.next_match_at <= statement_timestamp()
      ORDER BY n.next_match_at LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED) AS due
WHERE d.delivery_id = due.delivery_id
RETURNING d.delivery_id, d.tenant_id, d.contract_name, d.contract_digest, d.received_at,
          d.key_id, d.ciphertext, clock_timestamp() AS now
"""
_LIST: Final = """
SELECT delivery_id, contract_name, contract_version, senders_id, body_digest, received_at, status,
       code, effect_id, decided_at, next_match_at
FROM effect_broker.evidence_inbox WHERE tenant_id = %(tenant_id)s"""
_STATUSES: Final = " AND status = ANY (%(statuses)s)"
_CONTRACT: Final = " AND contract_name = %(contract)s"
_EFFECT: Final = " AND effect_id = %(effect_id)s"
_AFTER: Final = " AND (received_at, delivery_id) < (%(after_at)s, %(after_id)s)"
_NEWEST_FIRST: Final = " ORDER BY received_at DESC, delivery_id DESC LIMIT %(limit)s"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
# First in a cursor, so that no other listing's is taken for one of these.
_CURSOR_KIND: Final = "evidence"


class PostgresInbox:
    """The inbox over a pool of the API or of a worker."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def endpoint(self, tenant: str, contract: str) -> Endpoint | None:
        """Return the tenant and the document of an endpoint; None without one that has a webhook.

        Raises:
            StoreError.
        """
        parameters = {"tenant": tenant, "contract": contract}
        with store_errors():
            async with session(self._pool) as connection:
                row = await (await connection.execute(_ENDPOINT, parameters)).fetchone()
        if row is None:
            return None
        document = ContractDocument.from_canonical(row["document"].encode())
        if document.webhook is None:
            return None
        return Endpoint(row["tenant_id"], document, row["now"])

    async def add(self, delivery: Delivery) -> tuple[DeliveryRecord | None, DeliveryStatus]:
        """Store a delivery; return it as stored, or None and the status of the one that stands.

        Raises:
            StoreError; after CommitUnknown the sender sends it again.
        """
        document, sealed = delivery.document, delivery.sealed
        parameters = {
            "delivery_id": delivery.delivery_id,
            "tenant_id": delivery.tenant_id,
            "contract_name": document.name,
            "contract_version": document.version,
            "contract_digest": document.digest(),
            "senders_id": delivery.senders_id,
            "body_digest": delivery.body_digest,
            "status": delivery.status.value,
            "code": delivery.code,
            "first_match_seconds": _FIRST_MATCH_SECONDS,
            "key_id": None if sealed is None else sealed.key_id,
            "ciphertext": None if sealed is None else sealed.ciphertext,
        }
        added, standing = await self._of_tenant(delivery.tenant_id, (_ADD, _STANDING), parameters)
        if added:
            return _record(added[0]), delivery.status
        return None, DeliveryStatus(standing[0]["status"])

    async def by_key(self, tenant_id: UUID, key: str) -> Sequence[Candidate]:
        """Return the effects of a downstream key, two at most.

        Raises:
            StoreError.
        """
        (rows,) = await self._of_tenant(tenant_id, (_BY_KEY,), {"text": key})
        return [Candidate(row["effect_id"], row["contract_name"]) for row in rows]

    async def by_external_id(
        self, tenant_id: UUID, contract_name: str, external_id: str
    ) -> Sequence[Candidate]:
        """Return the effects of a contract that have made the object of this id, two at most.

        Raises:
            StoreError.
        """
        parameters = {"text": external_id, "contract_name": contract_name}
        (rows,) = await self._of_tenant(tenant_id, (_BY_EXTERNAL_ID,), parameters)
        return [Candidate(row["effect_id"], row["contract_name"]) for row in rows]

    async def document(self, digest: bytes) -> ContractDocument:
        """Return the document by which a delivery was believed.

        Raises:
            StoreError.
        """
        with store_errors():
            async with session(self._pool) as connection:
                cursor = await connection.execute(sql.READ_CONTRACT, {"digest": digest})
                row = await cursor.fetchone()
        assert row is not None, "a foreign key holds the contract of every delivery"
        return ContractDocument.from_canonical(row["document"].encode())

    async def verdicted(self, tenant_id: UUID, delivery_id: UUID) -> Verdicted | None:
        """Return what the evidence of a delivery has done, None where there is none.

        Raises:
            StoreError.
        """
        (rows,) = await self._of_tenant(tenant_id, (_VERDICTED,), {"delivery_id": delivery_id})
        if not rows:
            return None
        row = rows[0]
        status = DeliveryStatus.RECORDED
        if row["settled"]:
            status = DeliveryStatus.SETTLED
        elif row["contradicts"]:
            status = DeliveryStatus.CONTRADICTS
        return Verdicted(status, row["code"], row["effect_id"])

    async def decide(
        self,
        record: DeliveryRecord,
        status: DeliveryStatus,
        code: str,
        effect_id: UUID | None = None,
    ) -> None:
        """End a delivery and forget its body; one that is decided already stays as it is.

        Raises:
            StoreError.
        """
        await self._write(_DECIDE, record, status, code, effect_id)

    async def postpone(
        self,
        record: DeliveryRecord,
        status: DeliveryStatus,
        code: str,
        effect_id: UUID | None = None,
        again_at: datetime | None = None,
    ) -> None:
        """Say why a delivery waits; it is looked at again at `again_at` at the latest.

        Raises:
            StoreError.
        """
        await self._write(_POSTPONE, record, status, code, effect_id, again_at=again_at)

    async def take_due(self, limit: int) -> Sequence[tuple[DeliveryRecord, datetime]]:
        """Return deliveries that are due, with the database's clock, the longest due first.

        Raises:
            StoreError.
        """
        parameters = {
            "limit": limit,
            "again_seconds_min": _AGAIN_SECONDS_MIN,
            "again_seconds_max": _AGAIN_SECONDS_MAX,
        }
        with store_errors() as progress:
            async with session(self._pool) as connection:
                progress.committing = True
                rows = await (await connection.execute(_TAKE, parameters)).fetchall()
        return [(_record(row), row["now"]) for row in rows]

    async def deliveries(
        self, tenant_id: UUID, filters: DeliveryFilter, cursor: str | None, limit: int
    ) -> Deliveries:
        """Return one page of a tenant's deliveries, newest first.

        Raises:
            CursorInvalid, StoreError.
        """
        conditions: list[str] = []
        parameters: dict[str, object] = {"limit": limit + 1}
        if filters.statuses:
            conditions.append(_STATUSES)
            parameters["statuses"] = sorted(status.value for status in filters.statuses)
        if filters.contract is not None:
            conditions.append(_CONTRACT)
            parameters["contract"] = filters.contract
        if filters.effect_id is not None:
            conditions.append(_EFFECT)
            parameters["effect_id"] = filters.effect_id
        if cursor is not None:
            conditions.append(_AFTER)
            parameters["after_at"], parameters["after_id"] = _position(cursor)
        query = "".join((_LIST, *conditions, _NEWEST_FIRST))
        (rows,) = await self._of_tenant(tenant_id, (query,), parameters)
        page = [
            DeliveryLine(**{**row, "status": DeliveryStatus(row["status"])}) for row in rows[:limit]
        ]
        following = _cursor_after(page[-1]) if len(rows) > limit else None
        return Deliveries(tuple(page), following)

    async def _write(
        self,
        statement: str,
        record: DeliveryRecord,
        status: DeliveryStatus,
        code: str,
        effect_id: UUID | None,
        **parameters: object,
    ) -> None:
        told = {
            "delivery_id": record.delivery_id,
            "status": status.value,
            "code": code,
            "effect_id": effect_id,
            **parameters,
        }
        await self._of_tenant(record.tenant_id, (statement,), told)

    async def _of_tenant(
        self, tenant_id: UUID, statements: Sequence[str], parameters: dict[str, Any]
    ) -> list[list[dict[str, Any]]]:
        """Run statements in one transaction of this tenant; return the rows of each."""
        target = {**parameters, "tenant_id": tenant_id}
        found = []
        with store_errors() as progress:
            async with session(self._pool) as connection, connection.transaction():
                await connection.execute(sql.SET_TENANT, target)
                for statement in statements:
                    cursor = await connection.execute(statement, target)
                    found.append(await cursor.fetchall() if cursor.description else [])
                progress.committing = True
        return found


def _record(row: dict[str, Any]) -> DeliveryRecord:
    sealed = None
    if row["ciphertext"] is not None:
        sealed = Sealed(row["key_id"], bytes(row["ciphertext"]))
    return DeliveryRecord(
        delivery_id=row["delivery_id"],
        tenant_id=row["tenant_id"],
        contract_name=row["contract_name"],
        contract_digest=bytes(row["contract_digest"]),
        received_at=row["received_at"],
        sealed=sealed,
    )


def _cursor_after(line: DeliveryLine) -> str:
    at = (line.received_at - _EPOCH) // _MICROSECOND
    text = f"{_CURSOR_KIND}.{at}.{line.delivery_id.hex}"
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _position(cursor: str) -> tuple[datetime, UUID]:
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        kind, at, delivery_id = urlsafe_b64decode(padded).decode("ascii").split(".")
        if kind != _CURSOR_KIND:
            raise ValueError(kind)
        return _EPOCH + int(at) * _MICROSECOND, UUID(hex=delivery_id)
    except (ValueError, OverflowError):
        raise CursorInvalid("the cursor was not made by this listing") from None
