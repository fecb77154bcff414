"""The rules of design §4 on sending and settling, written a second time.

Nothing here asks `decide`: the replay does that. These are the few sentences that the whole
protocol exists for, each judged by its own arithmetic on the facts that were known at the moment
of the event, so that a mistake in the table of decisions shows here.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from effect_contracts.facts import (
    CODE_ALREADY_EXISTS,
    PROVES_NO_COMMIT,
    Attempt,
    EffectState,
    EvidenceSource,
    Outcome,
    SafetyClass,
    Verdict,
)
from effect_contracts.receipts import receipt_time
from effect_contracts.trace.findings import Rule, require
from effect_contracts.trace.log import EvidenceRecord
from effect_contracts.trace.timeline import Timeline

_ENDS_THE_EFFECT = frozenset({Outcome.COMMITTED, Outcome.KEY_CONFLICT, Outcome.PARTIAL})


def check_grant(timeline: Timeline, at: datetime) -> None:
    """Judge an attempt that starts now.

    Raises:
        Broken: it may not.
    """
    attempts, policy = timeline.attempts, timeline.policy
    for attempt in attempts:
        require(
            attempt.outcome is not None, Rule.ONE_OPEN, f"attempt {attempt.ordinal} is still open"
        )
    ended = any(a.outcome in _ENDS_THE_EFFECT for a in attempts) or any(
        e.verdict is Verdict.COMMITTED for e in timeline.evidence
    )
    require(not ended, Rule.RESENT, "an answer before it has ended the effect")
    uncleared = [a for a in attempts if not _cleared(timeline, a, at)]
    rejected = any(a.outcome is Outcome.REJECTED for a in attempts)
    require(bool(uncleared) or not rejected, Rule.RESENT, "the target has refused it for good")
    if policy.safety is SafetyClass.UNSAFE:
        doubtful = [a.ordinal for a in attempts if a.outcome not in PROVES_NO_COMMIT]
        require(not doubtful, Rule.UNSAFE, f"attempt {doubtful} may have committed")
    if policy.safety is not SafetyClass.IDEMPOTENT:
        names = [a.ordinal for a in uncleared]
        require(not names, Rule.CONCLUSIVE, f"nothing proves that attempt {names} did not commit")
    elif uncleared:
        _check_same_key_again(timeline, at)


def check_certificate(
    timeline: Timeline, at: datetime, certificate_id: object, until: object
) -> None:
    """Judge what an attempt that starts now says of the certificate that it was granted on.

    The certificate itself is no part of a trace; its id finds it with the broker.

    Raises:
        Broken: the contract demands one and the attempt names none that was in force, or it names
            one that nobody has asked for.
    """
    if timeline.policy.certificate is None:
        named = certificate_id is not None or until is not None
        require(not named, Rule.KIND, "the contract demands no certificate, and one is named")
        return
    told = isinstance(certificate_id, str) and isinstance(until, str)
    require(told, Rule.CERTIFICATE, "the contract demands a certificate, and none is named")
    # Both are of one spelling, in which a later moment is a greater text.
    in_force = receipt_time(at) < str(until)
    require(in_force, Rule.CERTIFICATE, "the certificate that is named was over")


def _check_same_key_again(timeline: Timeline, at: datetime) -> None:
    policy = timeline.policy
    sent = [a for a in timeline.attempts if a.outcome is not Outcome.NOT_SENT]
    for attempt in sent:
        what = f"attempt {attempt.ordinal} may still be on the wire"
        require(at >= _ends_at(timeline, attempt), Rule.SETTLED_BY, what)
    retention = policy.key_retention_seconds
    require(retention is not None, Rule.RETENTION, "the target keeps no key")
    assert retention is not None
    whole = policy.attempt_deadline_seconds + policy.clock_margin_seconds + policy.transit_seconds
    lives_until = min(a.started_at for a in sent) + timedelta(seconds=retention)
    require(
        at + timedelta(seconds=whole) <= lives_until,
        Rule.RETENTION,
        "the key could be forgotten before the attempt has ended",
    )


def check_settlement(timeline: Timeline, state: EffectState, at: datetime) -> None:
    """Judge a final state that is written now.

    Raises:
        Broken: the facts do not support it.
    """
    intent, attempts = timeline.line.intent, timeline.attempts
    committed = [a for a in attempts if a.outcome is Outcome.COMMITTED]
    found = [e for e in timeline.evidence if e.verdict is Verdict.COMMITTED]
    ids = {a.external_id for a in committed if a.external_id is not None}
    several = len(ids | {i for e in found for i in e.external_ids}) > 1
    match state:
        case EffectState.SUCCEEDED:
            require(bool(committed or found), Rule.SUPPORT, "nothing says that it has happened")
            # Of two objects a person may say which one counts.
            said = any(e.source is EvidenceSource.OPERATOR for e in found)
            require(not several or said, Rule.SUPPORT, "several objects are known under its key")
        case EffectState.FAILED_FINAL:
            happened = bool(committed or found)
            if timeline.given_up and (several or not happened):
                return  # of two objects a person may also say that none does
            require(not happened, Rule.SUPPORT, "something says that it happened")
            uncleared = [a.ordinal for a in attempts if not _cleared(timeline, a, at)]
            what = f"nothing proves that attempt {uncleared} did not commit"
            require(not uncleared, Rule.SUPPORT, what)
            expired = intent.send_before is not None and intent.send_before <= at
            require(bool(attempts) or expired, Rule.SUPPORT, "it was never sent and is not expired")
        case EffectState.CANCELLED:
            asked_at = intent.cancel_requested_at
            asked = asked_at is not None and asked_at <= at
            require(not attempts, Rule.SUPPORT, "it was sent before it was cancelled")
            require(asked, Rule.SUPPORT, "nobody asked to cancel it")
        case _:
            require(False, Rule.SUPPORT, f"{state} is not written by a settlement")


def check_absence(timeline: Timeline, evidence: EvidenceRecord, at: datetime) -> None:
    """Judge a person's word that the effect does not exist.

    Raises:
        Broken: the observation began too early to count.
    """
    sent = [a for a in timeline.attempts if a.outcome is not Outcome.NOT_SENT]
    if not sent:
        return
    settled = [_ends_at(timeline, a) for a in sent]
    restarted_at = timeline.restarted_at(at)
    settled_at = max(settled if restarted_at is None else [*settled, restarted_at])
    bound = timedelta(seconds=timeline.policy.settlement_bound_seconds or 0.0)
    require(evidence.began_at > settled_at + bound, Rule.CONCLUSIVE, "the look came too early")


def _cleared(timeline: Timeline, attempt: Attempt, at: datetime) -> bool:
    """Whether it is proved that the attempt did not commit."""
    if attempt.outcome in PROVES_NO_COMMIT:
        return True
    # An "exists already" that came later makes older evidence of absence worthless.
    conflicts = [a.ordinal for a in timeline.attempts if a.code == CODE_ALREADY_EXISTS]
    through = max([attempt.ordinal, *conflicts])
    return any(
        _operation_failed(evidence, attempt)
        or (
            evidence.covers_through >= through
            # An accepted operation may still take its time, whatever a look-up finds absent.
            and (not attempt.operation or evidence.source is EvidenceSource.OPERATOR)
            and _conclusive(timeline, evidence, at)
        )
        for evidence in timeline.evidence
    )


def _operation_failed(evidence: EvidenceRecord, attempt: Attempt) -> bool:
    return (
        evidence.verdict is Verdict.REJECTED
        and evidence.covers_through == attempt.ordinal
        and evidence.source is not EvidenceSource.WEBHOOK
    )


def _conclusive(timeline: Timeline, evidence: EvidenceRecord, at: datetime) -> bool:
    """Whether this evidence of absence speaks the last word on the attempts that it covers."""
    policy = timeline.policy
    if evidence.verdict is not Verdict.NOT_COMMITTED:
        return False
    if evidence.source is EvidenceSource.TRANSACTION:
        return True
    by_operator = evidence.source is EvidenceSource.OPERATOR
    transactional = policy.safety is SafetyClass.TRANSACTIONAL
    if evidence.source is EvidenceSource.WEBHOOK or (transactional and not by_operator):
        return False
    doubted = any(
        other.verdict is Verdict.MISMATCH and other.began_at >= evidence.began_at
        for other in timeline.evidence
    )
    bound = policy.settlement_bound_seconds
    if bound is None and by_operator:
        bound = 0.0
    covered = [
        _ends_at(timeline, a)
        for a in timeline.attempts
        if a.ordinal <= evidence.covers_through and a.outcome is not Outcome.NOT_SENT
    ]
    if doubted or bound is None or not covered:
        return False
    restarted_at = timeline.restarted_at(at)
    settled_at = max(covered if restarted_at is None else [*covered, restarted_at])
    return evidence.began_at > settled_at + timedelta(seconds=bound)


def _ends_at(timeline: Timeline, attempt: Attempt) -> datetime:
    """The latest moment at which the attempt may still put bytes on the wire."""
    margin = timedelta(seconds=timeline.policy.clock_margin_seconds)
    return attempt.recorded_at or attempt.deadline_at + margin
