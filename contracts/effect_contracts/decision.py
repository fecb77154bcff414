"""The words of a decision: what the broker does next with an effect, and why.

`effect_contracts.decide` makes decisions, and gives these names on to whoever reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from effect_contracts.facts import Attempt, Evidence
from effect_contracts.life import LifeEvent


class Action(StrEnum):
    """What the broker does next."""

    DISPATCH = "dispatch"
    PROBE = "probe"
    WAIT = "wait"
    PARK = "park"
    SETTLE = "settle"


class Reason(StrEnum):
    """The stable, stored reason of a decision; operators filter by it."""

    FIRST_ATTEMPT = "first_attempt"
    SAME_KEY_AGAIN = "same_key_again"
    NO_COMMIT_PROVED = "no_commit_proved"
    ATTEMPT_OPEN = "attempt_open"
    BACKOFF = "backoff"
    TARGET_BUSY = "target_busy"
    SETTLING = "settling"
    IN_PROGRESS = "in_progress"
    LOOK_UP = "look_up"
    COMMITTED = "committed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    REJECTED = "rejected"
    NEVER_SENT = "never_sent"
    RETRIES_EXHAUSTED = "retries_exhausted"
    PROVED_NOT_COMMITTED = "proved_not_committed"
    FAILED_BY_OPERATOR = "failed_by_operator"
    AWAITING_CALLER = "awaiting_caller"
    OUTCOME_UNKNOWN = "outcome_unknown"
    CONTRACT_VIOLATION = "contract_violation"
    TARGET_KEY_CONFLICT = "target_key_conflict"
    PARTIAL_RESULT = "partial_result"
    KEY_EXPIRED = "key_expired"
    REPLAYED_ERROR = "replayed_error"
    AMBIGUOUS_PROBE = "ambiguous_probe"
    CONFLICT_UNATTRIBUTED = "conflict_unattributed"
    PROBE_HORIZON_PASSED = "probe_horizon_passed"
    RUN_FAILING = "run_failing"
    PAUSED = "paused"
    FROZEN = "frozen"
    TENANT_DISABLED = "tenant_disabled"
    AWAITING_CERTIFICATE = "awaiting_certificate"
    AWAITING_APPROVAL = "awaiting_approval"
    DATABASE_RESTORED = "database_restored"
    TARGET_CHANGED = "target_changed"


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision.

    Attributes:
        action: what to do.
        event: the move of `effect_contracts.life` that writes it.
        reason: why, as a stored code.
        row: the row of the table that applied.
        at: for `wait`, the moment (database clock) at which to ask again.
        ordinal: for `dispatch`, the ordinal of the attempt that may be granted.
        lost: ordinals of open attempts past their deadline, which the writer of this decision
            closes as `presumed_ambiguous`.
        winner: for a success, the attempt or the evidence whose content the receipt holds.
        freezes: automatic redispatch of this tenant's contract version must stop.
    """

    action: Action
    event: LifeEvent
    reason: Reason
    row: int
    at: datetime | None = None
    ordinal: int | None = None
    lost: tuple[int, ...] = ()
    winner: Attempt | Evidence | None = None
    freezes: bool = False
