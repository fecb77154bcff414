"""The API's store: the effect store, what intake asks on top, and the tenant-scoped reads.

Every query runs in a transaction that names its tenant, so that row-level security and the query's
own condition both stand between tenants. Listings are keyset pages, newest first.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from effect_broker.approving import ApprovalRecord
from effect_broker.clock import SystemClock
from effect_broker.protocol.ports import EffectMissing, Intent, Signer
from effect_broker.protocol.resolution import Resolution
from effect_broker.reading import (
    NO_LINKS,
    CursorInvalid,
    EffectDetail,
    EffectFilter,
    EffectPage,
    EventRecord,
    Links,
    ReceiptRecord,
)
from effect_broker.resolving import ProposalRecord, ResolutionRecord
from effect_broker.store import statements as sql
from effect_broker.store.certified import NO_KEYS
from effect_broker.store.links import LINKS_OF, links_of
from effect_broker.store.observing import UNOBSERVED, StoreObserver
from effect_broker.store.pool import Pool
from effect_broker.store.rows import Row, attempt_of, intent_of, sealed_of
from effect_broker.store.signatures import READ_SIGNATURES, signature_of
from effect_broker.store.unresolved import UnresolvedStore
from effect_contracts.document import ContractDocument
from effect_contracts.facts import Alert, Conclusion

# How old the active contract of a tool may be here. Switching a version is no barrier: submits on
# either side of it race anyway, and each intent pins the document that it was made under.
ACTIVE_CONTRACT_SECONDS: Final = 1.0

_ACTIVE: Final = """
SELECT c.digest, c.document FROM effect_broker.active_contracts AS a
JOIN effect_broker.contracts AS c USING (tool, digest) WHERE a.tool = %(tool)s
"""

_DETAIL: Final = """
SELECT effect_id, tenant_id, operation_key, tool, request_hash, contract_name, contract_version,
       contract_digest, safety, downstream_key, state, version, reason, generation,
       progress_generation, next_action_at, target_identity, wire_digest, created_at, updated_at,
       parked, requested_by, trace_id, preview, receipt_digest, alert, clock_timestamp() AS now
FROM effect_broker.effect_intents
WHERE tenant_id = %(tenant_id)s"""

_ONE: Final = f"{_DETAIL} AND effect_id = %(effect_id)s"

# The first condition holds for every row. It is what lets this list have `effects_by_age`, and
# nobody else: without it a lookup by key might take that index, and read all of its tenant.
_NEWEST_FIRST: Final = (
    " AND created_at > '-infinity' ORDER BY created_at DESC, effect_id DESC LIMIT %(limit)s"
)

# One condition for each member of a filter. `effect_intents` has an index for each of those that
# select few rows: open states, the operation key's prefix, and age.
_STATES: Final = " AND state = ANY (%(states)s)"
_UNRESOLVED: Final = " AND state NOT IN ('succeeded', 'failed_final', 'cancelled', 'compensated')"
_REASON: Final = " AND reason = %(reason)s"
_TOOL: Final = " AND tool = %(tool)s"
_PREFIX: Final = " AND operation_key >= %(prefix)s AND operation_key < %(prefix_end)s"
_OLDER: Final = " AND created_at <= clock_timestamp() - make_interval(secs => %(older_than)s)"
_PARENT: Final = """ AND effect_id IN (
    SELECT l.effect_id FROM effect_broker.effect_links AS l
    WHERE l.tenant_id = %(tenant_id)s AND l.parent_id = %(parent_id)s)"""
_AFTER: Final = " AND (created_at, effect_id) < (%(after_at)s, %(after_id)s)"

_RECEIPT: Final = """
SELECT r.receipt_id, r.content, r.digest,
       p.key_id AS result_key_id, p.ciphertext AS result_ciphertext
FROM effect_broker.effect_receipts AS r
LEFT JOIN effect_broker.effect_payloads AS p
    ON p.tenant_id = r.tenant_id AND p.effect_id = r.effect_id AND p.kind = 'result'
    AND p.ref = r.result_ref
WHERE r.tenant_id = %(tenant_id)s AND r.effect_id = %(effect_id)s
"""

_EVENTS: Final = """
SELECT sequence, kind, event, from_state, to_state, reason, actor, at, metadata, digest
FROM effect_broker.effect_events
WHERE tenant_id = %(tenant_id)s AND effect_id = %(effect_id)s
ORDER BY sequence
"""

_RESOLUTION: Final = """
SELECT effect_id, decision_id, conclusion, content, digest, actor, recorded_at
FROM effect_broker.effect_resolutions
WHERE tenant_id = %(tenant_id)s AND decision_id = %(decision_id)s
"""

_PROPOSAL: Final = """
SELECT effect_id, decision_id, content, digest, actor, recorded_at
FROM effect_broker.effect_proposals
WHERE tenant_id = %(tenant_id)s AND decision_id = %(decision_id)s
"""
# Those that have not become a resolution, of one effect; few by nature.
_PROPOSALS: Final = """
SELECT p.effect_id, p.decision_id, p.content, p.digest, p.actor, p.recorded_at
FROM effect_broker.effect_proposals AS p
WHERE p.tenant_id = %(tenant_id)s AND p.effect_id = %(effect_id)s
  AND NOT EXISTS (
      SELECT 1 FROM effect_broker.effect_resolutions AS r
      WHERE r.tenant_id = p.tenant_id AND r.decision_id = p.decision_id)
ORDER BY p.recorded_at, p.decision_id LIMIT 20
"""
_PROPOSE: Final = """
INSERT INTO effect_broker.effect_proposals (
    tenant_id, effect_id, decision_id, expected_version, content, digest, actor)
VALUES (%(tenant_id)s, %(effect_id)s, %(decision_id)s, %(expected_version)s, %(content)s,
        %(digest)s, %(actor)s)
ON CONFLICT (tenant_id, decision_id) DO NOTHING
"""
_APPROVAL: Final = """
SELECT effect_id, decision_id, approved, digest, actor, recorded_at
FROM effect_broker.effect_approvals
WHERE tenant_id = %(tenant_id)s AND decision_id = %(decision_id)s
"""

_STANDING_STILL: Final = """
SELECT tenant_id, effect_id
FROM effect_broker.standing_still(%(tenant_ids)s::uuid[], %(effect_ids)s::uuid[])
"""

_HMAC_KEY_IDS: Final = "SELECT effect_broker.hmac_key_ids_in_use() AS key_id"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class PostgresApiStore(UnresolvedStore):
    """What `effect_broker.intake` and `effect_broker.reading` ask of the store."""

    def __init__(
        self,
        pool: Pool,
        boot_seconds: Callable[[], float] | None = None,
        *,
        signer: Signer | None = None,
        trusted: Mapping[str, bytes] = NO_KEYS,
        observer: StoreObserver = UNOBSERVED,
    ) -> None:
        super().__init__(pool, signer=signer, trusted=trusted, observer=observer)
        self._boot_seconds = boot_seconds or SystemClock().boot_seconds
        self._active: dict[str, tuple[float, ContractDocument]] = {}

    async def active_contract(self, tool: str) -> ContractDocument | None:
        """Return the active contract of a tool, at most `ACTIVE_CONTRACT_SECONDS` old.

        Raises:
            StoreUnavailable, StoreBusy.
        """
        now = self._boot_seconds()
        known = self._active.get(tool)
        if known is not None and now - known[0] < ACTIVE_CONTRACT_SECONDS:
            return known[1]
        async with self.connection() as (connection, _):
            row = await (await connection.execute(_ACTIVE, {"tool": tool})).fetchone()
        if row is None:
            self._active.pop(tool, None)
            return None
        document = self.remember_document(bytes(row["digest"]), row["document"])
        self._active[tool] = (now, document)
        return document

    def forget_contract(self, tool: str) -> None:
        """Read the active contract of a tool anew the next time."""
        self._active.pop(tool, None)

    async def intent(self, tenant_id: UUID, effect_id: UUID) -> Intent:
        """Return an intent of this tenant.

        Raises:
            EffectMissing, StoreUnavailable, StoreBusy.
        """
        (rows,) = await self._read(tenant_id, (_ONE,), effect_id=effect_id)
        return intent_of(_only(rows))

    async def effect(self, tenant_id: UUID, effect_id: UUID) -> EffectDetail:
        """Return one effect with its attempts.

        Raises:
            EffectMissing, StoreUnavailable, StoreBusy.
        """
        rows, attempts, links = await self._read(
            tenant_id,
            (_ONE, sql.READ_ATTEMPTS, LINKS_OF),
            effect_id=effect_id,
            effect_ids=[effect_id],
        )
        return _detail(_only(rows), attempts, links_of(links).get(effect_id, NO_LINKS))

    async def standing_still(
        self, waited: Collection[tuple[UUID, UUID]]
    ) -> frozenset[tuple[UUID, UUID]]:
        """Return those of these (tenant, effect) pairs that are final or wait for a person.

        Raises:
            StoreUnavailable, StoreBusy.
        """
        parameters = {
            "tenant_ids": [tenant_id for tenant_id, _ in waited],
            "effect_ids": [effect_id for _, effect_id in waited],
        }
        async with self.connection() as (connection, _):
            rows = await (await connection.execute(_STANDING_STILL, parameters)).fetchall()
        return frozenset((row["tenant_id"], row["effect_id"]) for row in rows)

    async def hmac_key_ids(self) -> frozenset[str]:
        """Return the HMAC keys of the tenants that are served.

        Raises:
            StoreUnavailable, StoreBusy.
        """
        async with self.connection() as (connection, _):
            rows = await (await connection.execute(_HMAC_KEY_IDS)).fetchall()
        return frozenset(row["key_id"] for row in rows)

    async def effects(
        self, tenant_id: UUID, filters: EffectFilter, cursor: str | None, limit: int
    ) -> EffectPage:
        """Return one page, newest first.

        Raises:
            CursorInvalid, StoreUnavailable, StoreBusy.
        """
        query, parameters = _listing(filters, cursor)
        # One row more than asked for tells whether there is another page.
        (rows,) = await self._read(tenant_id, (query,), **parameters, limit=limit + 1)
        page = rows[:limit]
        following = len(rows) > limit
        shown = [row["effect_id"] for row in page]
        (found,) = await self._read(tenant_id, (LINKS_OF,), effect_ids=shown)
        links = links_of(found)
        return EffectPage(
            tuple(_detail(row, (), links.get(row["effect_id"], NO_LINKS)) for row in page),
            _cursor_after(page[-1]) if following and page else None,
        )

    async def receipt(self, tenant_id: UUID, effect_id: UUID) -> ReceiptRecord | None:
        """Return the receipt with its sealed result, None while the effect is not settled.

        Raises:
            EffectMissing, StoreUnavailable, StoreBusy.
        """
        intents, receipts, signatures = await self._read(
            tenant_id, (_ONE, _RECEIPT, READ_SIGNATURES), effect_id=effect_id
        )
        _only(intents)
        if not receipts:
            return None
        row = receipts[0]
        return ReceiptRecord(
            row["receipt_id"],
            row["content"].encode(),
            row["digest"],
            sealed_of(row, "result"),
            tuple(map(signature_of, signatures)),
        )

    async def events(self, tenant_id: UUID, effect_id: UUID) -> tuple[EventRecord, ...]:
        """Return all events in order.

        Raises:
            EffectMissing, StoreUnavailable, StoreBusy.
        """
        intents, events = await self._read(tenant_id, (_ONE, _EVENTS), effect_id=effect_id)
        _only(intents)
        return tuple(EventRecord(**row) for row in events)

    async def resolution(self, tenant_id: UUID, decision_id: str) -> ResolutionRecord | None:
        """Return the resolution of a decision id of this tenant.

        Raises:
            StoreUnavailable, StoreBusy.
        """
        (rows,) = await self._read(tenant_id, (_RESOLUTION,), decision_id=decision_id)
        if not rows:
            return None
        row = rows[0]
        return ResolutionRecord(
            **{
                **row,
                "conclusion": Conclusion(row["conclusion"]),
                "content": row["content"].encode(),
            }
        )

    async def proposal(self, tenant_id: UUID, decision_id: str) -> ProposalRecord | None:
        """Return what was proposed under a decision id of this tenant.

        Raises:
            StoreUnavailable, StoreBusy.
        """
        (rows,) = await self._read(tenant_id, (_PROPOSAL,), decision_id=decision_id)
        return _proposal(rows[0]) if rows else None

    async def proposals(self, tenant_id: UUID, effect_id: UUID) -> tuple[ProposalRecord, ...]:
        """Return the proposals of an effect that nobody has confirmed.

        Raises:
            StoreUnavailable, StoreBusy.
        """
        (rows,) = await self._read(tenant_id, (_PROPOSALS,), effect_id=effect_id)
        return tuple(_proposal(row) for row in rows)

    async def propose(self, tenant_id: UUID, effect_id: UUID, resolution: Resolution) -> None:
        """Store a proposal; nothing happens where its decision id is taken.

        Raises:
            StoreUnavailable, StoreBusy, CommitUnknown.
        """
        told = {
            "tenant_id": tenant_id,
            "effect_id": effect_id,
            "decision_id": resolution.decision_id,
            "expected_version": resolution.expected_version,
            "content": resolution.content.decode(),
            "digest": resolution.digest,
            "actor": resolution.actor,
        }
        async with self.connection() as (connection, progress), connection.transaction():
            await connection.execute(sql.SET_TENANT, told)
            await connection.execute(_PROPOSE, told)
            progress.committing = True

    async def approval(self, tenant_id: UUID, decision_id: str) -> ApprovalRecord | None:
        """Return the approval or denial of a decision id of this tenant.

        Raises:
            StoreUnavailable, StoreBusy.
        """
        (rows,) = await self._read(tenant_id, (_APPROVAL,), decision_id=decision_id)
        return ApprovalRecord(**rows[0]) if rows else None

    async def _read(
        self, tenant_id: UUID, queries: Sequence[str], **parameters: object
    ) -> list[list[dict[str, Any]]]:
        """Run queries as of one moment, in one round trip."""
        target = {"tenant_id": tenant_id, **parameters}
        async with self.connection() as (connection, _):
            async with connection.pipeline():
                await connection.execute(sql.BEGIN_READ)
                await connection.execute(sql.SET_TENANT, target)
                cursors = [await connection.execute(query, target) for query in queries]
                await connection.execute(sql.COMMIT)
            return [await cursor.fetchall() for cursor in cursors]


def _proposal(row: Row) -> ProposalRecord:
    return ProposalRecord(**{**row, "content": row["content"].encode()})


def _listing(filters: EffectFilter, cursor: str | None) -> tuple[str, dict[str, object]]:
    """Return the query of a page and its parameters; the query is made of constants only."""
    conditions: list[str] = []
    parameters: dict[str, object] = {}
    if filters.states:
        conditions.append(_STATES)
        parameters["states"] = sorted(state.value for state in filters.states)
    if filters.unresolved:
        conditions.append(_UNRESOLVED)
    if filters.reason is not None:
        conditions.append(_REASON)
        parameters["reason"] = filters.reason
    if filters.parent_id is not None:
        conditions.append(_PARENT)
        parameters["parent_id"] = filters.parent_id
    if filters.tool is not None:
        conditions.append(_TOOL)
        parameters["tool"] = filters.tool
    if filters.operation_prefix:
        conditions.append(_PREFIX)
        parameters["prefix"] = filters.operation_prefix
        # Operation keys are printable ASCII in byte order: this is above all that begin so.
        parameters["prefix_end"] = filters.operation_prefix + "\x7f"
    if filters.older_than_seconds is not None:
        conditions.append(_OLDER)
        parameters["older_than"] = filters.older_than_seconds
    if cursor is not None:
        conditions.append(_AFTER)
        parameters["after_at"], parameters["after_id"] = _position(cursor)
    return "".join((_DETAIL, *conditions, _NEWEST_FIRST)), parameters


def _cursor_after(row: Row) -> str:
    at = (row["created_at"] - _EPOCH) // _MICROSECOND
    return urlsafe_b64encode(f"{at}.{row['effect_id'].hex}".encode()).decode().rstrip("=")


def _position(cursor: str) -> tuple[datetime, UUID]:
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        at, _, effect_id = urlsafe_b64decode(padded).decode("ascii").partition(".")
        return _EPOCH + int(at) * _MICROSECOND, UUID(hex=effect_id)
    except (ValueError, OverflowError):
        raise CursorInvalid("the cursor was not made by this listing") from None


def _only(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if not rows:
        raise EffectMissing("no such effect of this tenant")
    return rows[0]


def _detail(row: Row, attempts: Sequence[Row], links: Links) -> EffectDetail:
    return EffectDetail(
        intent=intent_of(row),
        parked=row["parked"],
        requested_by=row["requested_by"],
        trace_id=row["trace_id"],
        preview=row["preview"] or {},
        receipt_digest=row["receipt_digest"],
        now=row["now"],
        alert=Alert(row["alert"]) if row["alert"] else None,
        attempts=tuple(attempt_of(attempt) for attempt in attempts),
        links=links,
    )
