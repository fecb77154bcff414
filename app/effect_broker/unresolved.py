"""What waits: effects that are not final and not simply on their way, for every surface.

This file owns what an unresolved effect is and what is said of it. The most urgent one comes first:
the one whose downstream key expires first, since sending again is safe only before that, then the
oldest. An effect is simply on its way while it is prepared, or dispatching within its deadline, or
waiting for the back-off after a proved miss. All else is listed, for one or more reasons:

    crash_window        the sender was lost between send and record; not cleared yet
    stale_in_flight     an open attempt past its deadline that nobody has closed, or an overdue run
    late_contradiction, duplicate_detected
                        final, and the target says otherwise than the receipt
    any other           the stored reason: of a review, of a hold, or of a look-up that goes on

Paging follows the order by a position in it. What stays listed is shown once; what turns up before
the position meanwhile is shown by the next look from the beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Protocol
from uuid import UUID

from effect_broker.protocol.ports import AttemptRow, Intent, Snapshot, Urgency
from effect_broker.protocol.resolution import Permitted
from effect_contracts.decide import Action, Reason, decide
from effect_contracts.facts import Alert, EffectState
from effect_contracts.life import is_final

CRASH_WINDOW: Final = "crash_window"
STALE_IN_FLIGHT: Final = "stale_in_flight"

# Every reason that can be asked for; a misspelt one must not look like "nothing waits".
REASONS: Final = frozenset(
    {CRASH_WINDOW, STALE_IN_FLIGHT, "submitted", *map(str, Reason), *map(str, Alert)}
)

# After its due time a run needs a moment. The reconcile loop takes a run that hangs for longer
# than this for lost (`effect_broker.store.runs`).
OVERDUE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class UnresolvedFilter:
    """Which unresolved effects; every condition that is given must hold.

    Attributes:
        states: any of these.
        reason: one of `REASONS`; an effect that has several is found by each.
        trace_id: as the caller has named it at the submit.
        older_than_seconds: made at least so long ago, by the database's clock.
    """

    states: frozenset[EffectState] = frozenset()
    reason: str | None = None
    tool: str | None = None
    operation_prefix: str | None = None
    older_than_seconds: float | None = None
    trace_id: str | None = None


@dataclass(frozen=True, slots=True)
class LastEvidence:
    """What was learned last of an effect.

    Attributes:
        source: `attempt` for an attempt's own answer or loss, else the source of the evidence.
        says: the outcome or the verdict.
        at: when the observation began; of an attempt, when its outcome was recorded, or its
            deadline where it was presumed.
    """

    source: str
    says: str
    code: str | None
    at: datetime


class Step(StrEnum):
    """What the broker does next by itself."""

    SEND = "send"
    LOOK_UP = "look_up"
    CLOSE_ATTEMPT = "close_attempt"
    SETTLE = "settle"
    ASK_A_PERSON = "ask_a_person"
    COUNT = "count"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class NextStep:
    """The next automatic action; `at` may have passed."""

    step: Step
    at: datetime


@dataclass(frozen=True, slots=True)
class UnresolvedEffect:
    """One row of the listing.

    Attributes:
        tenant: the tenant's name.
        parked: nothing happens by itself.
        reasons: why it is listed, the one to act on first.
        last_evidence: None where nothing was ever learned.
        next_step: None where only a person or new evidence can move it.
        permitted: what a person may conclude now or later.
        now: the database clock of this page.
    """

    intent: Intent
    tenant: str
    parked: bool
    alert: Alert | None
    key_expires_at: datetime | None
    reasons: tuple[str, ...]
    last_evidence: LastEvidence | None
    next_step: NextStep | None
    permitted: tuple[Permitted, ...]
    now: datetime

    @property
    def age_seconds(self) -> float:
        """Since the submit."""
        return (self.now - self.intent.created_at).total_seconds()

    @property
    def key_expires_in_seconds(self) -> float | None:
        """Until the target may forget our key; negative when that has passed."""
        if self.key_expires_at is None:
            return None
        return (self.key_expires_at - self.now).total_seconds()


@dataclass(frozen=True, slots=True)
class UnresolvedPage:
    """One page, the most urgent first; `cursor` is None on the last."""

    effects: tuple[UnresolvedEffect, ...]
    cursor: str | None


class UnresolvedReads(Protocol):
    """The one read behind the listing."""

    async def unresolved(
        self, tenant_id: UUID, filters: UnresolvedFilter, cursor: str | None, limit: int
    ) -> UnresolvedPage:
        """Return one page of a tenant.

        Raises:
            CursorInvalid.
        """


def reasons_of(
    intent: Intent, urgency: Urgency, parked: bool, alert: Alert | None, now: datetime
) -> tuple[str, ...]:
    """Return why an effect is listed; the store's conditions say the same in SQL.

    Where only a person can move it, the stored reason comes first: it says what to do.
    """
    if is_final(intent.state):
        return () if alert is None else (alert.value,)
    stored = (intent.reason,)
    lost = (CRASH_WINDOW,) if urgency.sender_lost else ()
    stale = (STALE_IN_FLIGHT,) if _is_stale(intent, urgency, now) else ()
    return (*stored, *stale, *lost) if parked else (*stale, *lost, *stored)


def _is_stale(intent: Intent, urgency: Urgency, now: datetime) -> bool:
    if urgency.open_until is not None and urgency.open_until < now:
        return True
    due_at = intent.next_action_at
    return due_at is not None and due_at < now - timedelta(seconds=OVERDUE_SECONDS)


def next_step_of(snapshot: Snapshot) -> NextStep | None:
    """Return what the broker will do by itself and when, as `decide` says it for that moment.

    It is a forecast: new facts change it, and so does a target that is no longer the one that was
    sent to, which only a worker can see.
    """
    due_at = snapshot.intent.next_action_at
    if due_at is None:
        return None
    if is_final(snapshot.intent.state):
        return NextStep(Step.COUNT, due_at)
    if any(a.fact.outcome is None for a in snapshot.attempts):
        return NextStep(Step.CLOSE_ATTEMPT, due_at)
    at = max(due_at, snapshot.now)
    decision = decide(snapshot.facts, snapshot.document.policy(), at)
    return NextStep(_STEPS[decision.action], due_at)


_STEPS: Final = {
    Action.DISPATCH: Step.SEND,
    Action.PROBE: Step.LOOK_UP,
    Action.WAIT: Step.WAIT,
    Action.PARK: Step.ASK_A_PERSON,
    Action.SETTLE: Step.SETTLE,
}


def last_evidence_of(
    attempts: Sequence[AttemptRow], latest: LastEvidence | None
) -> LastEvidence | None:
    """Return the newer of an attempt's answer and `latest`, the newest stored evidence."""
    answers = [
        LastEvidence("attempt", fact.outcome.value, fact.code, fact.recorded_at or fact.deadline_at)
        for fact in (row.fact for row in attempts)
        if fact.outcome is not None
    ]
    known = [*answers, *(() if latest is None else (latest,))]
    return max(known, key=lambda one: one.at, default=None)
