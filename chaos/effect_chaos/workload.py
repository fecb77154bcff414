"""The workload of a run, as a pure function of seed and length: who asks for what, when and how.

It promises nothing about what the broker does with it. Every operation has one honest request and
outcomes that are legal for it; a caller may send that request again (at once from several threads,
later, with its members in another order), may go away after a first try, may ask for something
else under the same key, and may read. The same seed gives the same workload in every process.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from effect_chaos import records
from effect_chaos.records import Operation
from effect_chaos.tools import TOOLS, Tool

TENANTS: Final = ("north", "south", "east", "west")
APIS: Final = 2
OPERATIONS_PER_SECOND: Final = 5.0
"""What two cores carry beside five processes, a database and faults, with some room."""
OPERATIONS_LEAST: Final = 24  # enough that every tool has some
_SHARED_KEY: Final = 0.12  # the part of the operations whose key another tenant uses as well
_READ: Final = 0.5  # the part of the operations that are read while the faults go on


class Manner(StrEnum):
    """How a caller makes one call."""

    SUBMIT = "submit"  # the honest request, again and again until it is answered
    ONCE = "once"  # the honest request, one try; the caller is gone then
    REORDERED = "reordered"  # the honest request, its members in another order
    DRIFT = "drift"  # another request under the key, once the honest one was acknowledged
    OTHER_TOOL = "other_tool"  # the same arguments for another tool, as above
    READ = "read"
    RECEIPT = "receipt"
    LIST = "list"


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a plan; `api` is the API process that it goes to first."""

    at_seconds: float
    manner: Manner
    api: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One operation and all that callers do about it, in order of time."""

    operation: Operation
    tool: Tool
    amount: int
    calls: tuple[Call, ...]

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the honest request."""
        return self.tool.arguments(self.operation.marker, self.amount)

    def request(self, manner: Manner) -> tuple[str, dict[str, Any]]:
        """Return tool and arguments that a submit of this manner sends."""
        arguments = self.arguments
        match manner:
            case Manner.REORDERED:
                return self.tool.name, dict(reversed(arguments.items()))
            case Manner.DRIFT:
                step = -1 if self.amount > 1 else 1
                return self.tool.name, self.tool.arguments(
                    self.operation.marker, self.amount + step
                )
            case Manner.OTHER_TOOL:
                return _other(self.tool).name, arguments
            case _:
                return self.tool.name, arguments


@dataclass(frozen=True, slots=True)
class Workload:
    """All plans of one run, in order of their first call."""

    seed: int
    seconds: float
    plans: tuple[Plan, ...]

    def calls(self) -> Iterator[tuple[Call, Plan]]:
        """Every call with its plan, in order of time."""
        every = [(call, plan) for plan in self.plans for call in plan.calls]
        return iter(sorted(every, key=lambda pair: pair[0].at_seconds))


def make_workload(seed: int, seconds: float) -> Workload:
    """Return the workload of a run; `seconds` is how long callers submit. Pure."""
    chance = random.Random(f"{seed}/workload")
    count = max(OPERATIONS_LEAST, round(seconds * OPERATIONS_PER_SECOND))
    tools = _dealt(chance, count)
    begins = sorted(round(chance.uniform(0.0, seconds * 0.9), 3) for _ in range(count))
    plans: list[Plan] = []
    taken: set[tuple[str, str]] = set()
    for number, (tool, at_seconds) in enumerate(zip(tools, begins, strict=True)):
        tenant = chance.choice(TENANTS)
        key = f"{tool.name}:{number:04d}"
        if plans and chance.random() < _SHARED_KEY:
            # One key, two tenants: two effects that must not know of each other.
            shared = chance.choice(plans).operation.operation_key
            if (tenant, shared) not in taken:
                key = shared
        taken.add((tenant, key))
        amount = chance.randint(1, 99_999)
        plans.append(_plan(chance, seed, tenant, key, tool, amount, at_seconds, seconds))
    return Workload(seed, seconds, tuple(plans))


def _dealt(chance: random.Random, count: int) -> list[Tool]:
    """Return `count` tools: every tool early, each as often as its weight says."""
    deck = [tool for tool in TOOLS for _ in range(tool.weight)]
    tools = list(TOOLS)
    chance.shuffle(tools)
    while len(tools) < count:
        chance.shuffle(deck)
        tools += deck
    return tools[:count]


def _plan(
    chance: random.Random,
    seed: int,
    tenant: str,
    key: str,
    tool: Tool,
    amount: int,
    at_seconds: float,
    seconds: float,
) -> Plan:
    marker = records.marker_of(tenant, key, f"chaos-{seed}")
    arguments = tool.arguments(marker, amount)
    operation = Operation(
        tenant=tenant,
        operation_key=key,
        tool=tool.name,
        kind=tool.kind,
        safety=tool.safety,
        marker=marker,
        request_digest=records.digest_of({"tool": tool.name, "arguments": arguments}),
        legal_states=tool.legal_states,
        effects_most=tool.effects_most,
        effects_least=min(1, tool.effects_most),
        may_park=tool.may_park,
    )
    return Plan(operation, tool, amount, tuple(_calls(chance, at_seconds, seconds)))


def _calls(chance: random.Random, at_seconds: float, seconds: float) -> Iterator[Call]:
    """One caller's life with one operation."""

    def call(manner: Manner, after_seconds: float = 0.0) -> Call:
        at = min(at_seconds + after_seconds, seconds)
        return Call(round(at, 3), manner, chance.randrange(APIS))

    def later() -> float:
        return chance.uniform(0.1, max(0.2, seconds * 0.6))

    habit = chance.random()
    if habit < 0.1:
        yield call(Manner.ONCE)
        return
    yield call(Manner.SUBMIT)
    if habit < 0.35:
        for _ in range(chance.randint(1, 4)):
            yield call(chance.choice((Manner.SUBMIT, Manner.REORDERED)))
    if habit > 0.75:
        yield call(chance.choice((Manner.SUBMIT, Manner.REORDERED)), later())
    if chance.random() < 0.2:
        yield call(chance.choice((Manner.DRIFT, Manner.DRIFT, Manner.OTHER_TOOL)), later())
    if chance.random() < _READ:
        for _ in range(chance.randint(1, 3)):
            yield call(chance.choice((Manner.READ, Manner.READ, Manner.RECEIPT)), later())
    if chance.random() < 0.05:
        yield call(Manner.LIST, later())


def _other(tool: Tool) -> Tool:
    """A tool that takes the same arguments."""
    return next(
        each for each in TOOLS if each is not tool and each.transactional == tool.transactional
    )
