"""One process incarnation of a worker: its identity, its heartbeat's health, and its drain.

A process may dispatch only while its own heartbeats succeed: after a TTL without one its peers
take it for dead and hand its runs on. The health is measured on the boot clock, from the moment
before a beat was sent, so that it never ends later here than it does in the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from effect_broker.clock import SystemClock
from effect_broker.turns import give_up_turn

T = TypeVar("T")

# How often a process that may not dispatch looks whether it may again.
_FIT_POLL_SECONDS = 0.1


class WorkerProcess:
    """The process port of the protocol (`effect_broker.protocol.ports.Process`)."""

    def __init__(self, executor_id: str, clock: SystemClock, ttl_seconds: float) -> None:
        self._executor_id = executor_id
        self._clock = clock
        self._ttl_seconds = ttl_seconds
        self._draining = asyncio.Event()
        self._beat_at_seconds: float | None = None
        self._sends: set[asyncio.Task[object]] = set()

    @property
    def executor_id(self) -> str:
        """Unique for this incarnation."""
        return self._executor_id

    @property
    def draining(self) -> bool:
        """Whether the process has begun to end."""
        return self._draining.is_set()

    def beaten(self, sent_at_seconds: float) -> None:
        """Note that the heartbeat which was sent at this boot-clock reading has committed."""
        self._beat_at_seconds = sent_at_seconds

    def may_dispatch(self) -> bool:
        """False while draining, and while heartbeats have failed for their TTL."""
        if self._draining.is_set() or self._beat_at_seconds is None:
            return False
        return self._clock.boot_seconds() - self._beat_at_seconds < self._ttl_seconds

    async def fit(self) -> None:
        """Wait until this process may dispatch, or has begun to drain.

        A process that cannot beat holds the runs that it has claimed. If it ended them, it would
        claim the next ones the faster, and spoil the runs of all effects for its healthy peers,
        who take over what it holds after the TTL.
        """
        while not self.may_dispatch() and not self.draining:
            await self.rest(_FIT_POLL_SECONDS)

    def drain(self) -> None:
        """Begin to end: no new attempt starts, short waits are cut, sends go on."""
        self._draining.set()

    async def rest(self, seconds: float) -> None:
        """Wait; returns early when the process has begun to drain."""
        give_up_turn()
        try:
            await asyncio.wait_for(self._draining.wait(), seconds)
        except TimeoutError:
            return

    async def complete(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` to its end even if the calling task is cancelled meanwhile.

        What a send has shown must reach the database, whatever the engine does to the run.
        """
        task: asyncio.Task[T] = asyncio.ensure_future(_as_coroutine(work))
        self._sends.add(task)  # the loop itself holds weak references only
        task.add_done_callback(self._sends.discard)
        return await asyncio.shield(task)

    async def sends_ended(self, timeout_seconds: float) -> bool:
        """Wait until no send is under way; False if some are after `timeout_seconds`."""
        if not self._sends:
            return True
        _, pending = await asyncio.wait(set(self._sends), timeout=timeout_seconds)
        return not pending


async def _as_coroutine(work: Callable[[], Awaitable[T]]) -> T:
    return await work()
