"""Resolving: from what a person states to a resolution that stands, for every surface.

This file owns the order of the checks: the same decision again is a result and not an error;
whoever decides on an older version than the present one is told, and changes nothing. The rules of
what a conclusion may do are in `effect_broker.protocol.resolution`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID

from effect_broker.protocol import resolution as rules
from effect_broker.protocol.ports import CommitUnknown, EffectMissing, Plan, StaleWrite
from effect_broker.protocol.resolution import Refusal, Resolution, Resolved
from effect_contracts.canonical import JsonValue, canonical_bytes, parse_strict
from effect_contracts.errors import (
    DecisionConflict,
    InvalidRequest,
    RequestReason,
    SecondPersonRequired,
    StaleVersion,
    StorageUnavailable,
    TooEarly,
    TransitionRefused,
)
from effect_contracts.facts import Conclusion

T = TypeVar("T")

NOTE_BYTES_MAX: Final = 2000
EVIDENCE_ITEMS_MAX: Final = 20

# A commit whose answer was lost is read back by its decision id; two rivals may need one more.
_TRIES: Final = 4


@dataclass(frozen=True, slots=True)
class EvidenceItem:
    """One thing that a person has looked at.

    Attributes:
        kind: the person's word for it: `provider_dashboard`, `bank_statement`, `log`, …
        reference: where it can be seen again; or
        digest: `sha256:` and 64 hex digits of what was kept elsewhere.
        observed_at: when the look began.
        note: at most `NOTE_BYTES_MAX` bytes of UTF-8.
    """

    kind: str
    observed_at: datetime
    reference: str | None = None
    digest: str | None = None
    note: str | None = None

    def to_json(self) -> dict[str, JsonValue]:
        """Return the canonical members."""
        return {
            "kind": self.kind,
            "observed_at": self.observed_at.isoformat(),
            "reference": self.reference,
            "digest": self.digest,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class Statement:
    """What a person states of an effect."""

    decision_id: str
    expected_version: int
    conclusion: Conclusion
    reason: str
    evidence: Sequence[EvidenceItem]
    external_id: str | None = None


@dataclass(frozen=True, slots=True)
class ResolutionRecord:
    """A resolution as stored."""

    effect_id: UUID
    decision_id: str
    conclusion: Conclusion
    content: bytes
    digest: bytes
    actor: str
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class ProposalRecord:
    """What one person has concluded and a second one has to confirm."""

    effect_id: UUID
    decision_id: str
    content: bytes
    digest: bytes
    actor: str
    recorded_at: datetime


class ResolutionStore(Protocol):
    """What resolving asks of the store."""

    async def change(self, tenant_id: UUID, effect_id: UUID, plan: Plan[T]) -> T: ...

    async def resolution(self, tenant_id: UUID, decision_id: str) -> ResolutionRecord | None:
        """Return the resolution of a decision id of this tenant."""

    async def proposal(self, tenant_id: UUID, decision_id: str) -> ProposalRecord | None:
        """Return what was proposed under a decision id of this tenant."""

    async def proposals(self, tenant_id: UUID, effect_id: UUID) -> tuple[ProposalRecord, ...]:
        """Return the proposals of an effect that nobody has confirmed, the oldest first."""

    async def propose(self, tenant_id: UUID, effect_id: UUID, resolution: Resolution) -> None:
        """Store a proposal; nothing happens where its decision id is taken."""


class Recorded(StrEnum):
    """What has become of a statement."""

    NEW = "new"
    STOOD = "stood"
    PROPOSED = "proposed"


@dataclass(frozen=True, slots=True)
class Resolving:
    """Records what persons conclude.

    Args:
        store: as the API's role.
        new_id: makes the ids of evidence and receipt.
    """

    store: ResolutionStore
    new_id: Callable[[], UUID]

    async def resolve(
        self, tenant_id: UUID, effect_id: UUID, statement: Statement, credential: str
    ) -> Recorded:
        """Make a conclusion stand, or propose it where the contract asks for a second person.

        The same statement by another credential is that second person's confirmation.

        Raises:
            InvalidRequest: no evidence, or an observation of the future.
            EffectMissing, StaleVersion, TooEarly, TransitionRefused,
            DecisionConflict, StorageUnavailable, StoreError.
        """
        resolution = _resolution(effect_id, statement, credential)
        for _ in range(_TRIES):
            proposed = await self.store.proposal(tenant_id, statement.decision_id)
            if proposed is not None and proposed.digest != resolution.digest:
                raise DecisionConflict
            if proposed is not None and proposed.actor != resolution.actor:
                resolution = replace(resolution, proposed_by=proposed.actor)
            recorded = await self._recorded(tenant_id, effect_id, resolution)
            if recorded is not Recorded.PROPOSED or proposed is not None:
                return recorded
            await self.store.propose(tenant_id, effect_id, resolution)
        raise StorageUnavailable

    async def confirm(
        self, tenant_id: UUID, effect_id: UUID, decision_id: str, credential: str
    ) -> Recorded:
        """Make stand what another person has proposed.

        Raises:
            EffectMissing: no such proposal for this effect. SecondPersonRequired: it is one's own.
            StaleVersion, TooEarly, TransitionRefused, StorageUnavailable, StoreError.
        """
        proposed = await self.store.proposal(tenant_id, decision_id)
        if proposed is None or proposed.effect_id != effect_id:
            raise EffectMissing("no such proposal")
        resolution = _proposed(proposed, credential)
        if proposed.actor == resolution.actor:
            raise SecondPersonRequired
        return await self._recorded(
            tenant_id, effect_id, replace(resolution, proposed_by=proposed.actor)
        )

    async def _recorded(self, tenant_id: UUID, effect_id: UUID, resolution: Resolution) -> Recorded:
        for _ in range(_TRIES):
            known = await self.store.resolution(tenant_id, resolution.decision_id)
            if known is not None:
                if known.digest == resolution.digest:
                    return Recorded.STOOD
                raise DecisionConflict
            plan = partial(
                rules.resolve,
                resolution=resolution,
                evidence_id=self.new_id(),
                receipt_id=self.new_id(),
            )
            try:
                resolved = await self.store.change(tenant_id, effect_id, plan)
            except (CommitUnknown, StaleWrite):
                continue  # it stands or it does not: read it back
            if resolved.refusal is Refusal.NEEDS_SECOND_PERSON:
                return Recorded.PROPOSED
            if resolved.refusal is not None:
                # A double click: the same decision was recorded between the look and the plan.
                known = await self.store.resolution(tenant_id, resolution.decision_id)
                if known is not None and known.digest == resolution.digest:
                    return Recorded.STOOD
            _refuse(resolved, resolution.expected_version)
            return Recorded.NEW
        raise StorageUnavailable


def _proposed(proposed: ProposalRecord, credential: str) -> Resolution:
    """The statement of a proposal, in the mouth of whoever confirms it."""
    said: Any = parse_strict(proposed.content)
    return Resolution(
        decision_id=proposed.decision_id,
        conclusion=Conclusion(said["conclusion"]),
        expected_version=said["expected_version"],
        observed_at=min(datetime.fromisoformat(i["observed_at"]) for i in said["evidence"]),
        external_id=said["external_id"],
        reason=said["reason"],
        content=proposed.content,
        digest=proposed.digest,
        actor=f"operator:{credential}",
    )


def _resolution(effect_id: UUID, statement: Statement, credential: str) -> Resolution:
    if not statement.evidence:
        raise InvalidRequest(RequestReason.MISSING, field="/evidence")
    content: Mapping[str, JsonValue] = {
        "effect_id": str(effect_id),
        "conclusion": statement.conclusion.value,
        "expected_version": statement.expected_version,
        "external_id": statement.external_id,
        "reason": statement.reason,
        "evidence": [item.to_json() for item in statement.evidence],
    }
    canonical = canonical_bytes(dict(content))
    return Resolution(
        decision_id=statement.decision_id,
        conclusion=statement.conclusion,
        expected_version=statement.expected_version,
        # Absence has to be seen late enough by every item that is to support it.
        observed_at=min(item.observed_at for item in statement.evidence),
        external_id=statement.external_id,
        reason=statement.reason,
        content=canonical,
        digest=hashlib.sha256(canonical).digest(),
        actor=f"operator:{credential}",
    )


def _refuse(resolved: Resolved, expected: int) -> None:
    match resolved.refusal:
        case None:
            return
        case Refusal.STALE:
            raise StaleVersion(expected=expected, found=resolved.version)
        case Refusal.TOO_EARLY:
            assert resolved.counts_from is not None
            # It has to begin after that moment, and this is the clock's resolution.
            raise TooEarly(not_before=resolved.counts_from + timedelta(microseconds=1))
        case Refusal.IN_THE_FUTURE:
            raise InvalidRequest(RequestReason.FUTURE, field="/evidence")
        case Refusal.FINAL | Refusal.NOT_YET | Refusal.NOT_PERMITTED:
            raise TransitionRefused(state=resolved.state)
        case Refusal.NEEDS_SECOND_PERSON:
            raise AssertionError("it was proposed instead")
