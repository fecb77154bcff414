"""Repair: the loops that keep every effect moving although processes, engine and database fail.

    beat       tells the peers that this executor lives (database clock)
    reap       hands the runs of executors whose heartbeat is dead back to the queue; those of a
               drill's own worker come to the ordinary one
    orphans    does the same for runs that are pending on this executor but not in it
    reconcile  starts a new generation for effects that are due and have no live run
    certified  lets effects go on that waited for a certificate, once a fitting one is in force
    queue      registers the queue again if the engine's schema came back without it

All are idempotent, run in every worker, and take no lock between them: each write is a
compare-and-set, so that two loops which meet do the work once. `reconcile` needs SQL only and
also runs alone (`effect-broker reconciler`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from uuid import UUID

from effect_adapters.base import Reach
from effect_broker.faultpoints import FaultPoint
from effect_broker.log_events import event
from effect_broker.protocol import changes, compensation
from effect_broker.protocol.ports import EffectMissing, EffectStore, StoreError
from effect_contracts.backoff import exponential_seconds
from effect_contracts.document import ContractDocument
from effect_contracts.facts import EffectState

_log = logging.getLogger(__name__)

# Effects taken up by one tick of the reconcile loop. A tick that finds this many runs again at
# once, so that the bound limits memory and the length of a tick, not the speed of a recovery.
RECONCILE_BATCH = 100

# A run that is pending here but not in this process is an orphan only after this time: DBOS marks
# a run as pending a moment before it enters it.
ORPHAN_AFTER_SECONDS = 3.0
# How long it has to be missing in the process: a run whose body has ended is pending until the
# engine has written that down, and of a backlog some are just there at every look.
ORPHAN_MISSING_SECONDS = 2.0

# A run that is handed back and comes back as an orphan breaks before our code is entered. It is
# handed back less and less often, since the next one would break in the same way; its effect
# does not depend on it, since an overdue effect gets a new generation.
_ORPHAN_WAIT_CAP_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class DueEffect:
    """An effect whose next action is due and which no live run drives."""

    tenant_id: UUID
    effect_id: UUID
    generation: int


@dataclass(frozen=True, slots=True)
class EndedCompensation:
    """A final effect that was to undo another one."""

    tenant_id: UUID
    effect_id: UUID
    compensates_id: UUID
    state: EffectState


class RunStore(Protocol):
    """What repair asks the store about executors, runs and effects, all on its clock."""

    async def beat(self, executor_id: str, ttl_seconds: float) -> None:
        """Note that this executor lives now."""

    async def dead_executors(self) -> Sequence[str]:
        """Return executors that hold runs of ours and have not beaten for their TTL."""

    async def pending_runs(self, executor_id: str, older_than_seconds: float) -> Sequence[str]:
        """Return the ids of our runs that are pending on this executor for longer than that."""

    async def due_effects(self, limit: int) -> Sequence[DueEffect]:
        """Return effects that are due and have no live run, the longest due first.

        None while the engine's schema is missing: no run could be started.
        """

    async def release_lifted(self, limit: int) -> int:
        """Let effects go on whose hold was lifted; return how many."""

    async def ended_compensations(self, limit: int) -> Sequence[EndedCompensation]:
        """Return compensations that have ended and whose meaning was not written yet."""

    async def settle_link(self, tenant_id: UUID, effect_id: UUID) -> None:
        """Note that what a compensation means was written."""

    async def queue_registered(self) -> bool:
        """Return whether the engine's queue exists; True if its whole schema is missing."""


@dataclass(frozen=True, slots=True)
class DrilledRun:
    """The first run of a drilled effect, which the drill's worker does not drive any more."""

    run_id: str
    queue_name: str


class DrilledRuns(Protocol):
    """What repair asks the store about drills."""

    async def abandoned_drilled_runs(self) -> Sequence[DrilledRun]:
        """Return runs in a drill's queue whose worker is dead, or was too late."""


class CertifiedEffects(Protocol):
    """What repair asks the store about effects that wait for a certificate."""

    async def release_certified(
        self, limit: int, identity_of: Callable[[ContractDocument], str]
    ) -> int:
        """Let effects go on for which a fitting certificate is in force now; return how many."""


class DrillHost(Protocol):
    """What repair asks the engine's host to do for drills."""

    async def take_over(self, run_id: str, queue_name: str) -> None: ...


class RunHost(Protocol):
    """What repair asks the engine's host to do."""

    @property
    def running(self) -> frozenset[str]: ...

    async def recover(self, executor_ids: list[str]) -> int: ...

    async def resume(self, run_ids: list[str]) -> None: ...

    async def ensure_queue(self) -> None: ...


async def reap(store: RunStore, host: RunHost, own_executor_id: str, reach: Reach) -> int:
    """Hand back the runs of dead executors; return how many runs."""
    dead = [e for e in await store.dead_executors() if e != own_executor_id]
    if not dead:
        return 0
    reach(FaultPoint.BEFORE_REAP_COMMIT)
    count = await host.recover(dead)
    reach(FaultPoint.AFTER_REAP_COMMIT)
    if count:
        names = ", ".join(dead)
        _log.warning(
            "handed back %d runs of dead executors %s",
            count,
            names,
            extra=event("runs_reaped", runs=count, executor_ids=names),
        )
    return count


async def take_over_drills(store: DrilledRuns, host: DrillHost) -> int:
    """Move the runs of lost drill workers into the ordinary queue; return how many.

    From there on nothing tells them from the runs of any worker that was lost.
    """
    runs = await store.abandoned_drilled_runs()
    for run in runs:
        await host.take_over(run.run_id, run.queue_name)
        _log.warning(
            "took over run %s of a drill",
            run.run_id,
            extra=event("drill_taken_over", run_id=run.run_id),
        )
    return len(runs)


@dataclass(frozen=True, slots=True)
class _HandBack:
    """How often a run was handed back, and until when it is left alone (boot clock)."""

    times: int
    rests_until_seconds: float


class Orphans:
    """The runs that are pending on this executor but not in it, over the life of the process.

    Args:
        boot_seconds: the boot clock.
    """

    def __init__(self, boot_seconds: Callable[[], float]) -> None:
        self._boot_seconds = boot_seconds
        self._handed_back: dict[str, _HandBack] = {}
        self._missing_since: dict[str, float] = {}

    async def resume(self, store: RunStore, host: RunHost, own_executor_id: str) -> int:
        """Hand orphans back to the queue; return how many."""
        pending = await store.pending_runs(own_executor_id, ORPHAN_AFTER_SECONDS)
        running = host.running  # read after the rows: a run that has just ended is in neither
        missing = self._missing([run_id for run_id in pending if run_id not in running])
        orphans = self._due(missing)
        if orphans:
            await host.resume(orphans)
            count = len(orphans)
            _log.warning(
                "handed back %d orphaned runs", count, extra=event("orphans_resumed", runs=count)
            )
        return len(orphans)

    def _missing(self, run_ids: Sequence[str]) -> list[str]:
        """Return those that were missing at every look for long enough."""
        now = self._boot_seconds()
        self._missing_since = {run_id: self._missing_since.get(run_id, now) for run_id in run_ids}
        return [
            run_id
            for run_id, since in self._missing_since.items()
            if now - since >= ORPHAN_MISSING_SECONDS
        ]

    def _due(self, run_ids: Sequence[str]) -> list[str]:
        """Return those that do not rest, and let them rest from now on."""
        now = self._boot_seconds()
        self._handed_back = {
            run_id: known
            for run_id, known in self._handed_back.items()
            # Remembered while it rests and as long again, so that a later orphan starts anew.
            if now < known.rests_until_seconds + _ORPHAN_WAIT_CAP_SECONDS
        }
        due = []
        for run_id in run_ids:
            known = self._handed_back.get(run_id)
            if known is not None and now < known.rests_until_seconds:
                continue
            times = 1 if known is None else known.times + 1
            wait = exponential_seconds(
                times - 1, ORPHAN_AFTER_SECONDS, 2.0, _ORPHAN_WAIT_CAP_SECONDS
            )
            self._handed_back[run_id] = _HandBack(times, now + wait)
            due.append(run_id)
        return due


async def release_certified(
    store: CertifiedEffects, identity_of: Callable[[ContractDocument], str]
) -> int:
    """Let effects go on that wait for a certificate and have one now; return how many.

    Nothing else may wake them: what is woken without a certificate that fits would be parked again,
    and use up a run for it. So this needs the keys that are trusted and knows every target, which
    `reconcile` does not.
    """
    released = await store.release_certified(RECONCILE_BATCH, identity_of)
    if released:
        _log.info(
            "%d effects go on: the certificate that they waited for is there",
            released,
            extra=event("certified_released", effects=released),
        )
    return released


async def restore_queue(store: RunStore, host: RunHost) -> None:
    """Register the queue if it is missing although the engine's schema is there."""
    if not await store.queue_registered():
        await host.ensure_queue()
        _log.warning("registered the queue again", extra=event("queue_registered"))


async def settle_compensations(runs: RunStore, effects: EffectStore, actor: str) -> None:
    """Mark as compensated what a linked effect has undone; one that has failed changes nothing."""
    for ended in await runs.ended_compensations(RECONCILE_BATCH):
        try:
            if ended.state in {EffectState.SUCCEEDED, EffectState.COMPENSATED}:
                # Also where it has been undone itself meanwhile: it had undone the other before.
                plan = partial(compensation.undo, by=ended.effect_id, actor=actor)
                await effects.change(ended.tenant_id, ended.compensates_id, plan)
            await runs.settle_link(ended.tenant_id, ended.effect_id)
        except StoreError as problem:
            kind = type(problem).__name__
            _log.warning(
                "compensation %s: %s",
                ended.effect_id,
                kind,
                extra=event("compensation_unsettled", effect_id=str(ended.effect_id), problem=kind),
            )


async def reconcile(
    runs: RunStore,
    effects: EffectStore,
    actor: str,
    reach: Reach,
    may_go_on: Callable[[], bool] = lambda: True,
) -> int:
    """Start a run for each due effect without one; return how many were started.

    What a hold has parked and holds no longer is due too.
    """
    started = 0
    await settle_compensations(runs, effects, actor)
    if released := await runs.release_lifted(RECONCILE_BATCH):
        _log.info(
            "%d effects go on: what held them was lifted",
            released,
            extra=event("holds_released", effects=released),
        )
    for due in await runs.due_effects(RECONCILE_BATCH):
        if not may_go_on():
            break
        reach(FaultPoint.BEFORE_REQUEUE_COMMIT)
        plan = partial(changes.requeue, expected_generation=due.generation, actor=actor)
        try:
            started += await effects.change(due.tenant_id, due.effect_id, plan)
        except EffectMissing:
            continue
        except StoreError as problem:
            # One effect that is locked or troubled must not keep the others waiting.
            kind = type(problem).__name__
            _log.warning(
                "requeue of effect %s: %s",
                due.effect_id,
                kind,
                extra=event("requeue_failed", effect_id=str(due.effect_id), problem=kind),
            )
            continue
        reach(FaultPoint.AFTER_REQUEUE_COMMIT)
    return started
