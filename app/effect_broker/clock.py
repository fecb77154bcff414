"""The clock and the ids of a process: the only module that reads one or makes the other.

No deadline of the protocol is judged here. Deadlines, leases and bounds are the database's; this
clock measures how much of a granted budget is left, and it is one that goes on while the machine
is suspended, because the target's patience does too.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from datetime import UTC, datetime
from uuid import UUID, uuid4

_BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The clock of this process."""

    def boot_seconds(self) -> float:
        """Return CLOCK_BOOTTIME in seconds, CLOCK_MONOTONIC where there is none."""
        return time.clock_gettime(_BOOT_CLOCK)

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""
        await asyncio.sleep(seconds)


def utc_now() -> datetime:
    """Return the wall clock of this machine, for a caller's own patience and for nothing else."""
    return datetime.now(UTC)


def new_id() -> UUID:
    """Return a random identity (UUID version 4)."""
    return uuid4()


def new_executor_id() -> str:
    """Return an identity for this process incarnation; never the same twice.

    Host and process id are for the reader. The random part makes it unique: a process id is
    recycled, and two processes with one executor id would each re-run the other's live work.
    """
    return f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:12]}"
