"""The named fault points: this module owns their names and what an armed one does.

A fault point is a place at which a proof may stop the process. In production nothing is armed and
`reach` returns at once. There are two ways to arm a point:

    EFFECT_BROKER_FAULT=after_target_answer:kill,before_socket_write:stop@2
        for this process; `@n` picks the n-th time that the point is reached (default 1)
    EFFECT_BROKER_FAULT_DIR=/some/dir
        for all processes that share the directory, while they run: a file named
        `after_target_answer.kill` arms the point once. The process that meets it renames the
        file to `after_target_answer.kill.fired.<pid>` and acts, so that a restarted process does
        not die at the same point for ever.

The action is `kill` (SIGKILL to this process), `stop` (SIGSTOP to this process) or `gate` (wait,
with the whole process, until `<point>.release` stands in the directory).
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

ENV_FAULT = "EFFECT_BROKER_FAULT"
ENV_FAULT_DIR = "EFFECT_BROKER_FAULT_DIR"


class FaultPoint(StrEnum):
    """Every place at which a process can be stopped on purpose."""

    BEFORE_SUBMIT_COMMIT = "before_submit_commit"
    AFTER_SUBMIT_COMMIT = "after_submit_commit"
    BEFORE_RESERVE = "before_reserve"
    AFTER_RESERVE = "after_reserve"
    BEFORE_CONCLUDE_COMMIT = "before_conclude_commit"
    AFTER_CONCLUDE_COMMIT = "after_conclude_commit"
    BEFORE_ATTEMPT_COMMIT = "before_attempt_commit"
    AFTER_ATTEMPT_COMMIT = "after_attempt_commit"
    BEFORE_SOCKET_WRITE = "before_socket_write"
    AFTER_LAST_GATE = "after_last_gate"
    AFTER_TARGET_ANSWER = "after_target_answer"
    BEFORE_OUTCOME_COMMIT = "before_outcome_commit"
    AFTER_OUTCOME_COMMIT = "after_outcome_commit"
    BEFORE_PROBE = "before_probe"
    AFTER_PROBE_ANSWER = "after_probe_answer"
    AFTER_EVIDENCE_COMMIT = "after_evidence_commit"
    INSIDE_MUTATION = "inside_mutation"
    BEFORE_REAP_COMMIT = "before_reap_commit"
    AFTER_REAP_COMMIT = "after_reap_commit"
    BEFORE_REQUEUE_COMMIT = "before_requeue_commit"
    AFTER_REQUEUE_COMMIT = "after_requeue_commit"


class FaultAction(StrEnum):
    """What an armed point does."""

    KILL = "kill"
    STOP = "stop"
    GATE = "gate"


class FaultSpecInvalid(ValueError):
    """The environment names an unknown point or action."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One armed point: the action at the `nth` time that the point is reached."""

    point: FaultPoint
    action: FaultAction
    nth: int = 1


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Read the value of EFFECT_BROKER_FAULT.

    Raises:
        FaultSpecInvalid: with the words that are allowed.
    """
    faults = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        point, _, rest = item.partition(":")
        action, _, nth = rest.partition("@")
        try:
            faults.append(Fault(FaultPoint(point), FaultAction(action or "kill"), int(nth or 1)))
        except ValueError:
            points = ", ".join(FaultPoint)
            raise FaultSpecInvalid(
                f"{ENV_FAULT}: {item!r} is not point[:kill|stop|gate][@n]; points: {points}"
            ) from None
    return tuple(faults)


class FaultPoints:
    """The fault points of one process.

    Args:
        faults: armed for this process.
        directory: where points are armed while processes run; None for none.
    """

    def __init__(self, faults: tuple[Fault, ...] = (), directory: Path | None = None) -> None:
        self._faults = faults
        self._directory = directory
        self._reached: Counter[FaultPoint] = Counter()
        self._lock = threading.Lock()

    @classmethod
    def from_environment(cls) -> FaultPoints:
        """Arm what the environment names; nothing in production.

        Raises:
            FaultSpecInvalid: the variable cannot be read.
        """
        directory = os.environ.get(ENV_FAULT_DIR)
        return cls(
            parse_faults(os.environ.get(ENV_FAULT, "")), Path(directory) if directory else None
        )

    def reach(self, name: str) -> None:
        """Report that execution is at the point `name`; returns at once unless it is armed."""
        if not self._faults and self._directory is None:
            return
        point = FaultPoint(name)
        with self._lock:
            self._reached[point] += 1
            count = self._reached[point]
        for fault in self._faults:
            if fault.point is point and fault.nth == count:
                self._act(point, fault.action)
        if self._directory is not None:
            for action in FaultAction:
                if _disarmed(self._directory / f"{point}.{action}"):
                    self._act(point, action)

    def _act(self, point: FaultPoint, action: FaultAction) -> None:
        match action:
            case FaultAction.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case FaultAction.STOP:
                os.kill(os.getpid(), signal.SIGSTOP)
            case FaultAction.GATE:
                assert self._directory is not None, f"a gate needs {ENV_FAULT_DIR}"
                release = self._directory / f"{point}.release"
                # A gate stops the whole process on purpose, as a long pause would.
                while not release.exists():
                    threading.Event().wait(0.01)


def arm(directory: Path, point: FaultPoint, action: FaultAction) -> None:
    """Arm a point once for the processes that share the directory."""
    (directory / f"{point}.{action}").touch()


def fired(directory: Path, point: FaultPoint, action: FaultAction) -> tuple[int, ...]:
    """Return the ids of the processes that have met the armed point."""
    return tuple(int(path.suffix[1:]) for path in directory.glob(f"{point}.{action}.fired.*"))


def _disarmed(armed: Path) -> bool:
    try:
        armed.rename(f"{armed}.fired.{os.getpid()}")  # atomic: one process gets it
    except FileNotFoundError:
        return False
    return True
