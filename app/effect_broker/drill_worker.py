"""The worker of one drill: it takes one effect, and dies at the fault point that was armed for it.

It is a worker in all that concerns its effect: the same steps, the same ports, a heartbeat of its
own. It listens to the drill's queue alone and repairs nothing, so that nothing else dies with it.
It counts as draining from the first moment, since it takes no ordinary work.

What arms the fault is the drill's row, that is, an operator; the environment has no part in it, and
so it works in production too. If the effect comes to rest in here, or goes on elsewhere, the drill
has missed, and the process ends in order.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final
from uuid import UUID

from effect_broker import __version__, hosting
from effect_broker.clock import SystemClock
from effect_broker.drills import SAYS_DIES, DrillRecord, DrillStatus, point_of_death
from effect_broker.durable import DRAIN_GRACE_SECONDS, Host
from effect_broker.faultpoints import FaultPoint
from effect_broker.log_events import event
from effect_broker.process import WorkerProcess
from effect_broker.protocol.ports import Ports, StoreError
from effect_broker.store.drills import PostgresDrills
from effect_broker.worker import WorkerStore
from effect_contracts.errors import NotFound

_log = logging.getLogger(__name__)

_BEATS_PER_TTL: Final = 3
_LOOK_SECONDS: Final = 0.1
# A run's slot here is for one effect.
_CONCURRENCY: Final = 1


class DrillFault:
    """The one fault of this process; nothing is armed before the drill's row was read."""

    def __init__(self) -> None:
        self._point: FaultPoint | None = None

    def arm(self, point: FaultPoint) -> None:
        """Die when execution comes to this point."""
        self._point = point

    def reach(self, name: str) -> None:
        """Report that execution is at the point `name`; does not return from the armed one."""
        if name != self._point:
            return
        # Not `print`: whatever is buffered dies too, and a reader must know that it was here.
        with suppress(OSError):
            os.write(sys.stdout.fileno(), f"{SAYS_DIES}{name}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)


class DrillWorker:
    """One worker process for the effect of one drill.

    Args:
        url: database URL of the worker's role, for the engine.
        ports: what the steps run on; its process must be `process`, and it reaches `fault`.
        ttl_seconds: after this long without a heartbeat the ordinary workers take over.
        drain_seconds: how long a drain lets a send run.
    """

    def __init__(
        self,
        url: str,
        store: WorkerStore,
        drills: PostgresDrills,
        ports: Ports,
        process: WorkerProcess,
        fault: DrillFault,
        subject: tuple[UUID, UUID],
        *,
        ttl_seconds: float,
        poll_seconds: float,
        drain_seconds: float,
    ) -> None:
        self._store = store
        self._drills = drills
        self._process = process
        self._fault = fault
        self._tenant_id, self._drill_id = subject
        self._ttl_seconds = ttl_seconds
        self._drain_seconds = drain_seconds
        self._clock = SystemClock()
        self._queue_name = hosting.drill_queue_name(self._drill_id)
        self._announced = False
        self._entered = False
        self._host = Host(
            url,
            ports,
            fit=self._fit,
            worker_concurrency=_CONCURRENCY,
            tenant_concurrency=_CONCURRENCY,
            poll_seconds=poll_seconds,
            queue_name=self._queue_name,
        )

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Wait for the drill's effect, and run it; returns only if the fault was not met.

        Raises:
            StoreError: the database cannot be reached at the start.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._process.drain)
        executor_id = self._process.executor_id
        await self._beat()
        await self._store.drain_executor(executor_id)
        await self._store.watch_database()
        await self._store.describe_executor(
            executor_id, socket.gethostname(), os.getpid(), __version__
        )
        await self._host.launch()
        beating = asyncio.create_task(self._beating())
        ready()
        while not (self._process.draining or await self._over()):
            await self._process.rest(_LOOK_SECONDS)
        self._process.drain()
        await self._end(beating)

    async def _fit(self) -> None:
        """Begin a step of the effect's run: with the fault armed, if the row can be read."""
        await self._process.fit()
        self._entered = True
        record = await self._read()
        if record is None or record.effect is None:
            return
        await self._announce()
        if self._announced:  # nobody dies unknown
            self._fault.arm(point_of_death(record.point, record.effect.safety))

    async def _over(self) -> bool:
        """Whether there is nothing left to wait for."""
        if self._entered:
            return not self._host.running  # a run that ends here has not met the fault
        record = await self._read()
        if record is None:
            return False  # not armed yet, or not to be read now
        await self._announce()
        if record.status not in {DrillStatus.ARMED, DrillStatus.MATCHED}:
            return True
        if record.matched_at is None:
            return False
        # From then on the effect is the ordinary workers'.
        return record.now >= record.matched_at + timedelta(seconds=record.takeover_seconds)

    async def _announce(self) -> None:
        if self._announced:
            return
        with suppress(StoreError):
            await self._drills.announce(self._tenant_id, self._drill_id, self._process.executor_id)
            self._announced = True

    async def _read(self) -> DrillRecord | None:
        try:
            return await self._drills.drill(self._tenant_id, self._drill_id)
        except (NotFound, StoreError):
            return None

    async def _beat(self) -> None:
        sent_at = self._clock.boot_seconds()
        await self._store.beat(self._process.executor_id, self._ttl_seconds)
        self._process.beaten(sent_at)

    async def _beating(self) -> None:
        while True:
            await asyncio.sleep(self._ttl_seconds / _BEATS_PER_TTL)
            try:
                await self._beat()
            except StoreError as problem:
                kind = type(problem).__name__
                _log.warning(
                    "beat: %s",
                    kind,
                    extra=event("loop_failed", loop="beat", problem=kind, seldom=kind),
                )

    async def _end(self, beating: asyncio.Task[None]) -> None:
        """Drain like any worker; what is left of the run goes to the ordinary ones at once."""
        try:
            await self._host.remove_queue(self._queue_name)
        except Exception as problem:
            # The engine's. The row of a queue that nobody uses does no harm.
            kind = type(problem).__name__
            _log.warning(
                "the drill's queue stays: %s", kind, extra=event("drill_queue_left", problem=kind)
            )
        await self._host.drain(self._drain_seconds)
        await self._process.sends_ended(DRAIN_GRACE_SECONDS)
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        try:
            await self._store.stop_executor(self._process.executor_id)
        except StoreError:
            _log.warning(
                "could not say goodbye; the peers take over after the TTL",
                extra=event("goodbye_failed"),
            )
