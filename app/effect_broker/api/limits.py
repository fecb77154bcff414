"""How many requests one caller may make, in bounded memory, by a clock that never goes back.

Two limits, each of this process alone. A tenant's requests are counted after the key is known and
before the body is read, so that one tenant's burst costs the others nothing but that. Keys that are
refused are counted by the address they come from. Nobody guesses 256 random bits, however often
they try; this limit is for the database, which is asked for each new one.

Many callers may share an address, behind a proxy or a gateway. So the same refused key again counts
for that key alone, and whoever has shown a good key to this process is never held up by strangers.
"""

from __future__ import annotations

import hashlib
import ipaddress
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from uuid import UUID

from effect_broker.clock import SystemClock
from effect_contracts.errors import RateLimited

# Refused keys at once, and how many come back in a second.
REFUSED_BURST: Final = 20
REFUSED_PER_SECOND: Final = 1.0

# Of each kind: some hundred bytes each. The one that was used longest ago leaves first, and would
# begin anew with a full bucket.
BUCKETS_MAX: Final = 10_000

# An IPv6 client has at least such a network for itself.
_IPV6_PREFIX_BITS: Final = 64


@dataclass(slots=True)
class Bucket:
    """Tokens that come back with time."""

    left: float
    at_seconds: float

    def wait(self, now: float, burst: float, per_second: float) -> float:
        """Return 0 if there is a token, or the seconds until there is one."""
        self.left = min(burst, self.left + (now - self.at_seconds) * per_second)
        self.at_seconds = now
        return 0.0 if self.left >= 1 else (1 - self.left) / per_second

    def take(self, now: float, burst: float, per_second: float) -> float:
        """Take one; return 0, or the seconds until there is one."""
        wait = self.wait(now, burst, per_second)
        if not wait:
            self.left -= 1
        return wait


class Buckets:
    """A bucket for each of many, at most `buckets_max` of them."""

    def __init__(self, burst: float, per_second: float, buckets_max: int = BUCKETS_MAX) -> None:
        assert burst >= 1
        assert per_second > 0
        self._burst = burst
        self._per_second = per_second
        self._max = buckets_max
        self._buckets: OrderedDict[Hashable, Bucket] = OrderedDict()

    def __contains__(self, name: Hashable) -> bool:
        return name in self._buckets

    def __len__(self) -> int:
        return len(self._buckets)

    def wait(self, name: Hashable, now: float) -> float:
        """Return the seconds until there is a token, and take none."""
        bucket = self._buckets.get(name)
        return 0.0 if bucket is None else bucket.wait(now, self._burst, self._per_second)

    def take(self, name: Hashable, now: float) -> float:
        """Take a token; return 0, or the seconds until there is one."""
        bucket = self._buckets.setdefault(name, Bucket(self._burst, now))
        self._buckets.move_to_end(name)
        while len(self._buckets) > self._max:
            self._buckets.popitem(last=False)
        return bucket.take(now, self._burst, self._per_second)


class RequestLimits:
    """Counts the requests of tenants, and the keys that are refused.

    Args:
        per_second: requests of one tenant; None for no limit.
        burst: of one tenant at once; None for twice `per_second`.
        boot_seconds: a clock that never goes back.
    """

    def __init__(
        self,
        per_second: float | None = None,
        burst: int | None = None,
        boot_seconds: Callable[[], float] | None = None,
    ) -> None:
        self._now = boot_seconds or SystemClock().boot_seconds
        self._tenants = (
            None if per_second is None else Buckets(burst or max(1.0, 2 * per_second), per_second)
        )
        self._addresses = Buckets(REFUSED_BURST, REFUSED_PER_SECOND)
        self._keys = Buckets(REFUSED_BURST, REFUSED_PER_SECOND)

    def admit(self, tenant_id: UUID) -> None:
        """Count a request of a tenant.

        Raises:
            RateLimited.
        """
        if self._tenants is not None:
            _refuse_for(self._tenants.take(tenant_id, self._now()))

    def check_address(self, host: str | None, api_key: str, *, seen_good: bool) -> None:
        """See that a key may be asked for.

        Args:
            seen_good: this process has served the key before.

        Raises:
            RateLimited: it was refused too often, or too many others from this address were.
        """
        address, now = address_of(host), self._now()
        wait = self._keys.wait((address, _digest(api_key)), now)
        if not seen_good:
            wait = max(wait, self._addresses.wait(address, now))
        _refuse_for(wait)

    def count_refused(self, host: str | None, api_key: str) -> None:
        """Count a key that was refused."""
        address, now = address_of(host), self._now()
        name = (address, _digest(api_key))
        if name not in self._keys:
            self._addresses.take(address, now)
        self._keys.take(name, now)


# Each request asks; few addresses ask at a time.
@lru_cache(maxsize=1024)
def address_of(host: str | None) -> str:
    """Return what one client has: an IPv4 address, or the network of an IPv6 address."""
    try:
        address = ipaddress.ip_address((host or "").partition("%")[0])
    except ValueError:
        return host or ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _IPV6_PREFIX_BITS), strict=False))


def _digest(api_key: str) -> bytes:
    # No key is kept, not even a wrong one: it may be right elsewhere.
    return hashlib.sha256(api_key.encode(errors="surrogateescape")).digest()


def _refuse_for(wait_seconds: float) -> None:
    if wait_seconds > 0:
        raise RateLimited(retry_after_seconds=math.ceil(wait_seconds))
