"""What must hold for every decision, whatever the table says: the "never" sentences of the design.

Written over the raw facts, without the words of `decide` or of its oracle, and weaker than both:
each promise is a necessary condition, so that a mistake shared by the two still shows here.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from effect_contracts.decide import Action, Decision, Reason
from effect_contracts.facts import (
    CODE_ALREADY_EXISTS,
    Attempt,
    EffectState,
    EvidenceSource,
    Facts,
    Hold,
    Outcome,
    Policy,
    SafetyClass,
    Verdict,
)
from effect_contracts.life import LIFE, LifeEvent

BEFORE_AN_ATTEMPT = (EffectState.PREPARED, EffectState.MANUAL_REVIEW)
AFTER_AN_ATTEMPT = (
    EffectState.DISPATCHING,
    EffectState.RETRYABLE,
    EffectState.OUTCOME_UNKNOWN,
    EffectState.RECONCILING,
    EffectState.MANUAL_REVIEW,
)
_DENIALS = (Outcome.REJECTED, Outcome.NOT_SENT, Outcome.RETRYABLE)
_COUNTS = (EvidenceSource.PROBE, EvidenceSource.OPERATOR, EvidenceSource.TRANSACTION)


def states_of(facts: Facts) -> tuple[EffectState, ...]:
    """Return the states that an effect with these facts can be in before it is final."""
    return AFTER_AN_ATTEMPT if facts.attempts else BEFORE_AN_ATTEMPT


def _last_byte_at(attempt: Attempt, policy: Policy) -> datetime:
    margin = timedelta(seconds=policy.clock_margin_seconds)
    return attempt.recorded_at or attempt.deadline_at + margin


def _denied(attempt: Attempt, facts: Facts, policy: Policy) -> bool:
    """Whether anything at all says that this attempt did not commit, and could know it."""
    if attempt.outcome in _DENIALS:
        return True
    bound = timedelta(seconds=policy.settlement_bound_seconds or 0)
    settled_at = _last_byte_at(attempt, policy) + bound
    for e in facts.evidence:
        if e.source not in _COUNTS:
            continue
        if e.verdict is Verdict.REJECTED and e.covers_through == attempt.ordinal:
            return True
        if e.verdict is Verdict.NOT_COMMITTED and e.covers_through >= attempt.ordinal:
            if e.source is EvidenceSource.TRANSACTION:
                return True
            probe = e.source is EvidenceSource.PROBE
            boundless = policy.settlement_bound_seconds is None
            fenced_only = policy.safety is SafetyClass.TRANSACTIONAL
            if probe and (boundless or fenced_only):
                continue
            if e.began_at > settled_at:
                return True
    return False


def broken_promises(
    facts: Facts, policy: Policy, now: datetime, decision: Decision
) -> Iterator[str]:
    """Yield what the decision breaks; nothing where it keeps every promise."""
    open_ = [a for a in facts.attempts if a.outcome is None]
    within = [a for a in open_ if now < _last_byte_at(a, policy)]
    if decision.lost != tuple(a.ordinal for a in open_ if a not in within):
        yield "lost names exactly the attempts that are open past their deadline"
    if (decision.action is Action.WAIT) != (decision.at is not None):
        yield "a moment belongs to a wait"
    if decision.at is not None and decision.at <= now:
        yield "a wait ends in the future"
    if decision.action is Action.PARK and within:
        yield "nobody is asked while an attempt is open: what it may still tell counts"
    if decision.freezes != _two_objects(facts):
        yield "two objects of one key freeze, and nothing else does"
    for state in states_of(facts):
        if decision.event not in LIFE[state]:
            yield f"{decision.event} is legal from {state}"
    yield from _broken_by_dispatch(facts, policy, now, decision, bool(within))
    yield from _broken_by_settling(facts, policy, now, decision)
    yield from _broken_by_holds(facts, decision)


def _two_objects(facts: Facts) -> bool:
    ids = {
        a.external_id
        for a in facts.attempts
        if a.outcome is Outcome.COMMITTED and a.external_id is not None
    }
    for found in facts.evidence:
        if found.verdict is Verdict.COMMITTED:
            ids.update(found.external_ids)
    return len(ids) > 1


def _broken_by_dispatch(
    facts: Facts, policy: Policy, now: datetime, decision: Decision, within: bool
) -> Iterator[str]:
    dispatches = decision.action is Action.DISPATCH
    if dispatches != (decision.event is LifeEvent.ATTEMPT_STARTED):
        yield "an attempt starts by a dispatch only"
    if dispatches != (decision.ordinal is not None):
        yield "an ordinal belongs to a dispatch"
    if not dispatches:
        return
    attempts = facts.attempts
    outcomes = {a.outcome for a in attempts}
    doubtful = [a for a in attempts if not _denied(a, facts, policy)]
    if decision.ordinal != len(attempts) + 1:
        yield "the next attempt has the next ordinal"
    if len(attempts) >= policy.attempts_max and Outcome.IN_PROGRESS not in outcomes:
        yield "no more attempts than the contract allows"
    if within:
        yield "nothing is sent beside an attempt that may still be sending"
    if outcomes & {Outcome.KEY_CONFLICT, Outcome.PARTIAL, Outcome.COMMITTED}:
        yield "nothing is sent after a commit, a key conflict or a partial result"
    match policy.safety:
        case SafetyClass.UNSAFE:
            if not all(a.outcome in _DENIALS for a in attempts):
                yield "unsafe: sent again only on the target's own word"
        case SafetyClass.RECONCILABLE | SafetyClass.TRANSACTIONAL:
            if doubtful:
                yield "never sent again while an attempt may have committed"
        case SafetyClass.IDEMPOTENT:
            first = min((a.started_at for a in attempts if a.may_have_sent), default=None)
            if doubtful and first is not None:
                kept = timedelta(seconds=policy.key_retention_seconds or 0)
                if now + timedelta(seconds=policy.attempt_deadline_seconds) > first + kept:
                    yield "idempotent: nothing is sent that could outlive the key"


def _broken_by_settling(
    facts: Facts, policy: Policy, now: datetime, decision: Decision
) -> Iterator[str]:
    attempts = facts.attempts
    committed = any(a.outcome is Outcome.COMMITTED for a in attempts) or any(
        e.verdict is Verdict.COMMITTED for e in facts.evidence
    )
    ends_well = decision.event is LifeEvent.COMMIT_PROVED
    ended = facts.failed_by_operator and decision.event is LifeEvent.FAILURE_PROVED
    within = any(a.outcome is None and now < _last_byte_at(a, policy) for a in attempts)
    waits = within and decision.reason is Reason.ATTEMPT_OPEN
    asked = decision.reason is Reason.CONTRACT_VIOLATION or waits
    if committed and not (ends_well or (_two_objects(facts) and (asked or ended))):
        yield "a commit leads to success, or where there are two to a person, once none is open"
    if ends_well and not committed:
        yield "success rests on a commit"
    if ends_well and decision.winner is None:
        yield "a success names what its receipt holds"
    if decision.event is LifeEvent.CANCEL_GRANTED and attempts:
        yield "nothing is cancelled after an attempt"
    if decision.event is not LifeEvent.FAILURE_PROVED or facts.failed_by_operator:
        return
    if not attempts and (facts.send_before is None or now < facts.send_before):
        yield "an effect that was never tried fails only by its own time limit"
    if not all(_denied(a, facts, policy) for a in attempts):
        yield "nothing fails while an attempt may have committed"
    for named in attempts:
        before = attempts[: named.ordinal - 1]
        doubt = any(a.outcome not in _DENIALS for a in before)
        if named.code == CODE_ALREADY_EXISTS and doubt:
            yield '"exists already" after doubt is no failure'


def _broken_by_holds(facts: Facts, decision: Decision) -> Iterator[str]:
    if not facts.holds:
        return
    if decision.action is Action.DISPATCH:
        yield "nothing is sent while the effect is held"
    asks = decision.action is Action.PROBE or (
        decision.action is Action.WAIT and decision.event is not LifeEvent.ATTEMPT_OPEN
    )
    if asks and Hold.TARGET_CHANGED in facts.holds:
        yield "a target that has changed is not even asked"
