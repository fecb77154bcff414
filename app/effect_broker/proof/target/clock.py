"""Owns the target's clock, the one place where it reads the time.

The clock can be moved forward (`TargetClock.advance`), so that key retention and search lag are
tested without waiting for them. It is never moved back.
"""

from __future__ import annotations

import time


class TargetClock:
    """Wall time in seconds since the epoch, plus what tests have added to it."""

    __slots__ = ("_ahead_seconds",)

    def __init__(self) -> None:
        self._ahead_seconds = 0.0

    def now(self) -> float:
        return time.time() + self._ahead_seconds

    def monotonic(self) -> float:
        """CLOCK_MONOTONIC, comparable with other processes of this machine; never moved."""
        return time.monotonic()

    def advance(self, seconds: float) -> None:
        assert seconds >= 0, "the target's clock does not go back"
        self._ahead_seconds += seconds

    def reset(self) -> None:
        self._ahead_seconds = 0.0
