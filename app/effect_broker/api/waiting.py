"""Long polls: one question for all of them at a time, whoever waits for what.

A poll of its own for every waiting request would starve the others of connections. Here requests
leave a note of what they wait for, and one task of the process asks for all the notes in one
query, again and again while there are any. An outage ends no wait; it only means no news.

A wait holds a connection of its client, and these are few. So a tenant may have a share of the
waits, and all tenants together a share of the connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final, TypeAlias
from uuid import UUID

from effect_broker.log_events import event
from effect_broker.protocol.ports import StoreError
from effect_contracts.errors import RateLimited

_log = logging.getLogger(__name__)

Waited: TypeAlias = tuple[UUID, UUID]
"""A tenant and one of its effects."""

# Common proxies end a request that is silent for a minute; who waits for longer asks again.
WAIT_SECONDS_MAX: Final = 60.0

# Of all connections that a process may have, half may wait, and a quarter for one tenant.
_WAITS_SHARE: Final = 2
_TENANT_SHARE: Final = 4
# What a process has whose connections somebody else counts.
_CONNECTIONS: Final = 1024

# News of an effect is at most this old, and the query that it takes is one of primary keys.
_ROUND_SECONDS: Final = 0.1
# How soon a wait sees that its client has gone or that the process is to end.
_LOOK_SECONDS: Final = 0.5
# A client that was refused comes back when some of the waits have surely ended.
_RETRY_AFTER_SECONDS: Final = 5


class Waits:
    """The long polls of one process.

    Args:
        standing_still: which of these are final or parked (`effect_broker.reading`).
        waits_max: of these at most at a time.
        tenant_waits_max: of these, one tenant's.
    """

    def __init__(
        self,
        standing_still: Callable[[Collection[Waited]], Awaitable[frozenset[Waited]]],
        *,
        waits_max: int,
        tenant_waits_max: int,
    ) -> None:
        self._standing_still = standing_still
        self._waits_max = waits_max
        self._tenant_waits_max = tenant_waits_max
        self._by_tenant: Counter[UUID] = Counter()
        self._waiting: dict[Waited, set[asyncio.Event]] = {}
        self._some = asyncio.Event()

    @classmethod
    def for_connections(
        cls,
        standing_still: Callable[[Collection[Waited]], Awaitable[frozenset[Waited]]],
        connections_max: int | None = None,
    ) -> Waits:
        """Return the waits of a process that may have so many connections."""
        connections = connections_max or _CONNECTIONS
        return cls(
            standing_still,
            waits_max=max(connections // _WAITS_SHARE, 1),
            tenant_waits_max=max(connections // _TENANT_SHARE, 1),
        )

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Ask for all waits while the block runs."""
        task = asyncio.create_task(self._ask())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    @contextmanager
    def place(self, tenant_id: UUID) -> Iterator[None]:
        """Hold a place among the waits during the block.

        Raises:
            RateLimited: the tenant has as many as it may have, or the process has.
        """
        tenants_own = self._by_tenant[tenant_id]
        if tenants_own >= self._tenant_waits_max or self._by_tenant.total() >= self._waits_max:
            raise RateLimited(retry_after_seconds=_RETRY_AFTER_SECONDS)
        self._by_tenant[tenant_id] += 1
        try:
            yield
        finally:
            self._by_tenant[tenant_id] -= 1
            if not self._by_tenant[tenant_id]:
                del self._by_tenant[tenant_id]

    async def until_still(
        self, waited: Waited, seconds: float, given_up: Callable[[], Awaitable[bool]]
    ) -> None:
        """Return once the effect is final or parked, or `seconds` are over, or `given_up` says so.

        It is for whoever holds a `place`.
        """
        still = asyncio.Event()
        self._waiting.setdefault(waited, set()).add(still)
        self._some.set()
        try:
            await _either(still, seconds, given_up)
        finally:
            self._leave(waited, still)

    def _leave(self, waited: Waited, still: asyncio.Event) -> None:
        waiting = self._waiting[waited]
        waiting.discard(still)
        if not waiting:
            del self._waiting[waited]

    async def _ask(self) -> None:
        while True:
            await self._some.wait()
            if not self._waiting:
                self._some.clear()
                continue
            await self._wake(tuple(self._waiting))
            await asyncio.sleep(_ROUND_SECONDS)

    async def _wake(self, waited: tuple[Waited, ...]) -> None:
        try:
            found = await self._standing_still(waited)
        except StoreError:
            return  # no news
        except Exception as error:
            # The waits end with their time then; one bad round must not end all rounds.
            kind = type(error).__name__
            _log.error(
                "unexpected %s while asking for waits",
                kind,
                extra=event("unexpected", problem=kind),
            )
            return
        for one in found:
            for still in self._waiting.get(one, ()):
                still.set()


async def _either(
    still: asyncio.Event, seconds: float, given_up: Callable[[], Awaitable[bool]]
) -> None:
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + seconds
    while (left := ends_at - loop.time()) > 0 and not await given_up():
        with suppress(TimeoutError):
            await asyncio.wait_for(still.wait(), min(left, _LOOK_SECONDS))
            return
