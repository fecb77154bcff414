"""API keys on every request: a hot key does not cost a round trip each time.

Owns how long an answer about a key may be used again. A key that is revoked or has expired, a
tenant that is disabled and a key that is new are seen after `CACHE_SECONDS` at the latest, counted
from before the database was asked. Keys themselves are never kept, only their SHA-256, by which
they are also found: what takes time on a wrong key is looking up a hash, which tells nothing of
the key.

Unknown keys are remembered apart from known ones, so that a flood of invented keys can push out
each other only. An outage of the database is remembered by nobody.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Final, Protocol, TypeAlias

from effect_broker.clock import SystemClock
from effect_broker.intake import Tenant
from effect_contracts.errors import AccessError

# The promise to an operator who revokes a leaked key. A hot key costs one look-up in this time.
CACHE_SECONDS: Final = 2.0

# Entries of each kind: some hundred bytes each.
_ENTRIES_MAX: Final = 10_000

_Answer: TypeAlias = Tenant | AccessError


class KeySource(Protocol):
    """Where keys are known for certain (`effect_broker.store.tenants.Authentication`)."""

    async def tenant(self, api_key: str) -> Tenant:
        """Return whom the key belongs to.

        Raises:
            Unauthenticated, TenantDisabled, StoreError.
        """


class CachedAuthentication:
    """Finds the tenant of an API key, from memory while that is fresh.

    Args:
        source: asked when memory has no answer; once for all requests that wait for it.
        boot_seconds: a clock that never goes back.
    """

    def __init__(
        self,
        source: KeySource,
        *,
        boot_seconds: Callable[[], float] | None = None,
        cache_seconds: float = CACHE_SECONDS,
        entries_max: int = _ENTRIES_MAX,
    ) -> None:
        self._source = source
        self._boot_seconds = boot_seconds or SystemClock().boot_seconds
        self._cache_seconds = cache_seconds
        self._known = _Remembered(entries_max)
        self._refused = _Remembered(entries_max)
        self._asking: dict[bytes, asyncio.Task[_Answer]] = {}

    async def tenant(self, api_key: str) -> Tenant:
        """Return whom the key belongs to.

        Raises:
            Unauthenticated: no such key, revoked or expired. TenantDisabled: known, and not served.
            StoreError: nothing is known.
        """
        digest = _digest_of(api_key)
        fresh_from = self._boot_seconds() - self._cache_seconds
        answer = self._known.recall(digest, fresh_from) or self._refused.recall(digest, fresh_from)
        if answer is None:
            answer = await self._asked(digest, api_key)
        if isinstance(answer, Tenant):
            return answer
        # A new one each time: a raised exception collects the frames of whoever raised it.
        raise copy(answer)

    def has_served(self, api_key: str) -> bool:
        """Whether the key was a good one when it was asked for last, however long ago."""
        return self._known.holds(_digest_of(api_key))

    async def _asked(self, digest: bytes, api_key: str) -> _Answer:
        """Ask the source, together with every other request for this key that waits now."""
        task = self._asking.get(digest)
        if task is None:
            task = asyncio.create_task(self._ask(digest, api_key))
            self._asking[digest] = task
            task.add_done_callback(partial(self._answered, digest))
        # A request that goes away must not take the answer from the others.
        return await asyncio.shield(task)

    def _answered(self, digest: bytes, task: asyncio.Task[_Answer]) -> None:
        self._asking.pop(digest, None)
        if not task.cancelled():
            task.exception()  # seen, also where every request that waited has gone away

    async def _ask(self, digest: bytes, api_key: str) -> _Answer:
        asked_at = self._boot_seconds()
        try:
            tenant = await self._source.tenant(api_key)
        except AccessError as refusal:
            self._known.forget(digest)
            self._refused.remember(digest, asked_at, refusal)
            return refusal
        self._refused.forget(digest)
        self._known.remember(digest, asked_at, tenant)
        return tenant


class _Remembered:
    """Answers by digest, the oldest ones leaving first when there are too many."""

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._entries: OrderedDict[bytes, tuple[float, _Answer]] = OrderedDict()

    def recall(self, digest: bytes, fresh_from: float) -> _Answer | None:
        entry = self._entries.get(digest)
        return entry[1] if entry is not None and entry[0] > fresh_from else None

    def remember(self, digest: bytes, asked_at: float, answer: _Answer) -> None:
        self._entries[digest] = (asked_at, answer)
        self._entries.move_to_end(digest)
        while len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)

    def holds(self, digest: bytes) -> bool:
        return digest in self._entries

    def forget(self, digest: bytes) -> None:
        self._entries.pop(digest, None)


def _digest_of(api_key: str) -> bytes:
    return hashlib.sha256(api_key.encode()).digest()
