"""How long the target keeps our key: the time in which sending again is a replay and not a second
effect."""

from __future__ import annotations

from datetime import datetime, timedelta

from effect_contracts.facts import Attempt, Policy


def key_expires_at(attempts: tuple[Attempt, ...], policy: Policy) -> datetime | None:
    """Return when the target may forget our key: its retention, from the first use of the key.

    None where the contract states no retention, and where nothing may have been sent yet.
    """
    first = min((a.started_at for a in attempts if a.may_have_sent), default=None)
    if first is None or policy.key_retention_seconds is None:
        return None
    return first + timedelta(seconds=policy.key_retention_seconds)


def latest_start_at(attempts: tuple[Attempt, ...], policy: Policy) -> datetime | None:
    """Return when a whole attempt has to begin at the latest, to arrive while our key is known.

    None where the key has no end.
    """
    expires_at = key_expires_at(attempts, policy)
    if expires_at is None:
        return None
    whole = policy.attempt_deadline_seconds + policy.clock_margin_seconds + policy.transit_seconds
    return expires_at - timedelta(seconds=whole)
