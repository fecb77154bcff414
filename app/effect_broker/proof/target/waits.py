"""Owns the two ways in which the target waits: for a release, and for something to happen.

No polling: `Bulletin` wakes who waits for a change of the ledger, `Holds` keeps requests at a
`hold`, `gate` or `hang` until the control API lets them go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Bulletin:
    """Wakes everyone who waits, each time that something is posted."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def post(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, holds: Callable[[], bool], timeout_seconds: float) -> bool:
        """Wait until `holds()`; false when the time is over."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while not holds():
                    await self._changed.wait()
        except TimeoutError:
            return holds()
        return True


class Holds:
    """The requests that wait for a release, by the name of the hold."""

    def __init__(self, bulletin: Bulletin) -> None:
        self._bulletin = bulletin
        self._waiting: list[tuple[str, asyncio.Event]] = []

    async def wait(self, name: str, seconds: float | None) -> bool:
        """Wait for a release of `name`, at most `seconds`; true if it was released."""
        entry = (name, asyncio.Event())
        self._waiting.append(entry)
        self._bulletin.post()
        try:
            async with asyncio.timeout(seconds):
                await entry[1].wait()
        except TimeoutError:
            return False
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)
            self._bulletin.post()
        return True

    def release(self, name: str | None) -> int:
        """Let go all who wait under `name` (`None`: everyone); returns how many."""
        going = [entry for entry in self._waiting if name in (None, entry[0])]
        for entry in going:
            self._waiting.remove(entry)
            entry[1].set()
        return len(going)

    def held(self, name: str | None = None) -> int:
        return sum(name in (None, each) for each, _ in self._waiting)
