"""What the console asks of the store: its sessions, and the reads that no other surface has.

All of it names a tenant but for two things: a session is found before a tenant is known, and
workers serve every tenant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol
from uuid import UUID

from effect_broker.intake import Tenant
from effect_broker.protocol.ports import Snapshot
from effect_broker.resolving import ProposalRecord

# How many of each the console shows at once; all but evidence are few by nature.
LISTED_MAX: Final = 50
EVIDENCE_MAX: Final = 200
COUNTED_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Somebody who is signed in.

    Attributes:
        name: of the tenant.
        expires_at: the end of the session, whatever is done in it.
    """

    tenant: Tenant
    name: str
    expires_at: datetime


class Sessions(Protocol):
    """The sessions of the console. An id is a secret: 256 random bits, stored as its hash."""

    async def begin(self, session_id: str, tenant: Tenant) -> bool:
        """Begin a session of a key; False where the key has been revoked meanwhile.

        Raises:
            StoreError.
        """

    async def find(self, session_id: str) -> OpenSession | None:
        """Return a session while it, its key and the patience for an idle one last.

        Raises:
            TenantDisabled, StoreError.
        """

    async def end(self, session_id: str) -> None:
        """End a session, if it is there.

        Raises:
            StoreError.
        """


@dataclass(frozen=True, slots=True)
class SeenEvidence:
    """One stored fact, also of those that proved nothing."""

    source: str
    verdict: str
    code: str
    began_at: datetime
    recorded_at: datetime
    covers_through: int
    external_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Said:
    """What a person has stated of an effect, word for word (canonical JSON)."""

    decision_id: str
    content: bytes
    actor: str
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class WaitingProposal:
    """What one person has concluded and nobody has confirmed; `version` is the effect's now."""

    proposal: ProposalRecord
    operation_key: str
    tool: str
    version: int


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker that beats, or that stopped to less than a day ago."""

    executor_id: str
    host: str | None
    version: str | None
    started_at: datetime
    seconds_since_beat: float
    live: bool
    draining: bool
    stopped: bool


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """How one tenant's work stands; no number counts further than `COUNTED_MAX`.

    Attributes:
        waiting: effects with a next action, now or later.
        overdue: of these, due for more than a minute.
        overdue_seconds: of the longest overdue one.
        parked: effects that wait for a person, by reason.
        alerts: final effects whose target has contradicted the receipt.
    """

    waiting: int
    overdue: int
    overdue_seconds: float
    parked: Mapping[str, int]
    alerts: int
    now: datetime


class ConsoleReads(Protocol):
    """The reads behind the console's pages; each raises StoreError."""

    async def evidence(self, tenant_id: UUID, effect_id: UUID) -> tuple[SeenEvidence, ...]:
        """Return the newest evidence of an effect, the oldest of it first."""

    async def said(self, tenant_id: UUID, effect_id: UUID) -> tuple[Said, ...]:
        """Return what persons have stated: resolutions, approvals and denials."""

    async def proposals(self, tenant_id: UUID) -> tuple[WaitingProposal, ...]:
        """Return what waits for a second person in this tenant, the oldest first."""

    async def workers(self) -> tuple[WorkerRecord, ...]:
        """Return the workers of every tenant, those that beat first."""

    async def queue(self, tenant_id: UUID) -> QueueCounts:
        """Return how a tenant's work stands."""


class Snapshots(Protocol):
    """Where one effect is read with all that decides about it."""

    async def load(self, tenant_id: UUID, effect_id: UUID) -> Snapshot:
        """Return the effect as of one moment.

        Raises:
            EffectMissing, StoreError.
        """


@dataclass(frozen=True, slots=True)
class ConsoleParts:
    """What the console stands on, beside the parts that the routes share.

    Attributes:
        origin: as browsers name this site (`https://broker.example`); None where the `Host` of a
            request says it.
    """

    sessions: Sessions
    reads: ConsoleReads
    snapshots: Snapshots
    origin: str | None = None
