"""What the routes stand on: the parts that the composition root hands to the application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from effect_broker.approving import Approving
from effect_broker.batches import Batching
from effect_broker.console import ConsoleParts
from effect_broker.drills import DrillStore
from effect_broker.event_stream import StreamReads
from effect_broker.evidence_inbox import DeliveryReads, EvidenceInbox
from effect_broker.history import HistoryReads
from effect_broker.holding import HoldRecord, HoldScope, Placed
from effect_broker.intake import Intake, Tenant
from effect_broker.performing import Performing
from effect_broker.protocol.ports import Vault
from effect_broker.reading import EffectReads
from effect_broker.resolving import Resolving
from effect_broker.subscriptions import Subscribing
from effect_broker.unresolved import UnresolvedReads


@dataclass(frozen=True, slots=True)
class Health:
    """What readiness has found.

    Attributes:
        ready: submits can be accepted.
        degraded: they can, and something else is missing, such as a live worker.
        checks: name to `ok` or a code.
    """

    ready: bool
    degraded: bool
    checks: dict[str, str]


class Authenticator(Protocol):
    """Finds the tenant of an API key."""

    async def tenant(self, api_key: str) -> Tenant:
        """Return who asks.

        Raises:
            Unauthenticated, TenantDisabled, StoreError.
        """

    def has_served(self, api_key: str) -> bool:
        """Whether the key was a good one when it was asked for last, as far as is remembered."""


class TenantHolds(Protocol):
    """The holds that one tenant places, sees and lifts."""

    async def place(self, hold_id: UUID, scope: HoldScope, reason: str, actor: str) -> Placed:
        """Stop the dispatches of a scope.

        Raises:
            SubjectUnknown, StoreError.
        """

    async def lift(self, hold_id: UUID, reason: str, actor: str) -> tuple[HoldRecord, bool]:
        """End a hold; true if it was this call that ended it.

        Raises:
            HoldMissing, StoreError.
        """

    async def listing(self, *, lifted: bool, limit: int) -> tuple[HoldRecord, ...]:
        """Return the newest holds; those of the past too with `lifted`.

        Raises:
            StoreError.
        """


@dataclass(frozen=True, slots=True)
class Services:
    """The parts that the routes stand on."""

    intake: Intake
    performing: Performing
    reads: EffectReads
    history: HistoryReads
    stream: StreamReads
    subscribing: Subscribing
    unresolved: UnresolvedReads
    resolving: Resolving
    approving: Approving
    batching: Batching
    holds: Callable[[UUID], TenantHolds]
    drills: DrillStore
    inbox: EvidenceInbox
    deliveries: DeliveryReads
    console: ConsoleParts
    vault: Vault
    authenticator: Authenticator
    health: Callable[[], Awaitable[Health]]
    # None where they are served elsewhere, or nowhere.
    metrics: Callable[[str], Awaitable[tuple[bytes, str]]] | None = None


ServicesContext = Callable[[], AbstractAsyncContextManager[Services]]
