"""How hard a contract lets its target be driven: places, the rate, and the turns of those who wait.

Two things are kept apart. What may be sent now is judged by the open attempts and by the rate that
was really used (the generic cell rate algorithm, GCRA), whoever asks and however late. When to ask
again is a turn: each effect that does not fit gets a moment of its own, one gap after the turn
before, so that a backlog comes back one by one. A turn that nobody takes costs its moment and
nothing else, and no number of turns permits anything.

Each tenant has a row of turns of its own. While several wait, each one's turns are that many gaps
apart: a single effect does not wait behind another tenant's thousands. A row is never longer than
those who stand in it: whoever was withdrawn, or has expired, makes nobody wait.

Each effect is judged by the numbers of its own contract version. What a version with a lower rate
was granted holds up one with a higher rate for no longer than its own burst would.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import ceil
from typing import Final

# Between two turns for want of a place. An attempt may take longer, above all where the target
# hangs; then some come in vain, a few each second, and none of them is late once it works again.
GAP_SECONDS_MAX: Final = 0.25
# The clock's resolution would do; nothing is granted so fast, since each grant is a commit.
_GAP_SECONDS_MIN: Final = 0.001
# How long an attempt is taken to need while none of this contract has ended.
_HOLD_SECONDS_FIRST: Final = 0.1
# The weight of what was seen last.
_HOLD_WEIGHT: Final = 0.2
# Who has come in vain for want of a place comes again in this part of a gap: others have their
# turns in between, and a place that is free is worth more than a look in vain.
_AGAIN_SHARE: Final = 0.5
# Where a grant leaves room, the row is thinner than the target permits: its turns were given while
# the target hung, or others have left it. Each grant then wakes so many, who wake others, until it
# is full again; more would come in vain.
_WAKES_MAX: Final = 2
# Nothing was sent for so long and nothing is open: those who have turns do not come.
_IDLE_SECONDS: Final = 2.0
_IDLE_GAPS: Final = 4
# A burst that nobody has named: what the rate allows in this time.
_BURST_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Limits:
    """What a contract permits at its target, over all workers and tenants; None: no such limit.

    Attributes:
        concurrency_max: attempts that are open at once.
        per_second_max: attempts begun per second, over any time.
        burst_max: so many may begin at once after a quiet time. Any span of t seconds sees at most
            `per_second_max * t + burst_max` of them.
    """

    concurrency_max: int | None = None
    per_second_max: float | None = None
    burst_max: int = 1


@dataclass(frozen=True, slots=True)
class Pace:
    """What is known of a limited target and of one tenant's turns, under the target's lock.

    Attributes:
        open_attempts: attempts within their deadline whose outcome nobody has recorded.
        open_seconds: how long these have been open, on average.
        ended_seconds: how long those took that have ended since the last look, on average.
        hold_seconds: how long an attempt takes, as it is estimated; None before the first end.
        granted_at: when an attempt was last granted.
        rate_at: when the rate has room again for all that was granted (GCRA's theoretical time), by
            the numbers of whoever was granted it.
        turns_at: the last turn that was given to this tenant.
        again_at: the last turn that was given to those of this tenant whose turn came in vain.
        others: other tenants who have turns to come.
        waiting: this tenant's effects that have a turn to come; None where nobody has counted them,
            or they are many.
    """

    open_attempts: int = 0
    open_seconds: float = 0.0
    ended_seconds: float | None = None
    hold_seconds: float | None = None
    granted_at: datetime | None = None
    rate_at: datetime | None = None
    turns_at: datetime | None = None
    again_at: datetime | None = None
    others: int = 0
    waiting: int | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """The answer to whoever would send: now where `turn_at` is None, else when to ask again.

    Attributes:
        after: the pace that this leaves.
        wakes: so many of the tenant's effects whose turns are far away may come now: there is room.
    """

    turn_at: datetime | None
    after: Pace
    wakes: int = 0


def burst_of(per_second_max: float) -> int:
    """Return the burst of a rate that comes without one; at least one, as every rate is above 0."""
    return ceil(per_second_max * _BURST_SECONDS)


def place(limits: Limits, pace: Pace, now: datetime, *, waited: bool) -> Place:
    """Give a place at the target, or a turn.

    Whoever has waited for a turn goes before whoever has not, within one tenant.

    Args:
        waited: a turn was given to this effect before, and has come.
    """
    known = replace(pace, ended_seconds=None, hold_seconds=_hold_seconds(pace), waiting=None)
    gap = _gap_seconds(limits, known)
    room_at = _room_at(limits, known, now)
    free = limits.concurrency_max is None or known.open_attempts < limits.concurrency_max
    idle = _idle(known, now, gap)
    spread = timedelta(seconds=gap * (1 + known.others))
    turns_at = _last_turn(None if idle else known.turns_at, pace.waiting, now, spread)
    if free and room_at <= now and (waited or turns_at <= now):
        if idle and not waited:  # those who have turns do not come: the row begins anew
            known = replace(known, turns_at=None)
        after = _granted(limits, known, now)
        return Place(None, after, 0 if pace.waiting == 0 else _wakes(limits, after, now))
    if waited:
        if not free:
            spread = timedelta(seconds=gap * _AGAIN_SHARE * (1 + known.others))
        again_at = _last_turn(known.again_at, pace.waiting, now, spread)
        turn_at = max(again_at + spread, room_at)
        return Place(turn_at, replace(known, again_at=turn_at))
    turn_at = max(turns_at + spread, room_at)
    return Place(turn_at, replace(known, turns_at=turn_at))


def _last_turn(
    given_at: datetime | None, waiting: int | None, now: datetime, spread: timedelta
) -> datetime:
    """Return after which turn the next one comes: now, where nobody waits."""
    if given_at is None or given_at <= now:
        return now
    return given_at if waiting is None else min(given_at, now + waiting * spread)


def _granted(limits: Limits, pace: Pace, now: datetime) -> Pace:
    known_at = None if _clock_went_back(pace, now) else pace.rate_at
    if limits.per_second_max is not None:
        own_at = max(_rate_at(limits, pace, now) or now, now) + _interval(limits.per_second_max)
        known_at = own_at if known_at is None else max(known_at, own_at)
    return replace(pace, granted_at=now, rate_at=known_at)


def _wakes(limits: Limits, after: Pace, now: datetime) -> int:
    """Return how many of those who wait are woken, now that an attempt was granted."""
    spare = _WAKES_MAX
    if limits.concurrency_max is not None:
        spare = min(spare, limits.concurrency_max - after.open_attempts - 1)
    return max(spare, 0) if _room_at(limits, after, now) <= now else 0


def _clock_went_back(pace: Pace, now: datetime) -> bool:
    """Whether what is kept is of a time that is still to come. It says nothing of this one then."""
    return pace.granted_at is not None and pace.granted_at > now


def _interval(per_second_max: float) -> timedelta:
    return timedelta(seconds=1 / per_second_max)


def _rate_at(limits: Limits, pace: Pace, now: datetime) -> datetime | None:
    """Return when the rate has room for a whole burst again, by the numbers of these limits.

    By these, the grants so far took no more than a burst from the latest of them on. What is kept
    may say more than that, where a version with a lower rate was granted one.
    """
    if limits.per_second_max is None or pace.rate_at is None or _clock_went_back(pace, now):
        return None
    if pace.granted_at is None:
        return pace.rate_at
    burst = limits.burst_max * _interval(limits.per_second_max)
    return min(pace.rate_at, pace.granted_at + burst)


def _room_at(limits: Limits, pace: Pace, now: datetime) -> datetime:
    """Return the earliest moment at which the rate permits another attempt."""
    rate_at = _rate_at(limits, pace, now)
    if limits.per_second_max is None or rate_at is None:
        return now
    tolerance = (limits.burst_max - 1) / limits.per_second_max
    return max(now, rate_at - timedelta(seconds=tolerance))


def _gap_seconds(limits: Limits, pace: Pace) -> float:
    """Return the time from one turn to the next of all tenants together."""
    gap = _GAP_SECONDS_MIN
    if limits.concurrency_max is not None:
        hold = pace.hold_seconds if pace.hold_seconds is not None else _HOLD_SECONDS_FIRST
        # What is open for long already tells of a target that has become slow, or hangs.
        gap = max(gap, min(max(hold, pace.open_seconds) / limits.concurrency_max, GAP_SECONDS_MAX))
    if limits.per_second_max is not None:
        gap = max(gap, 1 / limits.per_second_max)
    return gap


def _hold_seconds(pace: Pace) -> float | None:
    seen, known = pace.ended_seconds, pace.hold_seconds
    if seen is None:
        return known
    return seen if known is None else known + _HOLD_WEIGHT * (seen - known)


def _idle(pace: Pace, now: datetime, gap: float) -> bool:
    if pace.open_attempts or pace.granted_at is None:
        return False
    return pace.granted_at < now - timedelta(seconds=max(_IDLE_SECONDS, _IDLE_GAPS * gap))
