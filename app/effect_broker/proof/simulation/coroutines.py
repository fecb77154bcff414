"""The one place at which a simulated process stands still: `stop`."""

from __future__ import annotations

from collections.abc import Generator
from types import coroutine


@coroutine
def stop(until_seconds: float = 0.0) -> Generator[float, None, None]:
    """Let the scheduler decide when this process goes on, not before the given time."""
    yield until_seconds
