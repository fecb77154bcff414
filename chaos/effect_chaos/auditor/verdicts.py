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


@dataclass(frozen=True, slots=True)
class Rule:
    """One promise and the judge of it, who yields a check for everything that it compared."""

    name: str
    promise: str
    checks: Callable[[Case], Checks]


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
    """What one rule came to. A rule that compared nothing has proved nothing."""

    rule: Rule
    checked: int
    violations: tuple[Violation, ...]


def judged(rule: Rule, case: Case) -> Verdict:
    """Apply one rule."""
    checked = 0
    violations: list[Violation] = []
    for check in rule.checks(case):
        checked += 1
        if check.problem is not None:
            violations.append(Violation(rule.name, check.operation, check.problem))
    return Verdict(rule, checked, tuple(violations))
