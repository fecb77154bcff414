"""The worker process: hosts the engine, dispatches effects, and repairs what others left.

Life of the process: connect, beat once, launch the engine, run the repair loops, and on SIGTERM
drain: stop claiming, let sends end within their deadlines, hand the rest back, and say so. A
process that cannot beat for its TTL stops dispatching by itself (`effect_broker.process`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import Protocol

from effect_broker import __version__, repair
from effect_broker.clock import SystemClock
from effect_broker.durable import DRAIN_GRACE_SECONDS, EngineAway, Host
from effect_broker.event_delivery import Deliveries
from effect_broker.faultpoints import FaultPoints
from effect_broker.log_events import event
from effect_broker.process import WorkerProcess
from effect_broker.protocol.ports import EffectStore, Ports, StoreError
from effect_broker.tracing import Spans
from effect_contracts.document import ContractDocument

_log = logging.getLogger(__name__)

_BEATS_PER_TTL = 3
_REAP_SECONDS = 0.5
_ORPHANS_SECONDS = 1.0
_RECONCILE_SECONDS = 0.5
_QUEUE_SECONDS = 1.0
_FORGET_SECONDS = 3600.0
_DATABASE_SECONDS = 2.0
_DELIVERIES_SECONDS = 1.0
_EVENTS_SECONDS = 0.5
_STREAM_SECONDS = 10.0
# How often a worker that has just started looks whether the engine's schema is there, and after how
# many looks it says so again.
_ENGINE_SECONDS = 1.0
_ENGINE_SAID_EVERY = 30


class WorkerStore(
    EffectStore, repair.RunStore, repair.DrilledRuns, repair.CertifiedEffects, Protocol
):
    """All that a worker needs of the store."""

    async def watch_database(self) -> bool:
        """Halt dispatch after a restore or a failover; return whether it is halted."""

    async def describe_executor(self, executor_id: str, host: str, pid: int, version: str) -> None:
        """Add what a reader wants to know of an executor that has beaten once."""

    async def drain_executor(self, executor_id: str) -> None:
        """Note that this executor takes no new work; its runs stay its own."""

    async def stop_executor(self, executor_id: str) -> None:
        """Note that this executor has ended, so that its runs are handed on at once."""

    async def forget_executors(self) -> None:
        """Remove executors that have been gone for long and hold no run."""


class Worker:
    """One worker process.

    Args:
        url: database URL of the worker's role, for the engine.
        store: the broker's own store.
        ports: what the steps run on; its process must be `process`.
        ttl_seconds: after this long without a heartbeat a peer takes over.
        drain_seconds: how long a drain lets sends run; what is longer is left as lost.
        match_deliveries: matches webhook deliveries that are due with their effects.
        deliveries: delivers events to subscriptions.
        expired: is told of leases that have run out, by kind, and how many.
        spans: traces each step.
    """

    def __init__(
        self,
        url: str,
        store: WorkerStore,
        ports: Ports,
        process: WorkerProcess,
        *,
        ttl_seconds: float,
        worker_concurrency: int,
        tenant_concurrency: int | None,
        poll_seconds: float,
        drain_seconds: float,
        match_deliveries: Callable[[], Awaitable[int]] | None = None,
        deliveries: Deliveries | None = None,
        expired: Callable[[str, int], None] = lambda kind, count: None,
        spans: Spans | None = None,
    ) -> None:
        self._expired = expired
        self._drain_seconds = drain_seconds
        self._match_due = match_deliveries
        self._deliveries = deliveries
        self._halted = False
        self._store = store
        self._ports = ports
        self._process = process
        self._ttl_seconds = ttl_seconds
        self._clock = SystemClock()
        self._troubled_at_seconds: float | None = None
        self._orphans = repair.Orphans(self._clock.boot_seconds)
        self._host = Host(
            url,
            ports,
            fit=process.fit,
            worker_concurrency=worker_concurrency,
            tenant_concurrency=tenant_concurrency,
            poll_seconds=poll_seconds,
            spans=spans,
        )

    @property
    def runs(self) -> int:
        """How many runs are in this process now."""
        return len(self._host.running)

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Work until SIGTERM or SIGINT, then drain.

        Raises:
            StoreError: the database cannot be reached at the start.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._process.drain)
        await self._beat()
        await self._watch_database()  # before the first dispatch
        await self._store.describe_executor(
            self._process.executor_id, socket.gethostname(), os.getpid(), __version__
        )
        if not await self._launched():
            await self._say_goodbye()
            return
        loops = [
            asyncio.create_task(self._every(seconds, work))
            for seconds, work in (
                (self._ttl_seconds / _BEATS_PER_TTL, self._beat),
                (_REAP_SECONDS, self._reap),
                (_ORPHANS_SECONDS, self._resume_orphans),
                (_RECONCILE_SECONDS, self._reconcile),
                (_RECONCILE_SECONDS, self._release_certified),
                (_QUEUE_SECONDS, self._restore_queue),
                (_FORGET_SECONDS, self._forget),
                (_DATABASE_SECONDS, self._watch_database),
                (_DELIVERIES_SECONDS, self._match_deliveries),
                (_STREAM_SECONDS, self._follow_stream),
                (_EVENTS_SECONDS, self._deliver_events),
            )
        ]
        own = self._process.executor_id
        _log.info("worker %s is ready", own, extra=event("worker_ready", executor_id=own))
        ready()
        while not self._process.draining:
            await self._process.rest(3600.0)
        await self._drain(loops)

    async def _launched(self) -> bool:
        """Launch the engine; wait while its schema is away. False if told to end meanwhile."""
        waits = 0
        while not self._process.draining:
            try:
                await self._host.launch()
            except EngineAway as problem:
                if waits % _ENGINE_SAID_EVERY == 0:
                    _log.warning(
                        "the engine's schema (dbos) is missing or not whole (%s); waiting for it: "
                        "run `effect-broker migrate` if nobody does",
                        problem,
                        extra=event("engine_away", problem=str(problem)),
                    )
                waits += 1
                await self._process.rest(_ENGINE_SECONDS)
            else:
                return True
        return False

    async def _say_goodbye(self) -> None:
        try:
            await self._store.stop_executor(self._process.executor_id)
        except StoreError:
            _log.warning(
                "could not say goodbye; the peers take over after the TTL",
                extra=event("goodbye_failed"),
            )

    async def _drain(self, loops: list[asyncio.Task[None]]) -> None:
        own = self._process.executor_id
        _log.info("worker %s drains", own, extra=event("worker_drains", executor_id=own))
        beat, *others = loops
        for task in others:
            task.cancel()
        try:
            await self._store.drain_executor(self._process.executor_id)
        except StoreError:
            _log.warning("the drain could not be announced", extra=event("drain_unannounced"))
        # Beats go on: a draining process still holds its sends, and nobody may take them for lost.
        await self._host.drain(self._drain_seconds)
        if self._deliveries is not None:
            await self._deliveries.ended()
        ended = await self._process.sends_ended(DRAIN_GRACE_SECONDS)
        beat.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await self._say_goodbye()
        _log.info(
            "worker %s has ended%s",
            own,
            "" if ended else " in a send",
            extra=event("worker_ended", executor_id=own, in_a_send=not ended),
        )

    async def _every(self, seconds: float, work: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await work()
            except Exception as problem:
                # The store's and the engine's. The loop must outlive them; the text may hold SQL.
                # Nor more often than a reader can use: an outage fails all loops at each turn.
                loop, kind = work.__name__.lstrip("_"), type(problem).__name__
                _log.warning(
                    "%s: %s",
                    loop,
                    kind,
                    extra=event("loop_failed", loop=loop, problem=kind, seldom=f"{loop} {kind}"),
                )
            await asyncio.sleep(seconds)

    async def _watch_database(self) -> None:
        halted = await self._store.watch_database()
        if halted and not self._halted:
            _log.error(
                "the database was restored or has failed over: only idempotent effects are "
                "dispatched until `effect-broker database resume` records the lost interval",
                extra=event("dispatch_halted"),
            )
        self._halted = halted

    async def _beat(self) -> None:
        sent_at = self._clock.boot_seconds()
        try:
            await self._store.beat(self._process.executor_id, self._ttl_seconds)
        except StoreError:
            self._troubled_at_seconds = self._clock.boot_seconds()
            raise
        self._process.beaten(sent_at)

    async def _reap(self) -> None:
        troubled_at = self._troubled_at_seconds
        recently = (
            troubled_at is not None and self._clock.boot_seconds() - troubled_at < self._ttl_seconds
        )
        if recently:
            return  # when the database was away, the peers could not beat either
        self._expired("drill", await repair.take_over_drills(self._store, self._host))
        own = self._process.executor_id
        self._expired("run", await repair.reap(self._store, self._host, own, self._ports.reach))

    async def _resume_orphans(self) -> None:
        own = self._process.executor_id
        self._expired("orphan", await self._orphans.resume(self._store, self._host, own))

    async def _forget(self) -> None:
        await self._store.forget_executors()

    async def _match_deliveries(self) -> None:
        if self._match_due is not None:
            await self._match_due()

    async def _follow_stream(self) -> None:
        if self._deliveries is not None:
            await self._deliveries.follow()

    async def _deliver_events(self) -> None:
        if self._deliveries is not None:
            await self._deliveries.turn()

    async def _restore_queue(self) -> None:
        await repair.restore_queue(self._store, self._host)

    async def _release_certified(self) -> None:
        while self._process.may_dispatch():
            if not await repair.release_certified(self._store, self._identity_of):
                break

    def _identity_of(self, document: ContractDocument) -> str:
        return self._ports.adapters[document.adapter.kind].identity(document)

    async def _reconcile(self) -> None:
        actor = f"worker:{self._process.executor_id}"
        go_on = self._process.may_dispatch
        started = go_on()
        while started:  # a full batch is followed by the next one at once
            started = bool(
                await repair.reconcile(self._store, self._store, actor, self._ports.reach, go_on)
            )


class Reconciler:
    """The reconcile loop alone, by SQL, without the engine."""

    def __init__(self, store: WorkerStore, executor_id: str, faults: FaultPoints) -> None:
        self._store = store
        self._actor = f"reconciler:{executor_id}"
        self._faults = faults
        self._ending = asyncio.Event()

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Work until SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ending.set)
        ready()
        while not self._ending.is_set():
            try:
                await repair.reconcile(self._store, self._store, self._actor, self._faults.reach)
            except StoreError as problem:
                kind = type(problem).__name__
                _log.warning(
                    "reconcile: %s",
                    kind,
                    extra=event("loop_failed", loop="reconcile", problem=kind, seldom=kind),
                )
            try:
                await asyncio.wait_for(self._ending.wait(), _RECONCILE_SECONDS)
            except TimeoutError:
                continue
