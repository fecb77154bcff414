"""A child process of `up` that is started again when it ends, after growing pauses."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from effect_broker.cli.output import complain
from effect_broker.clock import SystemClock
from effect_broker.proof.stack import ManagedProcess
from effect_contracts.backoff import exponential_seconds

# What has ended a child may last for a while. One that was ready and has lived for so long starts
# with the short pause again; one that ends at once this often has a reason, which is in its log.
PAUSE_SECONDS: Final = 0.5
PAUSE_CAP_SECONDS: Final = 10.0
LIVED_SECONDS: Final = 30.0
RESTARTS_MAX: Final = 5


class Kept:
    """One child and its successors.

    Args:
        start: starts it; returns without waiting until it is ready.
        pause_seconds: before the first restart of a series.
    """

    def __init__(
        self, start: Callable[[], ManagedProcess], pause_seconds: float = PAUSE_SECONDS
    ) -> None:
        self._start = start
        self._pause_seconds = pause_seconds
        self._clock = SystemClock()
        self._started_at_seconds = 0.0
        self._again_at_seconds: float | None = None
        self._failures = 0
        self.process = self._begun()

    def look(self) -> None:
        """See to it that the child runs; call it every now and then.

        Raises:
            SystemExit: it has ended too often to be started again; the reason was printed.
        """
        now = self._clock.boot_seconds()
        if self._again_at_seconds is not None:
            if now >= self._again_at_seconds:
                self._again_at_seconds = None
                before, self.process = self.process.name, self._begun()
                _say(f"{before} is gone, and {self.process.name} takes its place")
        elif not self.process.alive:
            self._ended(now)

    def _begun(self) -> ManagedProcess:
        self._started_at_seconds = self._clock.boot_seconds()
        with deaf_to_the_terminal():
            return self._start()

    def _ended(self, now: float) -> None:
        lived = self.process.ready and now - self._started_at_seconds >= LIVED_SECONDS
        self._failures = 1 if lived else self._failures + 1
        text = f"{self.process.name} has ended (exit {self.process.wait_ended()})"
        if self._failures > RESTARTS_MAX:
            complain(
                f"{text}, {self._failures} times in a row soon after its start; "
                f"see {self.process.log}"
            )
        pause = exponential_seconds(self._failures - 1, self._pause_seconds, 2.0, PAUSE_CAP_SECONDS)
        self._again_at_seconds = now + pause
        _say(f"{text}, see {self.process.log}; it is started again in {pause:g} s")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def deaf_to_the_terminal() -> Iterator[None]:
    """Children that are started inside never get Ctrl-C or the terminal's end themselves.

    A blocked signal stays blocked over fork and exec. With the whole group told at once, the
    target would go while a worker is still sending to it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
