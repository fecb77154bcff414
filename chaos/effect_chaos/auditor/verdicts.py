"""What the auditor says: checks, what they found, and what a rule came to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from effect_chaos.auditor.case import Case

NOBODY = "-"
"""Stands for the operation where a finding belongs to none."""


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison that was made. `problem` is None where the promise held."""

    operation: str
    problem: str | None = None


Checks: TypeAlias = Iterator[Check]


def _operates(case: Case) -> bool:
    return bool(case.operations)


def must_end(case: Case) -> bool:
    """Whether an operation has to end: none of its outcomes leaves it to a person."""
    return any(not operation.may_park for operation in case.operations)


@dataclass(frozen=True, slots=True)
class Rule:
    """One promise and the judge of it, who yields a check for everything that it compared.

    `owes` says of a workload, and of nothing that came of it, whether there has to be something to
    compare: without, any operation is enough.
    """

    name: str
    promise: str
    checks: Callable[[Case], Checks]
    owes: Callable[[Case], bool] = _operates


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise."""

    rule: str
    operation: str
    problem: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.operation}: {self.problem}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one rule came to. A rule that compared nothing has proved nothing.

    `owed`: the workload made sure that there was something to compare.
    """

    rule: Rule
    checked: int
    violations: tuple[Violation, ...]
    owed: bool

    @property
    def idle(self) -> bool:
        """Whether it has compared nothing where it had to: what it judges was not seen."""
        return self.owed and not self.checked


def judged(rule: Rule, case: Case) -> Verdict:
    """Apply one rule."""
    checked = 0
    violations: list[Violation] = []
    for check in rule.checks(case):
        checked += 1
        if check.problem is not None:
            violations.append(Violation(rule.name, check.operation, check.problem))
    return Verdict(rule, checked, tuple(violations), rule.owes(case))
