"""Turns: which of the runs that a worker has claimed may begin now; fair between tenants.

A worker claims more runs than it can compute at once, since most of them wait for targets. If all
of them began at the same time, each would get a little of the processor, and a single effect would
come to its end only when a whole backlog does. So only a few runs are at their beginning at once,
and tenants take turns: whoever comes alone waits for one run of each tenant that waits, however
many runs those have.

A turn lasts from the claim until the run waits for something else, a target or a moment. What
comes back from a wait goes on at once: an answer is not kept waiting for its record. This costs no
statement and no commit; nothing of it is stored.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Final

# Runs at their beginning at once. A run computes for some 20 ms and waits for the database in
# between, so that a few of them, and as many that are in the middle of their sending, keep one
# processor busy. With 8, a single effect took twice as long beside a backlog; with 3 or 4 no less.
TURNS_MAX: Final = 4


class _Turn:
    """The right of one run to be at its beginning."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._held = True

    def give_up(self) -> None:
        if self._held:
            self._held = False
            self._turns.pass_on()


# The run's steps are tasks of their own, which inherit it.
_current: ContextVar[_Turn | None] = ContextVar("effect_broker_turn", default=None)


class Turns:
    """The turns of one process; used on one event loop."""

    def __init__(self, turns_max: int = TURNS_MAX) -> None:
        self._free = turns_max
        # Tenants in the order in which they are served; none is in here without a waiter.
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, tenant_id: str) -> AsyncIterator[None]:
        """Wait for a turn, and hold it until the block ends or the run begins to wait."""
        await self._take(tenant_id)
        turn = _Turn(self)
        token = _current.set(turn)
        try:
            yield
        finally:
            _current.reset(token)
            turn.give_up()

    async def _take(self, tenant_id: str) -> None:
        if self._free:
            self._free -= 1
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant_id, deque()).append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self.pass_on()  # the turn had just come
            raise

    def pass_on(self) -> None:
        """Give a turn to the next tenant's oldest run; for this module alone."""
        while self._waiting:
            tenant_id, waiters = self._waiting.popitem(last=False)
            waiter = waiters.popleft()
            if waiters:
                self._waiting[tenant_id] = waiters  # behind the others
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1


def give_up_turn() -> None:
    """End the turn of the calling run, if it holds one: it begins to wait."""
    turn = _current.get()
    if turn is not None:
        turn.give_up()
