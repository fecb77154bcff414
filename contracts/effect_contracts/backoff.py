"""Back-off with deterministic jitter.

`decide` is replayed, so the wait between two attempts must be a function of stored values. The
jitter is therefore drawn from the effect's own seed and the ordinal, which still spreads the
attempts of many effects after a common outage.
"""

from __future__ import annotations

import hashlib

# Full jitter over the upper half of the interval ("equal jitter"): half of the wait is kept, so
# that a wait is never so short that the target is hit again at once.
_JITTER_SHARE = 0.5


def exponential_seconds(step: int, initial: float, factor: float, cap: float) -> float:
    """Return `initial * factor**step`, at most `cap`, without overflow for any step >= 0."""
    assert step >= 0
    wait = initial
    for _ in range(step):
        wait *= factor
        if wait >= cap:
            return cap
    return min(wait, cap)


def jittered_seconds(seconds: float, seed: int, step: int) -> float:
    """Return a wait between half of `seconds` and `seconds`, the same for the same arguments."""
    digest = hashlib.sha256(f"{seed}:{step}".encode()).digest()
    share = int.from_bytes(digest[:8], "big") / 2**64
    return seconds * (1 - _JITTER_SHARE * share)
