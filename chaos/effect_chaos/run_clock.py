"""The time of a run: it stands still while the world can do nothing.

Callers and faults are paced by it. A machine that is busy with other things needs many seconds to
bring a killed process back; without this, most of a schedule would fall on a world in which nobody
works, and would prove nothing. An outage that a fault makes on purpose is time like any other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

_TICK_SECONDS: Final = 0.05
STANDSTILL_SECONDS: Final = 60.0
"""How long it stands at most; then the run goes on, and shows what never came back."""


class RunClock:
    """Seconds since the begin of the work, without those in which the world was not able.

    Args:
        able: whether anybody can work now.
    """

    def __init__(self, able: Callable[[], bool]) -> None:
        self.elapsed_seconds = 0.0
        self._able = able
        self._ticked = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def start(self) -> None:
        """Begin at zero."""
        self._thread.start()

    def stop(self) -> None:
        """End; whoever waits is let go."""
        with self._ticked:
            self._ended = True
            self._ticked.notify_all()
        self._thread.join()

    def wait_until(self, at_seconds: float) -> bool:
        """Wait for a moment of the run; False if the run ended before."""
        with self._ticked:
            self._ticked.wait_for(lambda: self._ended or self.elapsed_seconds >= at_seconds)
            return not self._ended

    def _tick(self) -> None:
        before = time.monotonic()
        stood_seconds = 0.0
        while True:
            time.sleep(_TICK_SECONDS)
            now = time.monotonic()
            passed, before = now - before, now
            able = self._able()
            stood_seconds = 0.0 if able else stood_seconds + passed
            with self._ticked:
                if self._ended:
                    return
                if able or stood_seconds > STANDSTILL_SECONDS:
                    self.elapsed_seconds += passed
                    self._ticked.notify_all()
