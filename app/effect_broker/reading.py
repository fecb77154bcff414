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
from effect_contracts.canonical import JsonValue
from effect_contracts.facts import Alert, EffectState

PAGE_LIMIT_DEFAULT = 50
PAGE_LIMIT_MAX = 200


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


@dataclass(frozen=True, slots=True)
class ReceiptRecord:
    """The immutable record of a settled effect, and its sealed result if there is one."""

    receipt_id: UUID
    content: bytes
    digest: bytes
    result: Sealed | None


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
        older_than_seconds: like `created_before`, counted back from the database's now.
    """

    states: frozenset[EffectState] = frozenset()
    reason: str | None = None
    tool: str | None = None
    operation_prefix: str | None = None
    older_than_seconds: float | None = None
    unresolved: bool = False


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
