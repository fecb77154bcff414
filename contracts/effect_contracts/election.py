"""Who may perform an effect itself, and for how long: the pure rules of elections.

An election is an attempt that a caller makes. It is granted by the same table as every attempt
(`effect_contracts.decide`), asked as if the broker could send. So a second caller is elected only
where a second request could be sent: never beside an open lease, after one only where the target
de-duplicates by our key or absence is proved, and of an unsafe effect only on the target's own
word. An election proves nothing by itself.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from effect_contracts.decide import Decision, decide
from effect_contracts.facts import Attempt, Facts, Policy, SafetyClass
from effect_contracts.retention import key_expires_at

# How the sender of an attempt is named where it is a caller and no worker.
CALLER_PREFIX = "caller:"


def election_decision(facts: Facts, policy: Policy, now: datetime) -> Decision:
    """Return what is next if a caller stands ready to send; `dispatch` grants the election."""
    return decide(facts, replace(policy, awaits_caller=False), now)


def extended_deadline(
    attempt: Attempt, facts: Facts, policy: Policy, now: datetime
) -> datetime | None:
    """Return until when a lease that is extended now lasts; None where it cannot be.

    A lease that has run out is never revived: its successor may have been elected, or may be any
    moment. An extension lasts one lease from now, and neither beyond what the contract allows one
    election, nor into the time in which the target may have forgotten the key.
    """
    if attempt.outcome is not None or policy.lease_seconds_max is None:
        return None
    if attempt.deadline_at <= now:
        return None
    until = min(
        now + timedelta(seconds=policy.attempt_deadline_seconds),
        attempt.started_at + timedelta(seconds=policy.lease_seconds_max),
    )
    expires_at = key_expires_at(facts.attempts, policy)
    if policy.safety is SafetyClass.IDEMPOTENT and expires_at is not None:
        rest = policy.clock_margin_seconds + policy.transit_seconds
        until = min(until, expires_at - timedelta(seconds=rest))
    return until if until > attempt.deadline_at else None


def sender_actor(executor_id: str) -> str:
    """Return the actor of the events that the sender of an attempt writes."""
    return executor_id if executor_id.startswith(CALLER_PREFIX) else f"worker:{executor_id}"
