"""How long a caller waits, and how calls are spaced: this file owns every pause of the SDK.

Two clocks are used. A deadline that is a moment is read on the wall clock once and then followed on
one that never goes back. Pauses between looks follow what the effect says of its next action,
judged by the database clock that came with the answer.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Final, Protocol, TypeAlias

from effect_broker.clock import new_id, utc_now
from effect_broker.sdk.errors import NotConfigured, refused
from effect_broker.sdk.results import Effect
from effect_contracts.backoff import exponential_seconds, jittered_seconds
from effect_contracts.errors import InvalidRequest, RequestReason

Deadline: TypeAlias = datetime | timedelta | None
"""Until when a caller waits: a moment with a zone, a time from now, or as long as it takes."""

# What the API takes as `wait`.
POLL_SECONDS: Final = 60.0
# The answer to a long poll has to be on its way before the caller's own time is over.
ANSWER_MARGIN_SECONDS: Final = 0.25

_PAUSE_FIRST_SECONDS: Final = 0.1
_PAUSE_FACTOR: Final = 2.0
# A broker that comes back is found within this time.
_PAUSE_CAP_SECONDS: Final = 5.0
# How old news may get that nobody announces: a webhook, or a person's word, long before the next
# action of the effect is due.
_FAR_CAP_SECONDS: Final = 900.0


class Clock(Protocol):
    """What the SDK needs of time."""

    def boot_seconds(self) -> float:
        """Return seconds of a clock that never goes back."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""


class Until:
    """The moment at which a caller stops to wait; never, without a deadline.

    Raises:
        RequestRefused: the deadline is a moment without a zone, or none at all.
    """

    def __init__(self, deadline: Deadline, clock: Clock) -> None:
        self._clock = clock
        match deadline:
            case None:
                left = math.inf
            case timedelta():
                left = deadline.total_seconds()
            case datetime() if deadline.tzinfo is not None:
                left = (deadline - utc_now()).total_seconds()
            case _:
                raise refused(
                    InvalidRequest(RequestReason.FORMAT, field="/deadline"),
                    "A deadline is a timedelta from now, or a datetime with a time zone.",
                )
        self._at = clock.boot_seconds() + left

    def left_seconds(self) -> float:
        """Return how long is left; 0 after the end, infinity if there is none."""
        return max(0.0, self._at - self._clock.boot_seconds())

    @property
    def over(self) -> bool:
        """Whether nothing can be asked any more that is answered in time."""
        return self.left_seconds() <= ANSWER_MARGIN_SECONDS


def checked_seconds(given: object, name: str) -> float:
    """Return the seconds of a time that a client was made with; a bare number has no unit.

    Raises:
        NotConfigured: it is no timedelta, or less than nothing.
    """
    if not isinstance(given, timedelta) or given < timedelta(0):
        raise NotConfigured(f"`{name}` is a timedelta, such as timedelta(seconds=10).")
    return given.total_seconds()


def pause_seconds(step: int) -> float:
    """Return the pause before the next try; `step` counts the pauses so far."""
    whole = exponential_seconds(step, _PAUSE_FIRST_SECONDS, _PAUSE_FACTOR, _PAUSE_CAP_SECONDS)
    return jittered(whole)


def jittered(seconds: float) -> float:
    """Return between half of `seconds` and all, so that those who wait do not come together."""
    return jittered_seconds(seconds, new_id().int, 0)


def poll_seconds(left_seconds: float) -> float:
    """Return how long the next poll may be held."""
    return max(0.0, min(POLL_SECONDS, left_seconds - ANSWER_MARGIN_SECONDS))


def rest_seconds(effect: Effect, step: int, *, held: bool) -> float:
    """Return the pause before the next look at an effect that goes on.

    Args:
        step: how many looks were answered before their time.
        held: the last poll was held for as long as it was asked to.
    """
    if effect.next_action_at is not None and effect.now is not None:
        due = (effect.next_action_at - effect.now).total_seconds()
        # A poll would be held in vain. Half of the way is looked at again, since what ends an
        # effect early announces itself to nobody.
        if due > POLL_SECONDS:
            return jittered(min(max(due / 2, POLL_SECONDS), _FAR_CAP_SECONDS))
    return 0.0 if held else pause_seconds(step)
