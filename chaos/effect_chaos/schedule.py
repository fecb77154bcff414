"""The faults of a run, as a pure function of seed and length: what breaks, when, for how long.

Two streams. Faults of the broker's own world (its processes, its database, its fault points) are
dealt from shuffled decks, the first of which holds the gravest ones, so that a short run has them
too; faults of the target are drawn for each kind of object, from what its contract allows. The
same seed gives the same schedule in every process. What a fault hits is up to the run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from effect_chaos.tools import TOOLS, Tool
from effect_chaos.workload import APIS

HEARTBEAT_TTL_SECONDS: Final = 3.0
"""The product's own. With less, a machine that is busy with other things calls those dead that it
has only kept waiting, and hands their runs from one to the other."""
WORKERS_LEAST: Final = 2
WORKERS_MOST: Final = 4
BROKER_FAULT_SECONDS: Final = 2.0
"""Mean time between two faults of the broker's world: a killed worker needs some to come back."""
TARGET_FAULT_SECONDS: Final = 0.4
FIRST_FAULT_SECONDS: Final = 1.0
_HONEST: Final = 0.4  # honest answers among the plans, as a share of the others


class FaultKind(StrEnum):
    """What can break."""

    KILL_WORKER = "kill_worker"
    STOP_WORKER = "stop_worker"  # SIGSTOP, longer than the heartbeat's TTL, then SIGCONT
    KILL_API = "kill_api"
    STOP_API = "stop_api"
    KILL_RECONCILER = "kill_reconciler"
    ROLLING_RESTART = "rolling_restart"  # SIGTERM to one worker after the other
    ARM_KILL = "arm_kill"  # SIGKILL to the process that comes to a fault point
    ARM_STOP = "arm_stop"  # SIGSTOP to it, longer than the TTL
    CRASH_POSTGRES = "crash_postgres"  # immediate shutdown, then start
    HALT_POSTGRES = "halt_postgres"  # fast shutdown, then start
    READ_ONLY = "read_only"  # as a demoted primary
    CUT_CONNECTIONS = "cut_connections"  # every backend is terminated
    DROP_ENGINE = "drop_engine"  # DROP SCHEMA dbos CASCADE, then `effect-broker migrate`
    TARGET_DOWN = "target_down"  # SIGKILL to the target; its address refuses
    TARGET = "target"  # what the next requests of a kind meet
    LOOK_UP = "look_up"  # what the next look-ups of a kind meet
    CONNECTION = "connection"  # what the next connections to the target meet


DATABASE_FAULTS: Final = frozenset(
    {
        FaultKind.CRASH_POSTGRES,
        FaultKind.HALT_POSTGRES,
        FaultKind.READ_ONLY,
        FaultKind.CUT_CONNECTIONS,
        FaultKind.DROP_ENGINE,
    }
)
"""One of these at a time: the next waits for the one before."""

WORKER_POINTS: Final = (
    "before_reserve",
    "after_reserve",
    "before_conclude_commit",
    "after_conclude_commit",
    "before_attempt_commit",
    "after_attempt_commit",
    "before_socket_write",
    "after_target_answer",
    "before_outcome_commit",
    "after_outcome_commit",
    "before_probe",
    "after_probe_answer",
    "after_evidence_commit",
    "inside_mutation",
    "before_reap_commit",
    "after_reap_commit",
    "before_requeue_commit",
    "after_requeue_commit",
)
API_POINTS: Final = ("before_submit_commit", "after_submit_commit")

_GRAVE: Final = (
    FaultKind.KILL_WORKER,
    FaultKind.STOP_WORKER,
    FaultKind.CRASH_POSTGRES,
    FaultKind.ARM_KILL,
    FaultKind.KILL_API,
    FaultKind.READ_ONLY,
)
_DECK: Final = (
    *(FaultKind.ARM_KILL,) * 5,
    *(FaultKind.ARM_STOP,) * 3,
    *(FaultKind.KILL_WORKER,) * 2,
    *(FaultKind.STOP_WORKER,) * 2,
    *(FaultKind.CUT_CONNECTIONS,) * 2,
    FaultKind.TARGET_DOWN,
    FaultKind.KILL_API,
    FaultKind.STOP_API,
    FaultKind.KILL_RECONCILER,
    FaultKind.ROLLING_RESTART,
    FaultKind.CRASH_POSTGRES,
    FaultKind.HALT_POSTGRES,
    FaultKind.READ_ONLY,
    FaultKind.DROP_ENGINE,
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        at_seconds: when it begins, from the start of the workload.
        slot: which worker or API process.
        lasts_seconds: how long a stop, an outage or a window lasts; how long a killed process
            stays away.
        point: the fault point that is armed.
        target_kind: the kind of object whose requests it meets.
        plans: what they meet, one request after the other, in the target's own words.
    """

    at_seconds: float
    kind: FaultKind
    slot: int = 0
    lasts_seconds: float = 0.0
    point: str = ""
    target_kind: str = ""
    plans: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The fault as a line of a log."""
        parts: list[str] = [self.kind]
        if self.kind in _SLOTTED:
            parts.append(f"#{self.slot}")
        if self.point:
            parts.append(self.point)
        if self.target_kind:
            parts.append(self.target_kind)
        parts += [f"[{plan}]" for plan in self.plans]
        if self.lasts_seconds:
            parts.append(f"for {self.lasts_seconds:g} s")
        return " ".join(parts)


_SLOTTED: Final = frozenset(
    {FaultKind.KILL_WORKER, FaultKind.STOP_WORKER, FaultKind.KILL_API, FaultKind.STOP_API}
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """All faults of one run in order of time, and how many workers there are to be hit."""

    seed: int
    seconds: float
    workers: int
    faults: tuple[Fault, ...]


def make_schedule(seed: int, seconds: float) -> Schedule:
    """Return the schedule of a run; the last fault begins within `seconds`. Pure."""
    chance = random.Random(f"{seed}/schedule")
    workers = chance.randint(WORKERS_LEAST, WORKERS_MOST)
    faults = [*_broker_faults(chance, seconds, workers), *_target_faults(chance, seconds)]
    return Schedule(
        seed, seconds, workers, tuple(sorted(faults, key=lambda fault: fault.at_seconds))
    )


def _moments(chance: random.Random, seconds: float, mean_seconds: float) -> Iterator[float]:
    at = FIRST_FAULT_SECONDS
    while at < seconds:
        yield round(at, 3)
        at += chance.uniform(0.5, 1.5) * mean_seconds


def _kinds(chance: random.Random) -> Iterator[FaultKind]:
    yield from chance.sample(_GRAVE, len(_GRAVE))
    yield FaultKind.DROP_ENGINE  # after the others: little is sent until it is back
    while True:
        yield from chance.sample(_DECK, len(_DECK))


def _broker_faults(chance: random.Random, seconds: float, workers: int) -> Iterator[Fault]:
    kinds = _kinds(chance)
    for at in _moments(chance, seconds, BROKER_FAULT_SECONDS):
        kind = next(kinds)
        point, slots = "", workers
        if kind in (FaultKind.ARM_KILL, FaultKind.ARM_STOP):
            # Two of the points lie in the API, and every submit comes there.
            point = chance.choice(WORKER_POINTS + API_POINTS)
        elif kind in (FaultKind.KILL_API, FaultKind.STOP_API):
            slots = APIS
        yield Fault(at, kind, chance.randrange(slots), _lasting(chance, kind), point)


def _lasting(chance: random.Random, kind: FaultKind) -> float:
    match kind:
        case FaultKind.STOP_WORKER | FaultKind.ARM_STOP | FaultKind.STOP_API:
            least, most = HEARTBEAT_TTL_SECONDS + 0.5, HEARTBEAT_TTL_SECONDS * 2.0
        case FaultKind.READ_ONLY:
            least, most = 0.5, HEARTBEAT_TTL_SECONDS * 1.2
        case FaultKind.CUT_CONNECTIONS | FaultKind.ROLLING_RESTART:
            return 0.0
        case _:
            least, most = 0.0, 1.5
    return round(chance.uniform(least, most), 2)


def _target_faults(chance: random.Random, seconds: float) -> Iterator[Fault]:
    asked = [tool for tool in TOOLS if not tool.transactional]
    weights = [tool.weight for tool in asked]
    for at in _moments(chance, seconds, TARGET_FAULT_SECONDS):
        (tool,) = chance.choices(asked, weights)
        yield _target_fault(chance, at, tool)


def _target_fault(chance: random.Random, at: float, tool: Tool) -> Fault:
    sort = chance.random()
    if sort < 0.06:
        plans = chance.choices(("accept;RST", "accept;FIN"), k=chance.randint(1, 2))
        return Fault(at, FaultKind.CONNECTION, plans=tuple(plans))
    if sort < 0.35 and tool.blind:
        plans = chance.choices(tool.blind, k=chance.randint(1, 3))
        return Fault(at, FaultKind.LOOK_UP, target_kind=tool.kind, plans=tuple(plans))
    honest = ["ok"] * round(len(tool.plans) * _HONEST)
    plans = chance.choices([*tool.plans, *honest], k=chance.randint(1, 4))
    return Fault(at, FaultKind.TARGET, target_kind=tool.kind, plans=tuple(plans))
