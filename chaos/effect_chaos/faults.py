"""The faults of a run, carried out: the schedule's words become signals, outages and scripts.

Each fault runs in a thread of its own, so that one that lasts delays no other; faults of the
database come one at a time. `Keeper` is the service manager of the run: it fills empty slots again
and lets processes go on that a fault point has stopped. The promise: when `Faults.lift` returns,
nothing is armed, stopped, read-only or away because of a fault.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final, assert_never

from effect_chaos.database import Database
from effect_chaos.outside import Outside
from effect_chaos.processes import Slot, go_on
from effect_chaos.run_clock import RunClock
from effect_chaos.schedule import DATABASE_FAULTS, Fault, FaultKind, Schedule
from effect_contracts.counting import counted

LOGS: Final = "logs"
_TICK_SECONDS: Final = 0.1
_THREADS: Final = 32  # more than can last or wait for each other at the same time
_LIFT_SECONDS: Final = 240.0  # a migration on a machine that is busy with other things
_RECOVERY_SECONDS: Final = 1.0  # what a restart or a migration takes on an idle machine, about

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class World:
    """What the faults act on."""

    directory: Path
    database: Database
    outside: Outside
    workers: tuple[Slot, ...]
    apis: tuple[Slot, ...]
    reconciler: Slot

    @property
    def armed(self) -> Path:
        """Where fault points are armed for all processes."""
        return self.directory / "faults"

    @property
    def logs(self) -> Path:
        """Where every process of the broker writes."""
        return self.directory / LOGS

    @property
    def slots(self) -> Sequence[Slot]:
        """Every slot."""
        return (*self.workers, *self.apis, self.reconciler)

    @property
    def staffed(self) -> bool:
        """Whether a worker and an API are there."""
        return any(slot.whole for slot in self.workers) and any(slot.whole for slot in self.apis)


class Keeper:
    """Fills slots again, and continues what a fault point has stopped.

    Args:
        stops: for each armed point with action `stop`, how long the stopped process stays so.
    """

    def __init__(self, world: World, tell: Tell) -> None:
        self.fired: list[str] = []
        """Every fault point that a process has met, as `point.action`."""
        self.stops: dict[str, float] = {}
        self._world = world
        self._tell = tell
        self._stopped: dict[Path, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; whatever is stopped goes on first."""
        self._ended.set()
        self._thread.join()

    def let_all_go_on(self) -> None:
        """SIGCONT to every process that a fault point has stopped."""
        self.stops = dict.fromkeys(self.stops, 0.0)
        self._look_at_points()
        for slot in self._world.slots:
            slot.child.send(signal.SIGCONT)

    def _keep(self) -> None:
        while not self._ended.wait(_TICK_SECONDS):
            for slot in self._world.slots:
                if slot.keep():
                    self._tell(f"{slot.name} is started again")
            self._look_at_points()
        self.let_all_go_on()

    def _look_at_points(self) -> None:
        now = time.monotonic()
        for met in self._world.armed.glob("*.fired.*"):
            point, action, _, pid = met.name.split(".")
            if met not in self._stopped:
                self._stopped[met] = now
                self.fired.append(f"{point}.{action}")
                self._tell(f"process {pid} has met {point}: {action}")
            if action == "kill" or now - self._stopped[met] >= self.stops.get(point, 0.0):
                if action == "stop":
                    go_on(int(pid))
                met.unlink(missing_ok=True)
                # Process ids come again: what was met once is forgotten with its file.
                self._stopped.pop(met, None)


class Faults:
    """Carries out one schedule.

    Args:
        tell: is told of each fault as it begins.
    """

    def __init__(self, world: World, keeper: Keeper, tell: Tell) -> None:
        self.done: list[Fault] = []
        self.mishaps: list[str] = []
        """Faults that could not be carried out: a run without its faults proves nothing."""
        self._world = world
        self._keeper = keeper
        self._tell = tell
        self._database_lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="fault")
        self._begun: list[Future[None]] = []
        self._over = threading.Event()
        self._ends_at: dict[Fault, float] = {}

    @property
    def recovering(self) -> bool:
        """Whether an outage takes longer than it was meant to."""
        now = time.monotonic()
        return any(now > ends_at for ends_at in list(self._ends_at.values()))

    def run(self, schedule: Schedule, clock: RunClock) -> None:
        """Begin every fault at its time; returns when the last one has begun."""
        for fault in schedule.faults:
            if not clock.wait_until(fault.at_seconds):
                return
            self._tell(fault.words)
            self._begun.append(self._pool.submit(self._watched, fault))

    def lift(self) -> None:
        """End every fault but what the target has in store; processes may still be starting."""
        self._over.set()
        self._disarm()
        late = wait(self._begun, _LIFT_SECONDS).not_done
        if late:
            faults = counted(len(late), "fault")
            self.mishaps.append(f"{faults} did not end within {_LIFT_SECONDS:g} s")
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._disarm()  # what was armed by a fault that had only just begun
        self._keeper.let_all_go_on()
        self._world.database.restore_engine()

    def _disarm(self) -> None:
        for armed in self._world.armed.glob("*.*"):
            if ".fired." not in armed.name:
                armed.unlink(missing_ok=True)

    # -- one fault -------------------------------------------------------------------------------

    def _watched(self, fault: Fault) -> None:
        outage = fault.kind in DATABASE_FAULTS or fault.kind is FaultKind.TARGET_DOWN
        try:
            with self._database_lock if fault.kind in DATABASE_FAULTS else nullcontext():
                if self._over.is_set():
                    return  # its turn comes too late: the quiet is about to begin
                if outage:
                    self._ends_at[fault] = (
                        time.monotonic() + fault.lasts_seconds + _RECOVERY_SECONDS
                    )
                self._carry_out(fault)
            self.done.append(fault)
        except Exception as problem:  # the run goes on, and is judged as one that lacks a fault
            self.mishaps.append(f"{fault.words}: {type(problem).__name__}: {problem}")
            self._tell(f"could not be carried out: {self.mishaps[-1]}")
        finally:
            self._ends_at.pop(fault, None)

    def _carry_out(self, fault: Fault) -> None:
        world, lasts = self._world, fault.lasts_seconds
        match fault.kind:
            case FaultKind.KILL_WORKER:
                world.workers[fault.slot].kill(lasts)
            case FaultKind.STOP_WORKER:
                self._pause(world.workers[fault.slot], lasts)
            case FaultKind.KILL_API:
                world.apis[fault.slot].kill(lasts)
            case FaultKind.STOP_API:
                self._pause(world.apis[fault.slot], lasts)
            case FaultKind.KILL_RECONCILER:
                world.reconciler.kill(lasts)
            case FaultKind.ROLLING_RESTART:
                for slot in world.workers:
                    slot.terminate()
            case FaultKind.ARM_KILL:
                (world.armed / f"{fault.point}.kill").touch()
            case FaultKind.ARM_STOP:
                self._keeper.stops[fault.point] = lasts
                (world.armed / f"{fault.point}.stop").touch()
            case FaultKind.CRASH_POSTGRES:
                world.database.crash(lasts)
            case FaultKind.HALT_POSTGRES:
                world.database.halt(lasts)
            case FaultKind.READ_ONLY:
                world.database.be_read_only(lasts)
            case FaultKind.CUT_CONNECTIONS:
                world.database.cut_connections()
            case FaultKind.DROP_ENGINE:
                world.database.drop_engine(lasts)
            case FaultKind.TARGET_DOWN:
                world.outside.go_down(lasts)
            case FaultKind.TARGET:
                world.outside.script(fault.plans, kind=fault.target_kind)
            case FaultKind.LOOK_UP:
                world.outside.script(fault.plans, kind=fault.target_kind, method="GET")
            case FaultKind.CONNECTION:
                world.outside.script(fault.plans)
            case never:
                assert_never(never)

    @staticmethod
    def _pause(slot: Slot, lasts_seconds: float) -> None:
        child = slot.child
        child.send(signal.SIGSTOP)
        time.sleep(lasts_seconds)
        child.send(signal.SIGCONT)
