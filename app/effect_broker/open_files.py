"""The file descriptors of a worker: one for each effect that is on its way to a target.

Many systems start programs with a soft limit of 1,024 and a far higher hard one. A worker that
runs out of descriptors cannot connect to any target, and every effect loses an attempt for it. So
a worker raises its soft limit to what its slots need, and takes no more slots than it then has
descriptors for.
"""

from __future__ import annotations

import logging
import resource
from typing import Final

from effect_broker.log_events import event

_log = logging.getLogger(__name__)

# Everything else: some 20 database sessions, name look-ups, subscriptions, metrics, files, the
# event loop itself; and sockets that the kernel still closes while the next ones are opened.
BESIDE: Final = 160
# An effect holds one connection to its target; a look-up and a poll are made after it was closed.
_EACH: Final = 1


def slots(wanted: int) -> int:
    """Raise this process's soft limit as far as `wanted` effects in flight need it.

    Returns:
        How many may be in flight: `wanted`, or what the hard limit leaves, and 1 at least.
    """
    needed = wanted * _EACH + BESIDE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    reachable = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if reachable > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
            soft = reachable
        except (OSError, ValueError):
            pass  # a system limit below the hard one (macOS): what there is has to do
    possible = min(wanted, max(1, (soft - BESIDE) // _EACH))
    if possible < wanted:
        _log.warning(
            "%d effects in flight are configured, and the limit of open files (%d) permits %d; "
            "raise it (ulimit -n, LimitNOFILE=)",
            wanted,
            soft,
            possible,
            extra=event("slots_limited", wanted=wanted, possible=possible, open_files=soft),
        )
    return possible
