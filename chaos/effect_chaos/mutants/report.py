"""The figures: per module, how many mutants the tests have killed, and which they have not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from effect_chaos.mutants.campaign import Task
from effect_chaos.mutants.equivalents import Equivalents
from effect_chaos.mutants.mutations import Mutant, diff
from effect_chaos.mutants.session import Session, Status

SHARE_LEAST = 0.95
_ROW = "{:<38} {:>7} {:>7} {:>9} {:>9} {:>10} {:>7} {:>7}"


@dataclass(frozen=True, slots=True)
class Figures:
    """The counts of one module, or of all.

    Attributes:
        asked: mutants that were asked for.
        killed: a test failed, or could not even be imported.
        timed_out: the tests did not end; counted as killed.
        survived: all tests passed, and nobody has said why that is right.
        equivalent: all tests passed, and the committed list says why; left out of the share.
        due: not run yet, or run against what has changed since.
    """

    asked: int
    killed: int
    timed_out: int
    survived: int
    equivalent: int
    due: int

    @property
    def share(self) -> float | None:
        """The part that was killed, 0 to 1; None if no mutant counts."""
        counted = self.killed + self.timed_out + self.survived
        return (self.killed + self.timed_out) / counted if counted else None

    @property
    def good(self) -> bool:
        """Whether enough were killed of those that have run."""
        return self.share is None or self.share >= SHARE_LEAST


def figures(task: Task, session: Session, equivalents: Equivalents) -> Figures:
    """Count one module."""
    found = [(mutant, task.known(session, mutant)) for mutant in task.asked]
    by = dict.fromkeys(Status, 0)
    equivalent = 0
    for mutant, result in found:
        if result is None:
            continue
        by[result.status] += 1
        if result.status is Status.SURVIVED:
            equivalent += equivalents.reason(task.target.name, mutant) is not None
    return Figures(
        asked=len(task.asked),
        killed=by[Status.KILLED],
        timed_out=by[Status.TIMED_OUT],
        survived=by[Status.SURVIVED] - equivalent,
        equivalent=equivalent,
        due=sum(result is None for _, result in found),
    )


def survivors(task: Task, session: Session, equivalents: Equivalents) -> list[Mutant]:
    """Return the mutants that no test has noticed and that no entry explains."""
    return [
        mutant
        for mutant in task.asked
        if (result := task.known(session, mutant)) is not None
        and result.status is Status.SURVIVED
        and equivalents.reason(task.target.name, mutant) is None
    ]


def total(parts: Iterable[Figures]) -> Figures:
    """Add up."""
    parts = list(parts)
    return Figures(
        asked=sum(part.asked for part in parts),
        killed=sum(part.killed for part in parts),
        timed_out=sum(part.timed_out for part in parts),
        survived=sum(part.survived for part in parts),
        equivalent=sum(part.equivalent for part in parts),
        due=sum(part.due for part in parts),
    )


def survivors_text(task: Task, session: Session, equivalents: Equivalents) -> str:
    """Return the survivors as diffs; "" if there are none."""
    found = survivors(task, session, equivalents)
    return "\n\n".join(diff(task.target.path, task.source, mutant) for mutant in found)


def table(named: Iterable[tuple[str, Figures]]) -> str:
    """Return the counts as text, one line for each module, and their sum."""
    rows = list(named)
    rows.append(("all", total(part for _, part in rows)))
    head = (
        "module",
        "mutants",
        "killed",
        "timed out",
        "survived",
        "equivalent",
        "not run",
        "share",
    )
    lines = [_ROW.format(*head)]
    for name, part in rows:
        share = "-" if part.share is None else f"{part.share:.1%}"
        counts = (part.killed, part.timed_out, part.survived, part.equivalent, part.due)
        lines.append(_ROW.format(name, part.asked, *counts, share))
    return "\n".join(lines)
