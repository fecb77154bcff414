"""The axes of the matrix and its cells: the product of the three, less what has no meaning.

A cell is left out by a rule, and each rule says why. The rules are read from top to bottom; the
first one that applies is the reason that is counted.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from effect_broker.faultpoints import FaultPoint as Point
from effect_contracts.facts import SafetyClass


class TargetClass(StrEnum):
    """What the target honours. The three variants have the safety class they begin with."""

    TRANSACTIONAL = "transactional"
    IDEMPOTENT = "idempotent"
    IDEMPOTENT_EXPIRING = "idempotent-expiring"  # forgets the key while nobody can take over
    RECONCILABLE = "reconcilable"
    RECONCILABLE_LAGGING = "reconcilable-lagging"  # shows what it holds late, within its bound
    RECONCILABLE_LYING = "reconcilable-lying"  # shows it long after its bound
    UNSAFE = "unsafe"

    @property
    def safety(self) -> SafetyClass:
        """The safety class that the contract declares."""
        return SafetyClass(self.value.partition("-")[0])


class Fault(StrEnum):
    """What goes wrong at the place."""

    # Processes.
    KILL = "kill"
    STOP = "stop"
    CLOCK_AHEAD = "kill-with-clock-1h-ahead"
    CLOCK_BEHIND = "kill-with-clock-1h-behind"
    # The database, while the process waits at the place.
    RESTART = "postgres-immediate-restart"
    READ_ONLY = "postgres-read-only"
    CUT_BEFORE = "commit-cut-before-server"
    CUT_AFTER = "commit-cut-after-server"
    STATEMENT_TIMEOUT = "statement-timeout"
    ENGINE_DROPPED = "dbos-schema-dropped"
    # The target commits, and then answers badly.
    FIN = "answer-fin"
    RST = "answer-rst"
    HANG = "answer-hangs"
    STATUS_503 = "answer-503"
    TRUNCATED = "answer-truncated"
    DRIP = "answer-drips"
    # The way to the target.
    REFUSED = "connection-refused"
    DNS = "name-unknown"
    TWICE = "delivered-twice"


KILLS: Final = frozenset({Fault.KILL, Fault.CLOCK_AHEAD, Fault.CLOCK_BEHIND})
CLOCKS: Final = frozenset({Fault.CLOCK_AHEAD, Fault.CLOCK_BEHIND})
CUTS: Final = frozenset({Fault.CUT_BEFORE, Fault.CUT_AFTER})
ANSWERS: Final = frozenset(
    {Fault.FIN, Fault.RST, Fault.HANG, Fault.STATUS_503, Fault.TRUNCATED, Fault.DRIP}
)
WAYS: Final = frozenset({Fault.REFUSED, Fault.DNS, Fault.TWICE})
# The process waits at the place, lives through the fault, and goes on.
HELD: Final = frozenset(Fault) - KILLS - ANSWERS - WAYS - {Fault.STOP}

# How much slower a cell is repeated that may have failed for want of time only.
SLOW_MOTION: Final = 5.0

API_POINTS: Final = frozenset({Point.BEFORE_SUBMIT_COMMIT, Point.AFTER_SUBMIT_COMMIT})
LOOK_UP_POINTS: Final = frozenset(
    {Point.BEFORE_PROBE, Point.AFTER_PROBE_ANSWER, Point.AFTER_EVIDENCE_COMMIT}
)
CONCLUDE_POINTS: Final = frozenset({Point.BEFORE_CONCLUDE_COMMIT, Point.AFTER_CONCLUDE_COMMIT})
REAP_POINTS: Final = frozenset({Point.BEFORE_REAP_COMMIT, Point.AFTER_REAP_COMMIT})
REQUEUE_POINTS: Final = frozenset({Point.BEFORE_REQUEUE_COMMIT, Point.AFTER_REQUEUE_COMMIT})
# Nothing has been asked of the target here, so that no class differs from its variants.
_BEFORE_ATTEMPT: Final = (
    API_POINTS
    | REAP_POINTS
    | REQUEUE_POINTS
    | {Point.BEFORE_RESERVE, Point.AFTER_RESERVE, Point.BEFORE_ATTEMPT_COMMIT}
)
# What the process does next here is a commit.
_AT_COMMIT: Final = frozenset(
    {
        Point.BEFORE_SUBMIT_COMMIT,
        Point.BEFORE_CONCLUDE_COMMIT,
        Point.BEFORE_ATTEMPT_COMMIT,
        Point.BEFORE_OUTCOME_COMMIT,
        Point.AFTER_PROBE_ANSWER,
        Point.BEFORE_REQUEUE_COMMIT,
    }
)
_LAST_WRITE_DONE: Final = frozenset(
    {Point.AFTER_CONCLUDE_COMMIT, Point.AFTER_OUTCOME_COMMIT, Point.AFTER_EVIDENCE_COMMIT}
)
_VARIANTS: Final = frozenset(t for t in TargetClass if t.value != t.safety.value)


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell.

    Attributes:
        take: 2 for a repetition in slow motion (see `runner`).
    """

    target: TargetClass
    point: Point
    fault: Fault
    take: int = 1

    @property
    def name(self) -> str:
        """A name without spaces, for patterns and reports."""
        return f"{self.target}/{self.point}/{self.fault}"

    @property
    def kind(self) -> str:
        """The kind of object at the target: its ledger tells the cells apart by it."""
        return f"c{hashlib.sha256(self.operation_key.encode()).hexdigest()[:16]}"

    @property
    def operation_key(self) -> str:
        """The operation key of the cell's effect."""
        return self.name if self.take == 1 else f"{self.name}#{self.take}"

    @property
    def pace(self) -> float:
        """What the cell's times are multiplied with."""
        return 1.0 if self.take == 1 else SLOW_MOTION


@dataclass(frozen=True, slots=True)
class Omission:
    """A rule that leaves cells out."""

    reason: str
    applies: Callable[[TargetClass, Point, Fault], bool]


OMISSIONS: Final[tuple[Omission, ...]] = (
    Omission(
        "only a transactional effect has a mutation inside our transaction",
        lambda t, p, f: p is Point.INSIDE_MUTATION and t is not TargetClass.TRANSACTIONAL,
    ),
    Omission(
        "a transactional effect sends no request: its answer and its outcome are one commit",
        lambda t, p, f: (
            t is TargetClass.TRANSACTIONAL
            and (f in ANSWERS | WAYS or p is Point.AFTER_TARGET_ANSWER)
        ),
    ),
    Omission(
        "behind the last gate clocks and engine are what they were in front of it",
        lambda t, p, f: p is Point.AFTER_LAST_GATE and f in CLOCKS | {Fault.ENGINE_DROPPED},
    ),
    Omission(
        "a transactional effect looks up only after a lost worker, which is a fault of its own",
        lambda t, p, f: t is TargetClass.TRANSACTIONAL and p in LOOK_UP_POINTS,
    ),
    Omission(
        "this class has no look-up",
        lambda t, p, f: p in LOOK_UP_POINTS and t.safety is not SafetyClass.RECONCILABLE,
    ),
    Omission(
        "until the attempt a variant is its plain class",
        lambda t, p, f: t in _VARIANTS and p in _BEFORE_ATTEMPT,
    ),
    Omission(
        "a later look that concludes is led up to in one way for each class",
        lambda t, p, f: t in _VARIANTS and p in CONCLUDE_POINTS,
    ),
    Omission(
        "runs are handed over by the engine's own writes, which a requeue does not depend on",
        lambda t, p, f: p in REAP_POINTS and f is not Fault.KILL,
    ),
    Omission(
        "a conclusion that stands is read by others, on their clocks and not on its writer's",
        lambda t, p, f: p is Point.AFTER_CONCLUDE_COMMIT and f in CLOCKS,
    ),
    Omission(
        "what the target or the way to it does strikes where a request leaves",
        lambda t, p, f: (
            f in ANSWERS | WAYS and p not in {Point.BEFORE_SOCKET_WRITE, Point.BEFORE_PROBE}
        ),
    ),
    Omission(
        "a look-up that is delivered twice is two look-ups",
        lambda t, p, f: f is Fault.TWICE and p is Point.BEFORE_PROBE,
    ),
    Omission(
        "a contract has one origin: its look-up's name is the one that its request resolved",
        lambda t, p, f: f is Fault.DNS and p is Point.BEFORE_PROBE,
    ),
    Omission(
        "there is no commit to cut here",
        lambda t, p, f: f in CUTS and p not in _AT_COMMIT,
    ),
    Omission(
        "the last write has been made: no statement is left to time out",
        lambda t, p, f: f is Fault.STATEMENT_TIMEOUT and p in _LAST_WRITE_DONE,
    ),
    Omission(
        "only the workers' clocks are moved: an API process measures no time",
        lambda t, p, f: f in CLOCKS and p in API_POINTS,
    ),
)


def omission(target: TargetClass, point: Point, fault: Fault) -> str | None:
    """Return the reason why a cell is left out, None for one that runs."""
    for rule in OMISSIONS:
        if rule.applies(target, point, fault):
            return rule.reason
    return None


def _product() -> list[tuple[TargetClass, Point, Fault]]:
    return [(t, p, f) for f in Fault for p in Point for t in TargetClass]


CELLS: Final = tuple(Cell(*axes) for axes in _product() if omission(*axes) is None)
OMITTED: Final[Mapping[str, int]] = Counter(
    reason for axes in _product() if (reason := omission(*axes)) is not None
)


def select(only: str | None = None, sample_size: int | None = None) -> tuple[Cell, ...]:
    """Return the cells whose name matches a pattern, or a spread sample of those.

    The pattern may hold `*`, `?` and `[…]`; a plain word matches anywhere in the name.
    """
    pattern = only if only is None or any(c in only for c in "*?[") else f"*{only}*"
    cells = [c for c in CELLS if pattern is None or fnmatchcase(c.name, pattern)]
    return tuple(cells) if sample_size is None else sample(cells, sample_size)


def sample(cells: list[Cell], size: int) -> tuple[Cell, ...]:
    """Return `size` of the cells, always the same, spread as evenly as they go over the axes.

    Each time the cell is taken whose class, place and fault were taken least so far.
    """
    taken: Counter[StrEnum] = Counter()
    left = sorted(cells, key=lambda cell: cell.kind)  # a fixed shuffle
    chosen: list[Cell] = []
    while left and len(chosen) < size:
        best = min(left, key=lambda c: sorted((taken[c.target], taken[c.point], taken[c.fault])))
        left.remove(best)
        chosen.append(best)
        taken.update([best.target, best.point, best.fault])
    return tuple(cell for cell in cells if cell in chosen)
