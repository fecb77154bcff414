"""One decision on many effects: a conclusion with its causes and remedies, a record for each.

A group is named by what its effects have in common: a tool, a reason, a trace (one run of an
agent), a beginning of their operation keys. The decision names each effect with the version that
was looked at. Every effect is resolved by itself, under the rules of `effect_broker.resolving`; one
that has changed meanwhile, or that does not belong to the group, is left out and named. So a
decision is not all or nothing, and saying it again after an outage goes on where it stopped.

A decision is closed while nothing unresolved is in its group. What turns up later opens it again,
by being there: nobody has to write that down.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol
from uuid import UUID

from effect_broker.protocol.ports import EffectMissing
from effect_broker.reading import EffectDetail
from effect_broker.resolving import EvidenceItem, Recorded, Resolving, Statement
from effect_broker.unresolved import (
    CRASH_WINDOW,
    STALE_IN_FLIGHT,
    UnresolvedFilter,
    UnresolvedPage,
)
from effect_contracts.canonical import JsonValue, canonical_bytes
from effect_contracts.errors import (
    DecisionConflict,
    EffectError,
    InvalidRequest,
    RequestReason,
    StorageUnavailable,
)
from effect_contracts.facts import Conclusion

EFFECTS_MAX: Final = 200
NAMED_MAX: Final = 20

# What the broker cannot say of an effect itself, beside the codes of problems.
NOT_IN_GROUP: Final = "not_in_group"
NOT_FOUND: Final = "not_found"


@dataclass(frozen=True, slots=True)
class Group:
    """What the effects of a decision have in common; at least one member is given."""

    tool: str | None = None
    reason: str | None = None
    trace_id: str | None = None
    operation_prefix: str | None = None

    def filter(self) -> UnresolvedFilter:
        """The unresolved effects of the group."""
        return UnresolvedFilter(
            reason=self.reason,
            tool=self.tool,
            trace_id=self.trace_id,
            operation_prefix=self.operation_prefix,
        )

    def has(self, detail: EffectDetail) -> bool:
        """Whether an effect belongs to it as it stands; what is no stored reason, is not judged."""
        intent = detail.intent
        return (
            self.tool in {None, intent.tool}
            and self.reason in {None, CRASH_WINDOW, STALE_IN_FLIGHT, intent.reason}
            and self.trace_id in {None, detail.trace_id}
            and intent.operation_key.startswith(self.operation_prefix or "")
        )


@dataclass(frozen=True, slots=True)
class NamedEffect:
    """One effect of a decision, as it was looked at."""

    effect_id: UUID
    expected_version: int
    external_id: str | None = None


@dataclass(frozen=True, slots=True)
class BatchStatement:
    """What a person states of many effects."""

    decision_id: str
    group: Group
    conclusion: Conclusion
    reason: str
    causes: Sequence[str]
    remedies: Sequence[str]
    evidence: Sequence[EvidenceItem]
    effects: Sequence[NamedEffect]


class BatchOutcome(StrEnum):
    """What became of one effect."""

    SETTLED = "settled"
    PROPOSED = "proposed"
    LEFT_OUT = "left_out"


@dataclass(frozen=True, slots=True)
class BatchEffect:
    """One effect under a decision; `code` says why it was left out."""

    effect_id: UUID
    outcome: BatchOutcome
    code: str | None


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A decision as stored."""

    decision_id: str
    content: bytes
    digest: bytes
    actor: str
    recorded_at: datetime


class BatchStore(Protocol):
    """What decisions on many effects ask of the store."""

    async def add_batch(
        self, tenant_id: UUID, decision_id: str, content: bytes, actor: str
    ) -> BatchRecord:
        """Store a decision, or return the one that stands under its id."""

    async def batch(self, tenant_id: UUID, decision_id: str) -> BatchRecord | None:
        """Return a decision."""

    async def batches(self, tenant_id: UUID, limit: int) -> tuple[BatchRecord, ...]:
        """Return the newest decisions."""

    async def add_batch_effect(
        self, tenant_id: UUID, decision_id: str, effect: BatchEffect
    ) -> None:
        """Store what became of an effect; the first record stays."""

    async def batch_effects(self, tenant_id: UUID, decision_id: str) -> tuple[BatchEffect, ...]:
        """Return what became of the effects of a decision."""

    async def effect(self, tenant_id: UUID, effect_id: UUID) -> EffectDetail:
        """Return one effect. Raises EffectMissing."""

    async def unresolved(
        self, tenant_id: UUID, filters: UnresolvedFilter, cursor: str | None, limit: int
    ) -> UnresolvedPage:
        """Return the most urgent unresolved effects."""


@dataclass(frozen=True, slots=True)
class Batching:
    """Records decisions on many effects."""

    store: BatchStore
    resolving: Resolving

    async def decide(
        self, tenant_id: UUID, statement: BatchStatement, credential: str
    ) -> BatchRecord:
        """Make a decision stand for each effect that permits it; the same again goes on.

        Raises:
            InvalidRequest: no evidence, no group, or one effect twice.
            DecisionConflict: the decision id stands for another statement.
            StorageUnavailable, StoreError: say the same again.
        """
        _check(statement)
        content = canonical_bytes(_content(statement))
        record = await self.store.add_batch(
            tenant_id, statement.decision_id, content, f"operator:{credential}"
        )
        if record.digest != hashlib.sha256(content).digest():
            raise DecisionConflict
        known = await self.store.batch_effects(tenant_id, statement.decision_id)
        done = {effect.effect_id for effect in known}
        for named in statement.effects:
            if named.effect_id in done:
                continue
            effect = await self._resolved(tenant_id, statement, named, credential)
            await self.store.add_batch_effect(tenant_id, statement.decision_id, effect)
        return record

    async def _resolved(
        self, tenant_id: UUID, statement: BatchStatement, named: NamedEffect, credential: str
    ) -> BatchEffect:
        def left_out(code: str) -> BatchEffect:
            return BatchEffect(named.effect_id, BatchOutcome.LEFT_OUT, code)

        try:
            detail = await self.store.effect(tenant_id, named.effect_id)
            single = _single(statement, named)
            # What this decision has settled before an outage has another reason since.
            stood = await self.resolving.store.resolution(tenant_id, single.decision_id)
            if stood is None and not statement.group.has(detail):
                return left_out(NOT_IN_GROUP)
            recorded = await self.resolving.resolve(tenant_id, named.effect_id, single, credential)
        except EffectMissing:
            return left_out(NOT_FOUND)
        except StorageUnavailable:
            raise
        except EffectError as refused:
            return left_out(refused.code.value)
        settled = recorded is not Recorded.PROPOSED
        return BatchEffect(
            named.effect_id, BatchOutcome.SETTLED if settled else BatchOutcome.PROPOSED, None
        )


def _single(statement: BatchStatement, named: NamedEffect) -> Statement:
    """The statement on one effect; its decision id tells which decision it belongs to."""
    return Statement(
        decision_id=f"{statement.decision_id}:{named.effect_id.hex}",
        expected_version=named.expected_version,
        conclusion=statement.conclusion,
        reason=statement.reason,
        evidence=statement.evidence,
        external_id=named.external_id,
    )


def _check(statement: BatchStatement) -> None:
    if not statement.evidence:
        raise InvalidRequest(RequestReason.MISSING, field="/evidence")
    if statement.group == Group():
        raise InvalidRequest(RequestReason.MISSING, field="/group")
    if not statement.effects:
        raise InvalidRequest(RequestReason.MISSING, field="/effects")
    if len({named.effect_id for named in statement.effects}) < len(statement.effects):
        raise InvalidRequest(RequestReason.FORMAT, field="/effects")


def _content(statement: BatchStatement) -> JsonValue:
    group = statement.group
    return {
        "group": {
            "tool": group.tool,
            "reason": group.reason,
            "trace_id": group.trace_id,
            "operation_prefix": group.operation_prefix,
        },
        "conclusion": statement.conclusion.value,
        "reason": statement.reason,
        "causes": list(statement.causes),
        "remedies": list(statement.remedies),
        "evidence": [item.to_json() for item in statement.evidence],
        "effects": [
            {
                "effect_id": str(named.effect_id),
                "expected_version": named.expected_version,
                "external_id": named.external_id,
            }
            for named in statement.effects
        ],
    }
