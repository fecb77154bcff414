"""The time of a run stands still while nobody can work, and never longer than it may."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from effect_chaos import run_clock
from effect_chaos.run_clock import RunClock

WAIT_SECONDS = 30.0


class Ability:
    """Whether anybody can work, as the test says."""

    def __init__(self) -> None:
        self.able = True
        self._asked = threading.Semaphore(0)

    def __call__(self) -> bool:
        able = self.able
        self._asked.release()
        return able

    def lose(self) -> None:
        """Nobody can work, and the clock knows: the tick that may be under way has ended."""
        self.able = False
        for _ in range(2):  # the second one asks after the first one was counted
            while self._asked.acquire(blocking=False):
                pass
            assert self._asked.acquire(timeout=WAIT_SECONDS)


@pytest.fixture
def ability() -> Ability:
    return Ability()


@pytest.fixture
def clock(ability: Ability) -> Iterator[RunClock]:
    made = RunClock(ability)
    made.start()
    yield made
    made.stop()


def arrived(clock: RunClock, at_seconds: float) -> threading.Event:
    """Set once the clock shows that moment."""
    event = threading.Event()

    def wait() -> None:
        if clock.wait_until(at_seconds):
            event.set()

    threading.Thread(target=wait, daemon=True).start()
    return event


def test_time_goes_on_while_somebody_can_work(ability: Ability) -> None:
    clock = RunClock(ability)
    # Read before the clock begins: then not even a slow machine lets it show more than has passed.
    began_at = time.monotonic()
    clock.start()
    assert clock.wait_until(0.3)
    assert time.monotonic() - began_at >= 0.3
    clock.stop()


def test_time_stands_still_while_nobody_can(clock: RunClock, ability: Ability) -> None:
    assert clock.wait_until(0.1)
    ability.lose()
    stands_at = clock.elapsed_seconds
    later = arrived(clock, stands_at + 0.1)
    assert not later.wait(0.5)
    assert clock.elapsed_seconds == stands_at
    ability.able = True
    assert later.wait(WAIT_SECONDS)


def test_a_world_that_never_comes_back_does_not_hold_the_run(
    clock: RunClock, ability: Ability, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_clock, "STANDSTILL_SECONDS", 0.3)
    ability.able = False
    assert arrived(clock, clock.elapsed_seconds + 0.2).wait(WAIT_SECONDS)


def test_the_end_lets_everyone_go(ability: Ability) -> None:
    clock = RunClock(ability)
    clock.start()
    told: list[bool] = []
    waiting = threading.Thread(target=lambda: told.append(clock.wait_until(3600.0)))
    waiting.start()
    clock.stop()
    waiting.join(WAIT_SECONDS)
    assert told == [False]
