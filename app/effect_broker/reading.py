"""What callers and operators may read of effects: the shapes and the port, for every surface.

Everything here names a tenant. Nothing here holds arguments or answers in the clear, but for the
redacted preview that the contract allows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol
from uuid import UUID

from effect_broker.protocol.ports import AttemptRow, Intent, Sealed
from effect_broker.protocol.submission import Standing
from effect_contracts.canonical import JsonValue
from effect_contracts.facts import Alert, EffectState

PAGE_LIMIT_DEFAULT = 50
PAGE_LIMIT_MAX = 200


@dataclass(frozen=True, slots=True)
class Children:
    """How the effects stand that an effect has delegated.

    Attributes:
        succeeded: also those that were undone later.
        failed: finally, or cancelled.
        unresolved: wait for evidence or for a person; the rest is on its way.
    """

    total: int
    succeeded: int
    failed: int
    unresolved: int

    @property
    def settled(self) -> int:
        """How many are final."""
        return self.succeeded + self.failed

    @property
    def outcome(self) -> str | None:
        """What they come to together: all `succeeded`, all `failed`, `mixed`; None until then."""
        if self.settled < self.total or not self.total:
            return None
        if self.succeeded == self.total:
            return "succeeded"
        return "failed" if self.failed == self.total else "mixed"


@dataclass(frozen=True, slots=True)
class Links:
    """What an effect is to others, and they to it.

    Attributes:
        compensated_by: the latest effect that is to undo it, with its state.
    """

    parent_id: UUID | None = None
    compensates_id: UUID | None = None
    children: Children | None = None
    compensated_by: tuple[UUID, EffectState] | None = None


NO_LINKS = Links()


@dataclass(frozen=True, slots=True)
class EffectDetail:
    """One effect as it stands.

    Attributes:
        parked: nothing happens by itself; a person or new evidence ends it.
        preview: the arguments without what the contract calls sensitive.
        alert: the target has contradicted the receipt since; a person has to look.
        attempts: by ordinal; empty in listings.
    """

    intent: Intent
    parked: bool
    requested_by: str
    trace_id: str | None
    preview: Mapping[str, JsonValue] = field(repr=False)
    receipt_digest: bytes | None
    now: datetime
    alert: Alert | None = None
    attempts: tuple[AttemptRow, ...] = ()
    links: Links = NO_LINKS


def detail_of(intent: Intent, standing: Standing) -> EffectDetail:
    """Return an effect as its submit has found it; nothing links it to others."""
    return EffectDetail(
        intent=intent,
        parked=standing.parked,
        requested_by=standing.requested_by,
        trace_id=standing.trace_id,
        preview=standing.preview,
        receipt_digest=standing.receipt_digest,
        now=standing.now,
        alert=standing.alert,
    )


@dataclass(frozen=True, slots=True)
class SignatureRecord:
    """A signature that was added to a receipt; the moment is the database's and is not signed."""

    key_id: str
    algorithm: str
    signature: bytes
    signed_at: datetime


@dataclass(frozen=True, slots=True)
class ReceiptRecord:
    """The immutable record of a settled effect, and its sealed result if there is one."""

    receipt_id: UUID
    content: bytes
    digest: bytes
    result: Sealed | None
    signatures: tuple[SignatureRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class EventRecord:
    """One appended event of an effect."""

    sequence: int
    kind: str
    event: str
    from_state: str | None
    to_state: str
    reason: str
    actor: str
    at: datetime
    metadata: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class EffectFilter:
    """Which effects of a tenant; every condition that is given must hold.

    Attributes:
        states: any of these.
        unresolved: True for effects that are not final.
        created_before: for "older than": created at or before this moment (database clock).
        parent_id: delegated by this effect.
        older_than_seconds: like `created_before`, counted back from the database's now.
    """

    states: frozenset[EffectState] = frozenset()
    reason: str | None = None
    tool: str | None = None
    operation_prefix: str | None = None
    older_than_seconds: float | None = None
    unresolved: bool = False
    parent_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class EffectPage:
    """One page, newest first.

    Attributes:
        cursor: opaque text for the next page; None on the last.
    """

    effects: tuple[EffectDetail, ...]
    cursor: str | None


class CursorInvalid(ValueError):
    """The page cursor was not made by this listing."""


class EffectReads(Protocol):
    """Tenant-scoped reads."""

    async def effect(self, tenant_id: UUID, effect_id: UUID) -> EffectDetail:
        """Return one effect with its attempts.

        Raises:
            EffectMissing: there is none of this tenant.
        """

    async def standing_still(
        self, waited: Collection[tuple[UUID, UUID]]
    ) -> frozenset[tuple[UUID, UUID]]:
        """Return those of these (tenant, effect) pairs that are final or wait for a person."""

    async def effects(
        self, tenant_id: UUID, filters: EffectFilter, cursor: str | None, limit: int
    ) -> EffectPage:
        """Return one page, newest first.

        Raises:
            CursorInvalid.
        """

    async def receipt(self, tenant_id: UUID, effect_id: UUID) -> ReceiptRecord | None:
        """Return the receipt, None while the effect is not settled.

        Raises:
            EffectMissing.
        """

    async def events(self, tenant_id: UUID, effect_id: UUID) -> tuple[EventRecord, ...]:
        """Return all events in order.

        Raises:
            EffectMissing.
        """
