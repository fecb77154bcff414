"""One cell, from the submit to the count.

Where the fault needs a process at its place, the place is armed and the effect submitted; a second
process is always there to take over. Then everything is left alone until the effect rests, and the
counts are taken from the target.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from subprocess import SubprocessError
from typing import Any, Final
from uuid import UUID

import httpx

from effect_broker.clock import SystemClock
from effect_broker.faultpoints import FaultAction, FaultPoint
from effect_broker.postgres.embedded import EmbeddedPostgresError
from effect_broker.proof.broker import NotInTime, wait_until
from effect_broker.proof.http_proxy import HttpProxy
from effect_broker.proof.matrix import judge
from effect_broker.proof.matrix.axes import (
    API_POINTS,
    CONCLUDE_POINTS,
    CUTS,
    HELD,
    KILLS,
    LOOK_UP_POINTS,
    REQUEUE_POINTS,
    Cell,
    Fault,
    TargetClass,
)
from effect_broker.proof.matrix.expected import (
    Expected,
    Situation,
    expected,
    expected_meanwhile,
    situation,
)
from effect_broker.proof.matrix.faults import HELD_FAULTS, lost_run
from effect_broker.proof.matrix.judge import Observation, Seen, Verdict
from effect_broker.proof.matrix.lane import Lane, outfit_of
from effect_broker.proof.matrix.leads import Lead
from effect_broker.proof.matrix.targets import (
    KEY_SPENT_AFTER_SECONDS,
    arguments_for,
    document_for,
    set_target,
)
from effect_broker.proof.stack import ProcessNotReady
from effect_broker.proof.target.client import TargetRefused, WaitOver
from effect_broker.protocol.ports import StoreError
from effect_broker.store import demo_ledger, proof_faults

_SETTLE_SECONDS: Final = 60.0
# An effect that waits for a person although it should not may only be on its way.
_PATIENCE_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.15
# How long a refused connection is refused once the broker has met it.
_REFUSED_SECONDS: Final = 0.5
# Moves the target's clock beyond any lag.
_LIE_OVER_SECONDS: Final = 100_000.0


# What a cell may meet on its way; anything else is a mistake of the matrix and ends it.
_STUCK: Final = (
    NotInTime,
    ProcessNotReady,
    httpx.HTTPError,
    StoreError,
    EmbeddedPostgresError,
    SubprocessError,
    TargetRefused,
    WaitOver,
    TimeoutError,
)


@dataclass(frozen=True, slots=True)
class CellResult:
    """What one cell has shown.

    Attributes:
        not_run: why it could not run here.
        slow: it ended otherwise than expected at first, within all guarantees, and as expected
            in slow motion.
    """

    cell: Cell
    observation: Observation | None
    verdict: Verdict
    seconds: float
    not_run: str | None = None
    slow: bool = False

    @property
    def held(self) -> bool:
        """Whether it ran and held."""
        return not self.verdict.problems and self.not_run is None


def run_cell(lane: Lane, cell: Cell) -> CellResult:
    """Run one cell on a lane, and once more in slow motion if time may have been too short.

    A guarantee that is broken is never tried again. Whatever goes wrong is a problem of the cell.
    """
    first = _run_once(lane, cell)
    if not first.verdict.unexpected or first.verdict.broken:
        return first
    second = _run_once(lane, replace(cell, take=2))
    seconds = first.seconds + second.seconds
    return replace(second, cell=cell, seconds=seconds, slow=second.held)


def _run_once(lane: Lane, cell: Cell) -> CellResult:
    clock = SystemClock()
    began = clock.boot_seconds()
    trial = _Trial(lane, cell)
    try:
        lane.prepare(outfit_of(cell))
        observation = trial.run()
    except _STUCK as problem:
        text = f"it did not come to its end: {type(problem).__name__}: {problem}"
        stuck = Verdict((text,), ())
        return CellResult(cell, None, stuck, clock.boot_seconds() - began)
    finally:
        lane.disarm()
    found = judge.verdict(cell, observation)
    return CellResult(cell, observation, found, clock.boot_seconds() - began)


class _Trial:
    """The run of one cell."""

    def __init__(self, lane: Lane, cell: Cell) -> None:
        self._lane = lane
        self._cell = cell
        self._arguments = arguments_for(cell)
        self._tool = f"proof.{cell.kind}"
        self._remarks: list[str] = []
        self._struck = True
        self._lie_over = False
        self._proxy: HttpProxy | None = None
        self._lead = Lead(lane, cell, self._submit_with)

    def run(self) -> Observation:
        lane, cell = self._lane, self._cell
        meanwhile = None
        with self._way() as origin, lost_run(lane, cell):
            lane.broker.apply(document_for(cell, origin))
            set_target(cell, lane.broker.target.client)
            if cell.fault in KILLS:
                self._killed()
            elif cell.fault is Fault.STOP:
                meanwhile = self._stopped()
            elif cell.fault in HELD:
                self._held()
            elif cell.fault is Fault.REFUSED:
                self._refused()
            else:
                self._submit()
            body = self._settled(expected(cell))
            replay = lane.insist(
                cell.operation_key, self._tool, self._arguments, self._lead.members
            )
        same = (replay["status_code"], replay["effect_id"]) == (200, str(self._effect))
        end = self._seen(body)
        if cell.fault not in HELD | KILLS | {Fault.STOP}:
            self._struck = self._plans_used()
        return Observation(end, meanwhile, self._struck, same, tuple(self._remarks))

    # How the fault is made to happen -------------------------------------------------------------

    def _killed(self) -> None:
        lane, point = self._lane, self._cell.point
        lane.arm(point, FaultAction.KILL)
        if point in API_POINTS:
            with self._submitting() as answer:
                lane.broker.wait_fired(point)
                if answer.exception() is None:
                    self._remarks.append("the API answered although it was to be killed")
            lane.restart_api()
            stored = lane.effect(self._effect) is not None
            if point is FaultPoint.AFTER_SUBMIT_COMMIT and not stored:
                self._remarks.append("an acknowledged commit is gone")
            if point is FaultPoint.BEFORE_SUBMIT_COMMIT:
                if stored:
                    self._remarks.append("an intent stands although its commit was never sent")
                self._submit()
            return
        self._lead.go()
        killed = lane.broker.wait_fired(point)
        wait_until(lambda: not lane.alive(killed) or None, "the process is dead")
        self._outlive_key(killed)
        lane.replace_dead_workers()
        self._lead.end()

    def _stopped(self) -> Seen:
        """Stop, let the others settle, continue; return what stood before it came back."""
        lane, point = self._lane, self._cell.point
        wanted = expected_meanwhile(self._cell)
        assert wanted is not None, "a stop has a meanwhile"
        lane.arm(point, FaultAction.STOP)
        if point in API_POINTS:
            with self._submitting() as answer:
                lane.broker.wait_fired(point, FaultAction.STOP)
                former = lane.add_api()
                self._submit()
                meanwhile = self._seen(self._settled(wanted))
                assert former is not None, "the lane had an API"
                former.resume()
                late = answer.result(_SETTLE_SECONDS)
                if late.status_code not in {200, 202, 503}:
                    self._remarks.append(f"the API that came back answered {late.status_code}")
            former.kill()
            return meanwhile
        self._lead.go()
        stopped = lane.broker.wait_fired(point, FaultAction.STOP)
        self._outlive_key(stopped)
        self._lead.end()
        meanwhile = self._seen(self._settled(wanted))
        lane.go_on(stopped)
        self._wait_late_word()
        self._lie_over = False  # of what was sent just now
        return meanwhile

    def _held(self) -> None:
        """Let a process wait at its place, break the database under it, and let it go on."""
        lane, cell = self._lane, self._cell
        point, gate = cell.point, FaultAction.GATE
        lane.arm(point, gate)
        if point in API_POINTS:
            with self._submitting() as answer:
                pid = lane.broker.wait_fired(point, gate)
                self._strike()
                if answer.exception() is None and answer.result().status_code not in {202, 503}:
                    self._remarks.append(f"the submit was answered {answer.result().status_code}")
            self._submit()
        elif point in CONCLUDE_POINTS:
            self._lead.go()
            pid = lane.broker.wait_fired(point, gate)
            with lane.asleep(but=pid) if cell.fault in CUTS else nullcontext():
                self._strike()
            self._lead.end()
        elif cell.fault in CUTS or point in REQUEUE_POINTS:
            # One worker alone comes there, so that the commit that is cut is its own.
            with lane.asleep():
                self._submit()
                pid = lane.broker.wait_fired(point, gate)
                self._strike()
        else:
            self._submit()
            pid = lane.broker.wait_fired(point, gate)
            self._strike()
        if not lane.alive(pid):
            self._remarks.append("the process did not live through the fault")

    def _strike(self) -> None:
        with HELD_FAULTS[self._cell.fault](self._lane, self._cell) as strike:
            self._lane.release(self._cell.point)
        self._struck = strike.met

    def _refused(self) -> None:
        """Connections are refused until the broker has met it, and then no longer."""
        lane, cell, proxy = self._lane, self._cell, self._proxy
        assert proxy is not None, "the way is a proxy"
        if cell.point in LOOK_UP_POINTS:
            # The answer is lost only when the way has been closed behind the request.
            self._submit()
            lane.broker.target.client.wait_held()
            proxy.refuse()
            lane.broker.target.client.release()
        else:
            self._submit()
        try:
            wait_until(self._refusal_met, "a connection is refused", _PATIENCE_SECONDS)
        except NotInTime:
            self._remarks.append("no connection was refused")
        _rest(_REFUSED_SECONDS)
        proxy.accept()

    def _refusal_met(self) -> bool | None:
        body = self._lane.effect(self._effect)
        if body is None:
            return None
        if self._cell.point in LOOK_UP_POINTS:
            events = proof_faults.event_kinds(self._lane.server.url, self._effect)
            return "evidence_added" in events or None
        return any(attempt["outcome"] == "not_sent" for attempt in body["attempts"]) or None

    # Parts ---------------------------------------------------------------------------------------

    @property
    def _effect(self) -> UUID:
        return self._lane.effect_id(self._cell.operation_key)

    def _submit(self) -> None:
        self._submit_with({})

    def _submit_with(self, members: Mapping[str, Any]) -> None:
        self._lane.insist(self._cell.operation_key, self._tool, self._arguments, members)

    @contextmanager
    def _submitting(self) -> Iterator[Future[httpx.Response]]:
        """Submit once, in a thread, since the API that is asked will not answer soon."""
        http = self._lane.broker.http
        body = {
            "operation_key": self._cell.operation_key,
            "tool": self._tool,
            "arguments": self._arguments,
        }
        with ThreadPoolExecutor(1) as caller:
            yield caller.submit(http.post, "/v1/effects", json=body)

    @contextmanager
    def _way(self) -> Iterator[str]:
        """The origin that the contract names: the target's, or a proxy's in front of it."""
        origin = self._lane.broker.target.url
        if self._cell.fault not in {Fault.REFUSED, Fault.TWICE}:
            yield origin
            return
        deliveries = 2 if self._cell.fault is Fault.TWICE else 1
        refusing = self._cell.fault is Fault.REFUSED and self._cell.point not in LOOK_UP_POINTS
        with HttpProxy(origin, deliveries=deliveries, refusing=refusing) as proxy:
            self._proxy = proxy
            yield proxy.url

    def _outlive_key(self, lost: int) -> None:
        """Where the key is to expire, let the peers of the lost process sleep until it has."""
        harmless = {Situation.UNHARMED, Situation.ANSWER_LOST}
        if self._cell.target is not TargetClass.IDEMPOTENT_EXPIRING:
            return
        if situation(self._cell) not in harmless:
            with self._lane.asleep(but=lost):
                _rest(KEY_SPENT_AFTER_SECONDS * self._cell.pace)

    def _wait_late_word(self) -> None:
        """Wait until the process that came back has recorded what it saw, if it has to."""
        late = {Situation.LATE_SENT, Situation.LATE_UNSENT, Situation.SENDS_LATE}
        if situation(self._cell) not in late:
            return
        if self._cell.target is TargetClass.TRANSACTIONAL:
            return  # its transaction is gone, and with it all that it had to say

        def recorded() -> bool | None:
            body = self._lane.effect(self._effect)
            return (body is not None and body["attempts"][0]["recorded_at"] is not None) or None

        wait_until(recorded, "the late word of the stopped process")

    def _settled(self, wanted: Expected) -> dict[str, Any]:
        """Return the effect once it rests as it should, or for good; else as it was last seen."""
        last: dict[str, Any] | None = None
        pause = threading.Event()
        polls = int(_SETTLE_SECONDS / _POLL_SECONDS)
        patience = int(_PATIENCE_SECONDS / _POLL_SECONDS)
        for _ in range(polls):
            body = self._lane.effect(self._effect)
            if body is not None:
                last = body
                if body["final"]:
                    self._end_lie()
                    # A later count that is owed would reach the next cell's armed places.
                    if body["next_action_at"] is None:
                        return body
                elif body["waits_for_person"]:
                    patience -= 1
                    if body["state"] == wanted.state or not patience:
                        return body
            pause.wait(_POLL_SECONDS)
        if last is None:
            raise NotInTime("the effect was never seen")
        return last

    def _end_lie(self) -> None:
        """What a lying target has hidden is seen from now on, so that the broker can find it."""
        if self._cell.target is TargetClass.RECONCILABLE_LYING and not self._lie_over:
            self._lie_over = True
            self._lane.broker.target.client.advance_clock(_LIE_OVER_SECONDS)

    def _plans_used(self) -> bool:
        """Whether the target has played every answer that was queued for this cell."""
        return not self._lane.broker.target.client.plans_left()

    def _seen(self, body: dict[str, Any]) -> Seen:
        requests, effects, keys, bodies = counts(self._lane, self._cell)
        return Seen(
            state=body["state"],
            reason=body["reason"],
            alert=body["alert"],
            final=body["final"],
            rests=body["final"] or body["waits_for_person"],
            receipt=self._lane.broker.receipt(body["effect_id"]) is not None,
            attempts=len(body["attempts"]),
            requests=requests,
            effects=effects,
            keys=keys,
            bodies=bodies,
            frozen=body["alert"] is not None and self._lane.frozen(self._cell.kind),
        )


def counts(lane: Lane, cell: Cell) -> tuple[int, int, int, int]:
    """Return requests, effects, distinct keys and distinct bodies, as the target counts them."""
    if cell.target is TargetClass.TRANSACTIONAL:
        # The mutation's own transaction: what did not commit never was.
        count = demo_ledger.count(lane.server.url, cell.operation_key)
        return count, count, 1, 1
    ledger = lane.broker.target.client.ledger(kind=cell.kind)
    return ledger.arrivals, ledger.effects, len(ledger.keys), len(ledger.body_digests)


def counted_again(lane: Lane, result: CellResult) -> CellResult:
    """Count a cell at the target once more: nothing may have been sent since its end."""
    if result.observation is None:
        return result
    cell = replace(result.cell, take=2) if result.slow else result.cell
    requests, effects, _, _ = counts(lane, cell)
    end = result.observation.end
    if (requests, effects) == (end.requests, end.effects):
        return result
    late = f"in the end the target had requests: {requests}, effects: {effects}"
    return replace(result, verdict=replace(result.verdict, broken=(*result.verdict.broken, late)))


def _rest(seconds: float) -> None:
    threading.Event().wait(seconds)
