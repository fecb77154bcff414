"""Workers that are not as they should be: with a wrong wall clock, or stopped for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from effect_broker.proof.stack import ManagedProcess
from tools import requires_tool


def skewed(offset: str) -> dict[str, str]:
    """The environment of a process whose clock is off by `offset` (`+1h`, `-1s`).

    The monotonic clock stays as it is: what is wrong in such a machine is the date. Where the
    library is absent, the test does not run.
    """
    return {
        "LD_PRELOAD": str(requires_tool("libfaketime")),
        "FAKETIME": offset,
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }


@contextmanager
def paused(*workers: ManagedProcess) -> Iterator[None]:
    """Stop workers (SIGSTOP) for the block."""
    for worker in workers:
        worker.pause()
    try:
        yield
    finally:
        for worker in workers:
            worker.resume()
