"""Elections that were asked for and that nobody waits for any more: they are given back.

A caller may be cancelled while it asks. Whether it was elected is then for the answer to say, and
nobody is there to hear it: the lease would run out with nobody at work, and an effect of an unsafe
contract would end as unknown although nothing was sent. So the question is asked to its end, and an
election that comes of it is told as not sent. A process that dies meanwhile leaves its lease, as
one does that dies at work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from effect_broker.sdk.errors import Body, BrokerError

# How long a client that is closed waits for what is still to be given back. The answers take
# milliseconds; a broker that is away must not hold up its caller's end.
GIVE_BACK_SECONDS: Final = 4.0


class GivingBack:
    """The questions of one client; used on its event loop."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[None]] = set()

    async def answer(
        self,
        asking: Coroutine[Any, Any, Body],
        give_back: Callable[[Body], Awaitable[None]],
    ) -> Body:
        """Return the answer; where the caller is cancelled before, let it be given back.

        Raises:
            BrokerError: the question's own.
        """
        question = asyncio.create_task(asking)
        try:
            return await asyncio.shield(question)
        except asyncio.CancelledError:
            task = asyncio.create_task(_give(question, give_back))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            raise

    async def end(self) -> None:
        """Wait until all is given back, or for `GIVE_BACK_SECONDS`."""
        if self._under_way:
            _, late = await asyncio.wait(self._under_way, timeout=GIVE_BACK_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


async def _give(question: asyncio.Task[Body], give_back: Callable[[Body], Awaitable[None]]) -> None:
    # What fails here is no news to anybody: the lease ends by itself.
    with suppress(BrokerError):
        await give_back(await question)
