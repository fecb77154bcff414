"""A run: the loop that drives an effect as far as it can go now.

The loop holds no policy. It reads only what the steps returned, and no clock of its own, so that
an engine which replays it with recorded results takes the same branches. It ends when the effect
is final, waits for a person, or has to wait longer than a slot is worth; then the stored next
action is what continues it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from datetime import datetime
from typing import Protocol

from effect_broker.protocol.conclusion import Next
from effect_broker.protocol.steps import SHORT_WAIT_SECONDS

StepResult = Mapping[str, str | int | None]

# A run of more steps than this hands over to a new one. The bound keeps the engine's history of
# a run small; it is far above what any contract needs in one go.
STEPS_MAX = 64

# Of the run that a submit enqueues.
GENERATION_FIRST = 1


class StepCalls(Protocol):
    """The three steps of one effect and generation, as the engine calls and records them."""

    def reserve(self) -> Awaitable[StepResult]: ...

    def dispatch(self, version: int, ordinal: int) -> Awaitable[StepResult]: ...

    def probe(self, version: int) -> Awaitable[StepResult]: ...


class Parts(StepCalls, Protocol):
    """The steps themselves, which record nothing."""

    def begin(self) -> Awaitable[StepResult]: ...


async def opened(parts: Parts, *, new: bool) -> StepResult:
    """What the engine records as `reserve`: see what is next, and where that is to send, send.

    One recorded step instead of two, for nearly every effect. Nothing is lost with the record in
    between: whoever enters this again meets the attempt's row, as after any other step.

    Args:
        new: of the first step of an effect's first run. Nobody has touched the effect, if all goes
            well, so that it is sent without being read first (`steps.begin`).
    """
    if new:
        seen = await parts.begin()
        if Next(str(seen["next"])) is not Next.RELOAD:
            return seen
    seen = await parts.reserve()
    if Next(str(seen["next"])) is Next.DISPATCH:
        seen = await parts.dispatch(_number(seen, "version"), _number(seen, "ordinal"))
    return seen


async def drive(steps: StepCalls) -> str:
    """Run the steps until the run ends; return the last known state as a word for the engine."""
    seen = await steps.reserve()
    for _ in range(STEPS_MAX):
        match Next(str(seen["next"])):
            case Next.DISPATCH:
                seen = await steps.dispatch(_number(seen, "version"), _number(seen, "ordinal"))
            case Next.PROBE:
                seen = await steps.probe(_number(seen, "version"))
            case Next.RELOAD:
                seen = await steps.reserve()
            case Next.WAIT if _wait_seconds(seen) <= SHORT_WAIT_SECONDS:
                seen = await steps.reserve()
            case Next.WAIT | Next.END:
                break
    return str(seen["state"])


def _number(seen: StepResult, name: str) -> int:
    value = seen[name]
    assert isinstance(value, int)
    return value


def _wait_seconds(seen: StepResult) -> float:
    at, now = seen["at"], seen["now"]
    return (datetime.fromisoformat(str(at)) - datetime.fromisoformat(str(now))).total_seconds()
