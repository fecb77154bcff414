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
    """The three steps of one effect and generation, as the engine calls and records them.

    `begin` is none of them: it says the same whenever it is asked, and nobody records it
    (`steps.begin`).
    """

    def begin(self) -> Awaitable[StepResult]: ...

    def reserve(self) -> Awaitable[StepResult]: ...

    def dispatch(self, version: int, ordinal: int) -> Awaitable[StepResult]: ...

    def probe(self, version: int) -> Awaitable[StepResult]: ...


async def drive(steps: StepCalls, *, new: bool = False) -> str:
    """Run the steps until the run ends; return the last known state as a word for the engine.

    Args:
        new: of the run that a submit has enqueued. If all goes well nobody has touched the effect
            since, so that it is not read before it is sent.
    """
    seen = await (steps.begin() if new else steps.reserve())
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
