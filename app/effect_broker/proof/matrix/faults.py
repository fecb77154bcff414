"""The faults of the database, each made while a process waits at its place.

A fault is a context: it strikes when it is entered, the waiting process is let go inside, and what
was broken is mended when it is left. What it gives says in the end whether it was really met.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from effect_broker.proof.broker import NotInTime, wait_until
from effect_broker.proof.database_proxy import CutPhase
from effect_broker.proof.matrix.axes import API_POINTS, REQUEUE_POINTS, Cell, Fault
from effect_broker.proof.matrix.lane import Lane
from effect_broker.store import proof_faults

# Long enough for several tries of a write, shorter than a take-over.
_READ_ONLY_SECONDS: Final = 1.2
_SCHEMA_AWAY_SECONDS: Final = 0.5
_MET_SECONDS: Final = 15.0


@dataclass(slots=True)
class Strike:
    """Whether the fault was met."""

    met: bool = False


HeldFault = Callable[[Lane, Cell], AbstractContextManager[Strike]]


@contextmanager
def _restart(lane: Lane, cell: Cell) -> Iterator[Strike]:
    lane.server.restart("immediate")
    yield Strike(met=True)


@contextmanager
def _read_only(lane: Lane, cell: Cell) -> Iterator[Strike]:
    url = lane.server.url
    proof_faults.begin_read_only(url)
    try:
        yield Strike(met=True)
        _rest(_READ_ONLY_SECONDS)
    finally:
        proof_faults.end_read_only(url)


@contextmanager
def _statement_timeout(lane: Lane, cell: Cell) -> Iterator[Strike]:
    url = lane.server.url
    strike = Strike()
    proof_faults.slow_next_write(url, lane.effect_id(cell.operation_key))
    try:
        yield strike
        strike.met = _seen(lambda: proof_faults.slow_write_met(url))
    finally:
        proof_faults.slow_no_write(url)


@contextmanager
def _engine_dropped(lane: Lane, cell: Cell) -> Iterator[Strike]:
    proof_faults.drop_engine(lane.server.url)
    try:
        yield Strike(met=True)
        _rest(_SCHEMA_AWAY_SECONDS)
    finally:
        lane.migrate()


@contextmanager
def _commit_cut(phase: CutPhase, lane: Lane, cell: Cell) -> Iterator[Strike]:
    strike = Strike()
    if cell.point in API_POINTS:
        # One statement, which commits by itself.
        happened = lane.proxy.cut("effect-broker-api", phase, "submit_effect")
    else:
        repairs = cell.point in REQUEUE_POINTS
        application = "effect-broker-repair" if repairs else "effect-broker-worker"
        # A plain success is one statement, which commits by itself; every other change ends with
        # a COMMIT. Which of the two is sent is known only when the worker goes on.
        happened = lane.proxy.cut(application, phase, "settle_success", "COMMIT")
    try:
        yield strike
        strike.met = happened.wait(_MET_SECONDS)
    finally:
        lane.proxy.disarm()


HELD_FAULTS: Final[Mapping[Fault, HeldFault]] = {
    Fault.RESTART: _restart,
    Fault.READ_ONLY: _read_only,
    Fault.STATEMENT_TIMEOUT: _statement_timeout,
    Fault.ENGINE_DROPPED: _engine_dropped,
    Fault.CUT_BEFORE: partial(_commit_cut, CutPhase.BEFORE_SERVER),
    Fault.CUT_AFTER: partial(_commit_cut, CutPhase.AFTER_SERVER),
}


@contextmanager
def lost_run(lane: Lane, cell: Cell) -> Iterator[None]:
    """Lose the first run of the cell's effect, so that the reconcile loop has to start one."""
    if cell.point not in REQUEUE_POINTS:
        yield
        return
    proof_faults.lose_first_run(lane.server.url, lane.effect_id(cell.operation_key))
    try:
        yield
    finally:
        proof_faults.lose_no_run(lane.server.url)


def _seen(look: Callable[[], bool]) -> bool:
    try:
        return wait_until(lambda: look() or None, "the fault is met", _MET_SECONDS)
    except NotInTime:
        return False


def _rest(seconds: float) -> None:
    threading.Event().wait(seconds)
