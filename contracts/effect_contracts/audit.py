"""The look-up after the end: when a settled effect is counted at its target once more.

A reconcilable effect is sent again on a look-up's word that it does not exist. If the look-up was
wrong, the target holds two objects and the effect has long been settled. So a settlement that
followed a redispatch owes one later look-up, which counts. It settles nothing and repairs nothing:
two objects are an alert for a person.

The look-up may also have been right, and too early: a process that was stopped behind its last gate
sends when it goes on, however long after the end that is. Its late word owes a count of its own.

Waits are measured in settlement bounds. A look-up that shows an object later than declared is the
very fault that is sought, so the first count waits for several bounds, and a count that saw less
than the effect is asked for again, each time after as long as has passed since the last attempt.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from effect_contracts.decide import settled_by
from effect_contracts.facts import EffectState, Facts, Policy, SafetyClass, Verdict

# Our own choice, there is no standard: four bounds forgive a target that is a few times slower
# than it declared; after 128 of them nobody would call it the same promise any more.
FIRST_COUNT_BOUNDS: Final = 4
LAST_COUNT_BOUNDS: Final = 128
# For contracts that declare next to nothing as their bound.
_BOUND_SECONDS_MIN: Final = 0.5


def first_count_at(
    facts: Facts, policy: Policy, state: EffectState, now: datetime
) -> datetime | None:
    """Return when an effect that settles at `now` is to be counted; None where it need not be.

    It is owed by a reconcilable effect of which more than one attempt may have been sent, whether
    it has succeeded or failed: a refusal of the second says nothing of the first.
    """
    if policy.safety is not SafetyClass.RECONCILABLE or not policy.probes:
        return None
    if state not in {EffectState.SUCCEEDED, EffectState.FAILED_FINAL}:
        return None
    if _sent(facts) < 2:
        return None
    return now + timedelta(seconds=FIRST_COUNT_BOUNDS * _bound_seconds(policy))


def late_count_at(
    facts: Facts, policy: Policy, state: EffectState, now: datetime
) -> datetime | None:
    """Return when to count a final effect of which an attempt says at `now` that it may have sent.

    None where that changes nothing: of a success that was sent once there is one object at most.
    A failure has none, whoever proved it, so that one request is enough to speak against it.
    """
    if policy.safety is not SafetyClass.RECONCILABLE or not policy.probes:
        return None
    least = {EffectState.SUCCEEDED: 2, EffectState.FAILED_FINAL: 1}.get(state)
    if least is None or _sent(facts) < least:
        return None
    return now + timedelta(seconds=FIRST_COUNT_BOUNDS * _bound_seconds(policy))


def is_count(facts: Facts, policy: Policy, began_at: datetime) -> bool:
    """Whether an observation that began then is late enough to count after the end.

    No effect of another class is counted: what a look-up of it says after the end is a late fact.
    """
    if policy.safety is not SafetyClass.RECONCILABLE or not policy.probes:
        return False
    settled_at = settled_by(facts.attempts, policy)
    first = timedelta(seconds=FIRST_COUNT_BOUNDS * _bound_seconds(policy))
    return settled_at is not None and began_at >= settled_at + first


def next_count_at(
    facts: Facts, policy: Policy, state: EffectState, seen: Verdict, now: datetime
) -> datetime | None:
    """Return when to count again after a count that showed `seen`; None if it was the last."""
    fewer = state is EffectState.SUCCEEDED and seen is Verdict.NOT_COMMITTED
    if seen is not Verdict.UNKNOWN and not fewer:
        return None
    settled_at = settled_by(facts.attempts, policy)
    assert settled_at is not None, "only an effect that may have been sent is counted"
    passed = now - settled_at
    if passed > timedelta(seconds=LAST_COUNT_BOUNDS * _bound_seconds(policy)):
        return None
    return now + passed


def _sent(facts: Facts) -> int:
    return sum(a.may_have_sent for a in facts.attempts)


def _bound_seconds(policy: Policy) -> float:
    return max(policy.settlement_bound_seconds or 0.0, _BOUND_SECONDS_MIN)
