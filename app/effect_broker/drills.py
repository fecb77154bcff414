"""Drills: what may be armed in a running broker, and how what has come of it is read.

An operator arms a fault for one operation key, or for the first new effect of a tool. The effect
that matches it runs in a worker started for it alone, which dies of a real SIGKILL at the fault
point; the ordinary workers settle the effect as they settle any that has lost its worker. A drill
changes when and where the first run happens, and nothing of what may be sent.

This file owns the rules: which points may be armed, what a drill's status is, and whether the
effect has ended as its class promises. The process is `effect_broker.drill_worker`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol, assert_never
from uuid import UUID

from effect_broker.faultpoints import FaultPoint
from effect_contracts.errors import InvalidRequest, RequestReason
from effect_contracts.facts import (
    Alert,
    EffectState,
    EvidenceSource,
    SafetyClass,
    Verdict,
)
from effect_contracts.life import is_final
from effect_contracts.trace.kinds import DRILL_TAKEOVER_SECONDS_MAX

REASON_CHARS_MAX: Final = 2000
EXPIRES_SECONDS_MAX: Final = 86_400
EXPIRES_SECONDS_DEFAULT: Final = 600
TAKEOVER_SECONDS_MAX: Final = DRILL_TAKEOVER_SECONDS_MAX
# A process needs some seconds to start on a busy machine. While a drill is armed without a worker,
# this is what the matched effect loses.
TAKEOVER_SECONDS_DEFAULT: Final = 30
LISTED_MAX: Final = 200

# What the worker of a drill says on its standard output, before its id and before the point.
SAYS_READY: Final = "drill worker ready as "
SAYS_DIES: Final = "drill worker dies at "

# The target has committed, and nobody has written it down: the loss that matters most.
DEFAULT_POINT: Final = FaultPoint.AFTER_TARGET_ANSWER

# Where a worker that has one effect can be lost. Submits are the API's and repair is every
# worker's, so their points are no drill of one effect.
POINTS: Final = (
    FaultPoint.BEFORE_RESERVE,
    FaultPoint.AFTER_RESERVE,
    FaultPoint.BEFORE_CONCLUDE_COMMIT,
    FaultPoint.AFTER_CONCLUDE_COMMIT,
    FaultPoint.BEFORE_ATTEMPT_COMMIT,
    FaultPoint.AFTER_ATTEMPT_COMMIT,
    FaultPoint.BEFORE_SOCKET_WRITE,
    FaultPoint.AFTER_LAST_GATE,
    FaultPoint.AFTER_TARGET_ANSWER,
    FaultPoint.BEFORE_OUTCOME_COMMIT,
    FaultPoint.AFTER_OUTCOME_COMMIT,
    FaultPoint.BEFORE_PROBE,
    FaultPoint.AFTER_PROBE_ANSWER,
    FaultPoint.AFTER_EVIDENCE_COMMIT,
    FaultPoint.INSIDE_MUTATION,
)


def checked_point(name: str) -> FaultPoint:
    """Return the fault point of this name.

    Raises:
        InvalidRequest: it may not be armed in a drill; `allowed` lists those that may.
    """
    if name in POINTS:
        return FaultPoint(name)
    refusal = InvalidRequest(RequestReason.UNKNOWN, field="/fault_point")
    refusal.detail = f"No drill can be armed there; the points are {', '.join(POINTS)}."
    refusal.extras["allowed"] = ", ".join(POINTS)
    raise refusal


def point_of_death(point: FaultPoint, safety: SafetyClass) -> FaultPoint:
    """Return where a worker dies that drills an effect of this class.

    A transactional target's answer and its receipt are one commit: there is nothing between them,
    so that the nearest place is behind both.
    """
    if point is FaultPoint.AFTER_TARGET_ANSWER and safety is SafetyClass.TRANSACTIONAL:
        return FaultPoint.AFTER_OUTCOME_COMMIT
    return point


@dataclass(frozen=True, slots=True)
class DrillOrder:
    """What an operator arms; exactly one of `operation_key` and `tool`."""

    drill_id: UUID
    operation_key: str | None
    tool: str | None
    point: FaultPoint
    reason: str
    expires_seconds: int = EXPIRES_SECONDS_DEFAULT
    takeover_seconds: int = TAKEOVER_SECONDS_DEFAULT


class DrillStatus(StrEnum):
    """How far a drill has come."""

    ARMED = "armed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    MATCHED = "matched"
    DIED = "died"
    SETTLED = "settled"
    MISSED = "missed"  # its worker has not died of it: it has ended in order, or never came


class SettledBy(StrEnum):
    """What has brought an effect to rest after its worker was lost."""

    RECEIPT = "receipt"  # it stood before the death
    DISPATCH = "dispatch"  # nothing had been sent yet
    REDISPATCH = "redispatch"
    PROBE = "probe"
    TRANSACTION = "transaction"
    WEBHOOK = "webhook"
    OPERATOR = "operator"
    PERSON_NEEDED = "person_needed"  # nothing may be concluded: it waits for a person
    RULE = "rule"  # the contract ends it without a further fact


@dataclass(frozen=True, slots=True)
class AttemptSeen:
    """One attempt of a drilled effect."""

    ordinal: int
    started_at: datetime
    executor_id: str


@dataclass(frozen=True, slots=True)
class EvidenceSeen:
    """One stored fact about a drilled effect that is not an attempt's own answer."""

    source: EvidenceSource
    verdict: Verdict
    began_at: datetime
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class DrilledEffect:
    """The effect that a drill has met, as it stands.

    Attributes:
        settled_at: since when it is final or waits for a person; None before.
        downstream_key: what the target has seen on every attempt.
    """

    effect_id: UUID
    operation_key: str
    tool: str
    safety: SafetyClass
    state: EffectState
    reason: str
    parked: bool
    alert: Alert | None
    settled_at: datetime | None
    downstream_key: str
    attempts: tuple[AttemptSeen, ...]
    evidence: tuple[EvidenceSeen, ...]


@dataclass(frozen=True, slots=True)
class DrillRecord:
    """A drill as stored, with the effect that it has met.

    Attributes:
        died_at: as the command saw it that started the worker; else the last heartbeat of a
            worker that beats no more, which is up to a heartbeat earlier.
        worker_lives: it beats, and has not said goodbye.
        now: the database clock of this reading.
    """

    drill_id: UUID
    tenant_id: UUID
    operation_key: str | None
    tool: str | None
    point: FaultPoint
    takeover_seconds: int
    armed_by: str
    reason: str
    armed_at: datetime
    expires_at: datetime
    cancelled_by: str | None
    cancelled_at: datetime | None
    matched_at: datetime | None
    executor_id: str | None
    worker_ready_at: datetime | None
    died_at: datetime | None
    worker_lives: bool
    now: datetime
    effect: DrilledEffect | None

    @property
    def status(self) -> DrillStatus:
        """How far it has come."""
        if self.cancelled_at is not None:
            return DrillStatus.CANCELLED
        if self.effect is None:
            return DrillStatus.EXPIRED if self.now >= self.expires_at else DrillStatus.ARMED
        at_rest = self.effect.settled_at is not None
        if self.died_at is not None:
            return DrillStatus.SETTLED if at_rest else DrillStatus.DIED
        gone = self.executor_id is not None or at_rest
        return DrillStatus.MISSED if gone and not self.worker_lives else DrillStatus.MATCHED

    @property
    def settlement_seconds(self) -> float | None:
        """From the death to the effect's rest; 0 where it stood before, None while it is open."""
        if self.died_at is None or self.effect is None or self.effect.settled_at is None:
            return None
        return max((self.effect.settled_at - self.died_at).total_seconds(), 0.0)

    @property
    def settled_by(self) -> SettledBy | None:
        """What has settled it; None unless the worker has died and the effect is at rest."""
        effect = self.effect
        if self.died_at is None or effect is None or effect.settled_at is None:
            return None
        return _settled_by(effect, effect.settled_at, self.died_at)

    @property
    def promise_kept(self) -> bool | None:
        """Whether the broker's part of the class's promise holds; None unless settled.

        Of what the target holds the broker knows its word only; whoever drills looks there.
        """
        if self.status is not DrillStatus.SETTLED or self.effect is None:
            return None
        return _promise_kept(self.effect)


def _settled_by(effect: DrilledEffect, settled_at: datetime, died_at: datetime) -> SettledBy:
    if effect.parked:
        return SettledBy.PERSON_NEEDED
    if settled_at <= died_at:
        return SettledBy.RECEIPT
    decisive = [
        e for e in effect.evidence if e.verdict is not Verdict.UNKNOWN and e.recorded_at > died_at
    ]
    if any(e.source is EvidenceSource.OPERATOR for e in decisive):
        return SettledBy.OPERATOR
    if any(attempt.started_at > died_at for attempt in effect.attempts):
        again = any(attempt.started_at <= died_at for attempt in effect.attempts)
        return SettledBy.REDISPATCH if again else SettledBy.DISPATCH
    for found in decisive:
        match found.source:
            case EvidenceSource.PROBE:
                return SettledBy.PROBE
            case EvidenceSource.TRANSACTION:
                return SettledBy.TRANSACTION
            case EvidenceSource.WEBHOOK:
                return SettledBy.WEBHOOK
            case EvidenceSource.OPERATOR:
                return SettledBy.OPERATOR
            case never:
                assert_never(never)
    return SettledBy.RULE


def _promise_kept(effect: DrilledEffect) -> bool:
    if effect.alert is not None or not (effect.parked or is_final(effect.state)):
        return False
    sent = len(effect.attempts)
    match effect.safety:
        case SafetyClass.UNSAFE:
            return sent <= 1
        case SafetyClass.RECONCILABLE:
            # Each attempt but the first rests on a look-up between it and the one before.
            looked = [e.began_at for e in effect.evidence if e.verdict is Verdict.NOT_COMMITTED]
            return all(
                any(before.started_at < at < after.started_at for at in looked)
                for before, after in zip(effect.attempts, effect.attempts[1:], strict=False)
            )
        case SafetyClass.IDEMPOTENT | SafetyClass.TRANSACTIONAL:
            return True  # the same key each time, or the mutation's own key in the schema
        case never:
            assert_never(never)


class DrillStore(Protocol):
    """Drills of one tenant, for those who arm and read them."""

    async def arm(self, tenant_id: UUID, order: DrillOrder, actor: str) -> DrillRecord:
        """Arm a drill.

        Raises:
            UnknownTool: no active contract serves the tool.
            TransitionRefused: an effect of this operation key exists, so none will match.
            StoreError.
        """

    async def drill(self, tenant_id: UUID, drill_id: UUID) -> DrillRecord:
        """Return a drill of this tenant.

        Raises:
            NotFound, StoreError.
        """

    async def listing(self, tenant_id: UUID, limit: int) -> Sequence[DrillRecord]:
        """Return the newest drills.

        Raises:
            StoreError.
        """

    async def cancel(self, tenant_id: UUID, drill_id: UUID, actor: str) -> DrillRecord:
        """Disarm a drill that has met no effect; again is a no-op.

        Raises:
            NotFound; TransitionRefused: an effect has taken it; StoreError.
        """
