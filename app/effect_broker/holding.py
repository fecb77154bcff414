"""Holds: what stops dispatches until somebody lifts it, for every surface.

    paused    a person has stopped a tenant, a tool or a contract version
    frozen    the broker has stopped a contract version of a tenant, whose target broke its contract

Under a hold submits are accepted and wait, probes and settlements go on, and nothing is sent. A
hold is in force for every attempt that is granted after it was placed; attempts that were granted
before are under way and not called back. Lifting it lets go on what stood still, by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final
from uuid import UUID

REASON_CHARS_MAX: Final = 2000


class HoldKind(StrEnum):
    """Who has stopped it: a person, or the broker itself."""

    PAUSED = "paused"
    FROZEN = "frozen"


@dataclass(frozen=True, slots=True)
class HoldScope:
    """Which effects a hold is about; at most one of tool and contract is named.

    Attributes:
        tenant_id: of this tenant, None for every tenant.
        tool: of this tool, in every version of its contracts.
        contract: of this name and version.
    """

    tenant_id: UUID | None = None
    tool: str | None = None
    contract: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        assert self.tool is None or self.contract is None, "a hold has one subject"


@dataclass(frozen=True, slots=True)
class HoldRecord:
    """A hold as stored; the members of its end are None while it is in force."""

    hold_id: UUID
    kind: HoldKind
    scope: HoldScope
    tenant: str | None
    reason: str
    placed_by: str
    placed_at: datetime
    lifted_by: str | None
    lifted_at: datetime | None
    lift_reason: str | None


@dataclass(frozen=True, slots=True)
class Placed:
    """What has become of a pause.

    Attributes:
        created: False where a hold of this scope stood already; that one is returned.
        effective: no attempt is granted any more by a transaction that has not seen the hold.
            False where such a transaction did not end in time: a stopped process may still hold
            it, for seconds; placing the same hold again tells.
    """

    hold: HoldRecord
    created: bool
    effective: bool


class SubjectUnknown(LookupError):
    """No contract of this tool, or none of this name and version: the hold would stop nothing."""


class HoldMissing(LookupError):
    """There is no such hold, or none that this tenant may lift."""
