"""Repair: the loops that keep every effect moving although processes, engine and database fail.

    beat       tells the peers that this executor lives (database clock)
    reap       hands the runs of executors whose heartbeat is dead back to the queue
    orphans    does the same for runs that are pending on this executor but not in it
    reconcile  starts a new generation for effects that are due and have no live run
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
from effect_broker.protocol import changes
from effect_broker.protocol.ports import EffectMissing, EffectStore, StoreError
from effect_contracts.backoff import exponential_seconds

_log = logging.getLogger(__name__)

# Effects taken up by one tick of the reconcile loop. A tick that finds this many runs again at
# once, so that the bound limits memory and the length of a tick, not the speed of a recovery.
RECONCILE_BATCH = 100

# A run that is pending here but not in this process is an orphan only after this time: DBOS marks
# a run as pending a moment before it enters it.
ORPHAN_AFTER_SECONDS = 3.0

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

    async def queue_registered(self) -> bool:
        """Return whether the engine's queue exists; True if its whole schema is missing."""


class RunHost(Protocol):
    """What repair asks the engine's host to do."""

    @property
    def running(self) -> frozenset[str]: ...

    async def recover(self, executor_ids: list[str]) -> int: ...

    async def resume(self, run_ids: list[str]) -> None: ...

    async def ensure_queue(self) -> None: ...


async def reap(store: RunStore, host: RunHost, own_executor_id: str) -> int:
    """Hand back the runs of dead executors; return how many runs."""
    dead = [e for e in await store.dead_executors() if e != own_executor_id]
    if not dead:
        return 0
    count = await host.recover(dead)
    if count:
        _log.warning("handed back %d runs of dead executors %s", count, ", ".join(dead))
    return count


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

    async def resume(self, store: RunStore, host: RunHost, own_executor_id: str) -> int:
        """Hand orphans back to the queue; return how many."""
        pending = await store.pending_runs(own_executor_id, ORPHAN_AFTER_SECONDS)
        running = host.running  # read after the rows: a run that has just ended is in neither
        orphans = self._due([run_id for run_id in pending if run_id not in running])
        if orphans:
            await host.resume(orphans)
            _log.warning("handed back %d orphaned runs", len(orphans))
        return len(orphans)

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


async def restore_queue(store: RunStore, host: RunHost) -> None:
    """Register the queue if it is missing although the engine's schema is there."""
    if not await store.queue_registered():
        await host.ensure_queue()
        _log.warning("registered the queue again")


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
    if released := await runs.release_lifted(RECONCILE_BATCH):
        _log.info("%d effects go on: what held them was lifted", released)
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
            _log.warning("requeue of effect %s: %s", due.effect_id, type(problem).__name__)
            continue
        reach(FaultPoint.AFTER_REQUEUE_COMMIT)
    return started
