"""What callers have begun to say or to ask, and do not wait for any more: it is brought to its end.

A caller may be cancelled while it asks. Whether it was elected is then for the answer to say, and
nobody is there to hear it: the lease would run out with nobody at work, and an effect of an unsafe
contract would end as unknown although nothing was sent. So the question is asked to its end, and an
election that comes of it is told as not sent. The same is done for who has lost its patience with a
broker that may have heard the question: it is asked on for a while, since its caller has the error
and begins nothing any more. A caller may be cancelled while it tells, too: what it knows is told to
its end, since nobody else knows it. A process that dies meanwhile leaves its lease, as one does
that dies at work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from effect_broker.sdk.errors import Body, BrokerError, Closed

# How long a client that is closed waits for what is still to be given back. The answers take
# milliseconds; a broker that is away must not hold up its caller's end.
GIVE_BACK_SECONDS: Final = 4.0

# For how long it is asked on after the caller's patience: leases are of this order, and what is
# told after a lease settles little.
ASK_ON_SECONDS: Final = 60.0

GiveBack = Callable[[Body], Awaitable[None]]


class GivingBack:
    """The questions of one client, and what is told by it; used on its event loop."""

    def __init__(self) -> None:
        self._asked: dict[asyncio.Task[Body], GiveBack] = {}
        self._under_way: set[asyncio.Task[Any]] = set()
        self._ending: asyncio.Future[None] | None = None

    async def answer(self, asking: Coroutine[Any, Any, Body], give_back: GiveBack) -> Body:
        """Return the answer; where nobody waits for it any more, let it be given back.

        Raises:
            Closed: the client was closed before the answer came.
            BrokerError: the question's own.
        """
        ending = self._ending = self._ending or asyncio.get_running_loop().create_future()
        if ending.done():
            asking.close()
            raise Closed("This client is closed.")
        question = asyncio.create_task(asking)
        self._asked[question] = give_back
        try:
            either: set[asyncio.Future[Any]] = {question, ending}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._abandon(question)
            raise
        finally:
            self._asked.pop(question, None)
        if not question.done():
            raise Closed("This client was closed while it asked; nothing is known of the answer.")
        return question.result()

    def ask_on(self, asking: Coroutine[Any, Any, Body], give_back: GiveBack) -> None:
        """Ask what nobody waits for any more, and let be given back what comes of it."""
        self.begin(_give(asyncio.create_task(asking), give_back))

    async def told(self, telling: Coroutine[Any, Any, Body]) -> None:
        """Tell something to its end, also where its caller does not wait for that.

        Raises:
            Closed: the client was closed, and could not wait any longer.
            BrokerError: the telling's own.
        """
        task = self.begin(telling)
        await asyncio.wait({task})
        if task.cancelled():
            raise Closed("This client was closed before the broker answered.")
        task.result()

    def begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin what nobody needs to wait for; the client's end does."""
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._over)
        return task

    async def end(self) -> None:
        """Take no more questions, and wait until all is brought to its end.

        For `GIVE_BACK_SECONDS` at most.
        """
        self._ending = self._ending or asyncio.get_running_loop().create_future()
        if not self._ending.done():
            self._ending.set_result(None)
        for question in [asked for asked in self._asked if not asked.done()]:
            self._abandon(question)
        if self._under_way:
            _, late = await asyncio.wait(self._under_way, timeout=GIVE_BACK_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _abandon(self, question: asyncio.Task[Body]) -> None:
        give_back = self._asked.pop(question, None)
        if give_back is not None:
            self.begin(_give(question, give_back))

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits gets it; where nobody does, it is no news


async def _give(question: asyncio.Task[Body], give_back: GiveBack) -> None:
    # What fails here is no news to anybody: the lease ends by itself.
    with suppress(BrokerError):
        await give_back(await question)
