"""What leads up to a place that a plain submit does not come to.

Runs are handed over where a worker was lost that had one. A run that begins reads nothing; an
effect is read again, and something is written for what it was found to be, only where a permission
was refused or an attempt was lost. There is one way for each class:

    transactional   its tool is paused: it is parked until the hold is lifted
    idempotent      the same, but it has to be sent before a moment: it waits for that moment
    reconcilable    that moment has passed before anybody came to it: it is settled as expired
    unsafe          its worker was lost behind the target's answer: it is parked as unknown
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from effect_broker.faultpoints import FaultAction, FaultPoint
from effect_broker.proof.broker import wait_until
from effect_broker.proof.matrix.axes import CONCLUDE_POINTS, REAP_POINTS, Cell, TargetClass
from effect_broker.proof.matrix.lane import Lane
from effect_broker.store import proof_faults

_PAUSED: Final = "paused"
_HELD: Final = frozenset({TargetClass.TRANSACTIONAL, TargetClass.IDEMPOTENT})
# Nobody waits for this one.
_FAR_SECONDS: Final = 3600.0
# Long enough for an API that is busy with other lanes to accept it before it has passed.
_NEAR_SECONDS: Final = 4.0


class Lead:
    """The lead-up of one cell; for places that a plain submit comes to, the submit alone.

    Args:
        submit: submits the effect until it is accepted, with the given members.
    """

    def __init__(self, lane: Lane, cell: Cell, submit: Callable[[Mapping[str, Any]], None]) -> None:
        self._lane = lane
        self._cell = cell
        self._submit = submit
        self._hold_id: str | None = None
        self._expires_seconds = _expires_after(cell)
        self.members: Mapping[str, Any] = {}

    def go(self) -> None:
        """Submit the effect and bring it to where its place comes next."""
        lane, cell = self._lane, self._cell
        moment = self._now() + timedelta(seconds=self._expires_seconds or 0.0)
        if self._expires_seconds is not None:
            self.members = {"send_before": moment.isoformat()}
        if cell.point in REAP_POINTS:
            self._lose_worker(FaultPoint.BEFORE_ATTEMPT_COMMIT)
        elif cell.point not in CONCLUDE_POINTS:
            self._submit(self.members)
        elif cell.target in _HELD:
            self._hold_id = lane.pause_tool(f"proof.{cell.kind}")
            self._submit(self.members)
        elif cell.target is TargetClass.RECONCILABLE:
            with lane.all_asleep():
                self._submit(self.members)
                threading.Event().wait(max((moment - self._now()).total_seconds(), 0.0))
        else:
            self._lose_worker(FaultPoint.AFTER_TARGET_ANSWER)

    def end(self) -> None:
        """Wait until somebody has written that it is held, and lift the hold."""
        if self._hold_id is None:
            return
        effect = self._lane.effect_id(self._cell.operation_key)

        def held() -> bool | None:
            body = self._lane.effect(effect)
            return (body is not None and body["reason"] == _PAUSED) or None

        wait_until(held, "the effect is held")
        self._lane.lift(self._hold_id)
        self._hold_id = None

    def _now(self) -> datetime:
        """The database's clock, by which such a moment is judged."""
        now: datetime = proof_faults.database_clock(self._lane.server.url)
        return now.astimezone(UTC)

    def _lose_worker(self, point: FaultPoint) -> None:
        lane = self._lane
        # One more before, since a worker that starts while the database breaks does not live.
        lane.start_ready_worker()
        lane.arm(point, FaultAction.KILL)
        self._submit(self.members)
        lost = lane.broker.wait_fired(point)
        wait_until(lambda: not lane.alive(lost) or None, "the process is dead")


def _expires_after(cell: Cell) -> float | None:
    if cell.point not in CONCLUDE_POINTS:
        return None
    if cell.target is TargetClass.IDEMPOTENT:
        return _FAR_SECONDS
    return _NEAR_SECONDS * cell.pace if cell.target is TargetClass.RECONCILABLE else None
