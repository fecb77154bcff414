"""How often somebody may try to sign in, by address and in all, in bounded memory.

A key is 256 random bits: nobody guesses one, however often they try. The limit is for the database,
which is asked at each try. It is low enough for that and high enough for a person who mistypes.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from effect_broker.api.limits import Bucket
from effect_broker.clock import SystemClock
from effect_contracts.errors import RateLimited

# Tries at once, and how many come back in a second. Behind a proxy all share one address.
ADDRESS_BURST: Final = 20
ADDRESS_PER_SECOND: Final = 0.5
ALL_BURST: Final = 200
ALL_PER_SECOND: Final = 20.0
ADDRESSES_MAX: Final = 10_000


class LoginLimit:
    """Counts tries to sign in.

    Args:
        boot_seconds: a clock that never goes back.
    """

    def __init__(self, boot_seconds: Callable[[], float] | None = None) -> None:
        self._now = boot_seconds or SystemClock().boot_seconds
        self._addresses: OrderedDict[str, Bucket] = OrderedDict()
        self._all = Bucket(ALL_BURST, self._now())

    def count(self, address: str) -> None:
        """Count a try.

        Raises:
            RateLimited: too many from this address, or from all.
        """
        now = self._now()
        bucket = self._addresses.setdefault(address, Bucket(ADDRESS_BURST, now))
        self._addresses.move_to_end(address)
        while len(self._addresses) > ADDRESSES_MAX:
            self._addresses.popitem(last=False)
        wait = bucket.take(now, ADDRESS_BURST, ADDRESS_PER_SECOND)
        # One address that tries too often must not use up what is for all.
        wait = wait or self._all.take(now, ALL_BURST, ALL_PER_SECOND)
        if wait:
            raise RateLimited(retry_after_seconds=math.ceil(wait))
