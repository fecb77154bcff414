"""The facts about one effect, as frozen values: what `decide` reads and nothing else.

This module owns the words of the protocol: the safety classes, the states, the outcomes of an
attempt and the verdicts of evidence. It holds no policy and reads no clock. Times are aware
datetimes on the database clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from effect_contracts.pacing import Limits, Pace


class SafetyClass(StrEnum):
    """What the target can honestly promise; the guarantee follows from it."""

    TRANSACTIONAL = "transactional"
    IDEMPOTENT = "idempotent"
    RECONCILABLE = "reconcilable"
    UNSAFE = "unsafe"


class EffectState(StrEnum):
    """The states of an effect; `effect_contracts.life` owns the moves between them."""

    PREPARED = "prepared"
    DISPATCHING = "dispatching"
    RETRYABLE = "retryable"
    OUTCOME_UNKNOWN = "outcome_unknown"
    RECONCILING = "reconciling"
    MANUAL_REVIEW = "manual_review"
    SUCCEEDED = "succeeded"
    FAILED_FINAL = "failed_final"
    CANCELLED = "cancelled"
    COMPENSATED = "compensated"


FINAL_STATES = frozenset(
    {
        EffectState.SUCCEEDED,
        EffectState.FAILED_FINAL,
        EffectState.CANCELLED,
        EffectState.COMPENSATED,
    }
)


class Outcome(StrEnum):
    """What one attempt showed. Only a proof makes `rejected`, `not_sent` or `retryable`."""

    COMMITTED = "committed"
    REJECTED = "rejected"
    NOT_SENT = "not_sent"
    RETRYABLE = "retryable"
    IN_PROGRESS = "in_progress"
    KEY_CONFLICT = "key_conflict"
    PARTIAL = "partial"
    AMBIGUOUS = "ambiguous"
    PRESUMED_AMBIGUOUS = "presumed_ambiguous"


PROVES_NO_COMMIT = frozenset({Outcome.REJECTED, Outcome.NOT_SENT, Outcome.RETRYABLE})


class Verdict(StrEnum):
    """What one piece of evidence says.

    `rejected` is the target's own word that an operation which it had accepted has failed for
    good; `mismatch` is an object under our key that is not clearly ours (several matches, or
    payload fields that disagree); `unknown` is a probe that proved nothing.
    """

    COMMITTED = "committed"
    NOT_COMMITTED = "not_committed"
    REJECTED = "rejected"
    MISMATCH = "mismatch"
    UNKNOWN = "unknown"


class EvidenceSource(StrEnum):
    """Where a stored fact came from."""

    PROBE = "probe"
    WEBHOOK = "webhook"
    OPERATOR = "operator"
    TRANSACTION = "transaction"


class Conclusion(StrEnum):
    """What a person may conclude of an effect; "try again" is none of it."""

    COMMITTED = "committed"
    NOT_COMMITTED = "not_committed"
    FAILED = "failed"


class Hold(StrEnum):
    """Why nothing may be dispatched now although the facts alone would allow it."""

    PAUSED = "paused"
    FROZEN = "frozen"
    TENANT_DISABLED = "tenant_disabled"
    AWAITING_CERTIFICATE = "awaiting_certificate"
    AWAITING_APPROVAL = "awaiting_approval"
    DATABASE_RESTORED = "database_restored"
    TARGET_CHANGED = "target_changed"


class Alert(StrEnum):
    """What a person has to know of an effect that is final: its receipt stands, but the target
    says something else. The latest one is kept with the effect until a person has dealt with it.
    """

    LATE_CONTRADICTION = "late_contradiction"
    DUPLICATE_DETECTED = "duplicate_detected"


# Codes that an adapter may put on an attempt and that `decide` understands.
CODE_ALREADY_EXISTS = "already_exists"
CODE_REPLAYED_ERROR = "replayed_error"
# The code of a poll that found no such operation; its verdict is `unknown`.
CODE_OPERATION_GONE = "operation_gone"
# The code of a look-up that found more than one object under our key.
CODE_SEVERAL_MATCHES = "several_matches"
# The code of a webhook that tells of a failure; its verdict is `unknown`, since it clears nothing.
CODE_FAILURE_NOTICE = "failure_notice"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One permission to send; open while `outcome` is None.

    Attributes:
        ordinal: 1, 2, 3, … within the effect.
        started_at: database time of the transaction that granted the attempt.
        deadline_at: `started_at` plus the contract's attempt deadline.
        outcome: what the attempt showed, None while it is open.
        recorded_at: when the process that sent it recorded the outcome; None while open and for
            `presumed_ambiguous`, which a successor writes.
        code: the adapter's stable code for the outcome.
        external_id: the target's id of the object, for `committed`.
        retry_after_seconds: what the target asked for, unclamped.
        operation: the target accepted the request as an operation that can be polled.
    """

    ordinal: int
    started_at: datetime
    deadline_at: datetime
    outcome: Outcome | None = None
    recorded_at: datetime | None = None
    code: str | None = None
    external_id: str | None = None
    retry_after_seconds: float | None = None
    operation: bool = False

    @property
    def may_have_sent(self) -> bool:
        """False only where it is proved that no byte left."""
        return self.outcome is not Outcome.NOT_SENT


@dataclass(frozen=True, slots=True)
class Evidence:
    """A stored fact about the target that is not an attempt's own answer.

    Attributes:
        evidence_id: identity of the stored row.
        source: where it came from.
        verdict: what it says.
        began_at: when the observation began; a negative one counts from here, not from its end.
        covers_through: the highest attempt ordinal that existed when the observation began; a
            negative verdict speaks of ordinals up to this one. For `rejected`, the ordinal of
            the operation that failed; for a poll that found no such operation, of that one.
        external_ids: the ids of the objects seen.
        code: the adapter's stable code for what it saw; None where nobody kept it.
    """

    evidence_id: str
    source: EvidenceSource
    verdict: Verdict
    began_at: datetime
    covers_through: int
    external_ids: tuple[str, ...] = ()
    code: str | None = None

    @property
    def decisive(self) -> bool:
        """Whether `decide` reads it; a look-up that proved nothing is only counted."""
        return self.verdict is not Verdict.UNKNOWN or self.code == CODE_OPERATION_GONE


@dataclass(frozen=True, slots=True)
class Certified:
    """A certificate that is in force: signed by a key that the broker trusts, and not revoked.

    Attributes:
        target_identity: of the target that was tried, as effects bind theirs.
        trials: the names of those that held.
        ended_at: when the trials were over; its age counts from here.
        expires_at: when it says itself that it ends.
    """

    certificate_id: str
    target_identity: str
    trials: frozenset[str]
    ended_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class CertificateDemand:
    """What a contract asks of the certificate without which nothing is sent.

    Attributes:
        age_seconds_max: how long ago its trials may have ended; None for as long as it says itself.
        trials: these have to have held.
        sandbox_identity: trials at this target count for the contract's own; None where none do.
    """

    age_seconds_max: float | None = None
    trials: frozenset[str] = frozenset()
    sandbox_identity: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """All that `decide` may look at for one effect.

    Attributes:
        attempts: by ordinal, gapless from 1.
        evidence: every decisive row (`Evidence.decisive`).
        probes_since_attempt: probes begun after the latest attempt started.
        probe_began_at: the beginning of the latest of those, if any.
        look_up_asked_at: somebody asked for a look-up now, whatever the schedule says.
        cancel_requested: a cancel was recorded; it counts only while there is no attempt.
        failed_by_operator: an operator has recorded final failure.
        holds: why nothing may be dispatched now.
        send_before: no first attempt may start at or after this moment.
        approved_at: when somebody has last approved the first attempt, if anybody has.
        certificates: those in force of the effect's contract; read only where it demands one.
        turn_at: the turn at a limited target that was given to the effect, and not lost since.
        pace: of a limited target, under its lock; None for whoever does not hold that.
        jitter_seed: stable per effect; spreads the back-off of many effects, never of one.
        bounds_restart_at: after a database restore, running bounds count from here.
    """

    attempts: tuple[Attempt, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    probes_since_attempt: int = 0
    probe_began_at: datetime | None = None
    look_up_asked_at: datetime | None = None
    cancel_requested: bool = False
    failed_by_operator: bool = False
    holds: frozenset[Hold] = frozenset()
    send_before: datetime | None = None
    approved_at: datetime | None = None
    certificates: tuple[Certified, ...] = ()
    turn_at: datetime | None = None
    pace: Pace | None = None
    jitter_seed: int = 0
    bounds_restart_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """The numbers of a pinned contract that `decide` needs. All durations are in seconds.

    Attributes:
        attempts_max: how many attempts may be granted in all.
        attempt_deadline_seconds: the whole exchange of one attempt.
        clock_margin_seconds: how far two clocks may drift during one attempt.
        transit_seconds: how long a request may travel after its last byte left.
        key_retention_seconds: how long the target keeps our key; None without a key.
        settlement_bound_seconds: after this a negative look-up is final; None means never.
        backoff_initial_seconds, backoff_factor, backoff_cap_seconds: waits between attempts.
        retry_after_cap_seconds: the longest Retry-After that is honoured.
        in_progress_bound_seconds: how long "in progress" answers are free of charge.
        replayed_errors_max: how many replays of a stored error are taken before review.
        probes: the contract has a look-up.
        polls_operations: the contract can poll an accepted operation.
        probe_initial_seconds, probe_factor, probe_cap_seconds: waits between probes.
        probe_horizon_seconds: after this without an answer, a person is asked.
        approval_valid_seconds: the first attempt has to start within this time of an approval;
            None where it needs none.
        certificate: what is asked of the certificate that every attempt needs; None where none is.
        limits: how hard the target is driven at most; None where nothing limits it.
        awaits_caller: no worker sends it; an attempt begins with a caller's election.
        lease_seconds_max: how long a caller's attempt may be extended to in all; None where it is
            not extended.
    """

    safety: SafetyClass
    attempts_max: int = 3
    attempt_deadline_seconds: float = 30.0
    clock_margin_seconds: float = 0.5
    transit_seconds: float = 5.0
    key_retention_seconds: float | None = None
    settlement_bound_seconds: float | None = None
    backoff_initial_seconds: float = 1.0
    backoff_factor: float = 2.0
    backoff_cap_seconds: float = 300.0
    retry_after_cap_seconds: float = 3600.0
    in_progress_bound_seconds: float = 600.0
    replayed_errors_max: int = 2
    probes: bool = False
    polls_operations: bool = False
    probe_initial_seconds: float = 1.0
    probe_factor: float = 2.0
    probe_cap_seconds: float = 300.0
    probe_horizon_seconds: float = 86400.0
    approval_valid_seconds: float | None = None
    certificate: CertificateDemand | None = None
    limits: Limits | None = None
    awaits_caller: bool = False
    lease_seconds_max: float | None = None
