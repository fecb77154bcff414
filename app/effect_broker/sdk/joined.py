"""Transactions of the caller's own, as the client sees them, and the door to Postgres.

What lies behind the door loads the broker's own parts and a database driver; it is opened for
whoever asks for it, so that a caller over HTTP loads neither.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from effect_broker.sdk.errors import Closed, NotConfigured
from effect_broker.sdk.results import Effect
from effect_broker.sdk.transport import Home, Transport

if TYPE_CHECKING:
    from effect_broker.direct import Joining

T = TypeVar("T")

KeyRingSource: TypeAlias = str | os.PathLike[str] | None
"""The file of a key ring, or the document itself; None for the one that the environment names."""


@dataclass(frozen=True, slots=True)
class Transacted(Generic[T]):
    """What `transact` has found or done.

    Attributes:
        effect: as it stands in the transaction.
        first: the key was new, so the body has run; otherwise `effect` is what stood already.
        value: what the body has returned, None where it has not run.
    """

    effect: Effect
    first: bool
    value: T | None


class Joins:
    """What one client needs to join transactions; made at the first one.

    Args:
        transport: tells where the client is at home.
    """

    def __init__(self, transport: Transport, key_ring: KeyRingSource = None) -> None:
        self._transport = transport
        self._key_ring = key_ring
        self._joining: Joining | None = None
        self._home: Home | None = None

    async def home(self) -> Home | None:
        """Return where the client's own calls go, None where that is not known.

        Raises:
            Unavailable, AccessRefused, NotConfigured.
        """
        if self._home is None:
            self._home = await self._transport.home()
        return self._home

    async def submit(self, connection: object, body: bytes, *, loop: bool) -> Effect:
        """Submit inside the transaction of `connection`; without a loop it never waits.

        Raises:
            NotJoined, RunAgain, NotConfigured, and as a submit.
        """
        return await self._opened().submit(connection, body, self._home, loop=loop)

    async def transact(
        self,
        connection: object,
        body: bytes,
        external_id: str | None,
        carried_out: Callable[[], Awaitable[T]],
        *,
        loop: bool,
    ) -> Transacted[T]:
        """Carry an effect out inside the transaction of `connection`, if its key is new.

        Raises:
            As `submit`, and what `carried_out` raises.
        """
        return await self._opened().transact(
            connection, body, self._home, external_id, carried_out, loop=loop
        )

    def _opened(self) -> Joining:
        if self._joining is None:
            from effect_broker.direct import Joining, ring_for, settings_for

            self._joining = Joining(ring_for(settings_for(None), self._key_ring))
        return self._joining


def postgres_transport(
    url: str | None, api_key: str, key_ring: KeyRingSource, answer_seconds: float
) -> Transport:
    """Return the transport that serves calls from the database, in this process.

    Raises:
        NotConfigured.
    """
    if answer_seconds <= 0:
        raise NotConfigured("The time for an answer has to be more than nothing.")
    from effect_broker.direct import PostgresTransport, ring_for, settings_for

    settings = settings_for(url)
    ring = ring_for(settings, key_ring)
    return PostgresTransport(settings, ring, api_key, answer_seconds=answer_seconds)


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run work that never waits for a loop, in the thread that owns the connection.

    Raises:
        What the work raises.
    """
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise Closed("A synchronous call has waited for an event loop; nothing is known of it.")
