"""Whether an effect that would be sent now has its turn at a target that its contract limits."""

from __future__ import annotations

from datetime import datetime

from effect_contracts.facts import Facts, Policy
from effect_contracts.pacing import Place, place


def turn_of(facts: Facts, policy: Policy, now: datetime) -> datetime | None:
    """Return until when to wait; None where it may be sent, as far as the limits go.

    Without the target's lock only a turn that was given already is known, and whoever has none is
    let try. A first attempt that has to begin before a moment is looked at again then.
    """
    if policy.limits is None:
        return None
    at = facts.turn_at
    if at is None or at <= now:
        found = place_of(facts, policy, now)
        at = None if found is None else found.turn_at
    if at is None or facts.attempts or facts.send_before is None:
        return at
    return min(at, facts.send_before)


def place_of(facts: Facts, policy: Policy, now: datetime) -> Place | None:
    """Return what the target's pace says to this effect; None where there is no limit or no lock.

    Its turn has come, or it has none.
    """
    if policy.limits is None or facts.pace is None:
        return None
    return place(policy.limits, facts.pace, now, waited=facts.turn_at is not None)
