"""Workers that are not as they should be: with a wrong wall clock, or stopped for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from effect_broker.proof.skewed import SKEWED_PROGRAM, skewed_environment, why_no_skew
from effect_broker.proof.stack import ManagedProcess
from field_cases.cases import Case
from tools import could_not_run


def start_skewed(case: Case, seconds: int) -> ManagedProcess:
    """Start a worker whose date is so many seconds ahead (or behind, below 0).

    It waits as long as any other: what is wrong in such a machine is the date. Where no clock can
    be moved, the test does not run.
    """
    reason = why_no_skew(seconds)
    if reason is not None:
        could_not_run(reason)
    environment = skewed_environment(seconds)
    (worker,) = case.scene.start_workers(1, program=SKEWED_PROGRAM, **environment)
    return worker


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
