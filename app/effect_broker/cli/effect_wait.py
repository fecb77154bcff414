"""Waiting for one effect: as long as it takes, by what the effect itself says of its next step.

No fixed number of seconds is waited in all. The next look is when the effect's next action is due
on the database clock, or a little earlier while an attempt is open, since its answer may come at
any time. The wait ends when the effect does, or when only a person can move it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

from effect_broker.cli.reasons import words_of
from effect_broker.protocol.ports import StoreBusy, StoreUnavailable
from effect_broker.reading import EffectDetail
from effect_contracts.counting import span
from effect_contracts.facts import EffectState
from effect_contracts.life import is_final

# A look right after a change, then further apart: most effects settle within a second, and one
# that does not is read twice a minute at most by each who waits.
_LOOK_FIRST_SECONDS: Final = 0.05
_LOOK_FACTOR: Final = 1.5
_LOOK_CAP_SECONDS: Final = 30.0
# While an attempt is open its answer comes long before its deadline, which is the next action.
_OPEN_CAP_SECONDS: Final = 1.0
# After the due time a run needs a moment; a worker that died is followed within its TTL.
_OVERDUE_SECONDS: Final = 10.0
_OUTAGE_PAUSE_SECONDS: Final = 1.0
# So long a person may wait before the screen.
_SHORT_SECONDS: Final = 120.0

EXIT_SUCCEEDED: Final = 0
EXIT_FAILED: Final = 1
EXIT_NOT_KNOWN: Final = 3


class EffectLook(Protocol):
    """The one read that waiting needs."""

    async def effect(self, tenant_id: UUID, effect_id: UUID) -> EffectDetail:
        """Return the effect as it stands; raises EffectMissing, StoreError."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Why the wait is over."""

    detail: EffectDetail
    exit_code: int
    explanation: str


async def follow(
    reads: EffectLook,
    tenant_id: UUID,
    effect_id: UUID,
    timeout_seconds: float | None,
    say: Callable[[str], None],
) -> Ending:
    """Return when the effect is final, waits for a person, or the time is over.

    `say` gets a line at each change and when nobody acts. An outage of the database is waited out.

    Raises:
        EffectMissing, StoreError.
    """
    loop = asyncio.get_running_loop()
    ends_at = None if timeout_seconds is None else loop.time() + timeout_seconds
    seen: tuple[int, EffectState] | None = None
    latest: EffectDetail | None = None
    pause = _LOOK_FIRST_SECONDS
    warned = False
    while True:
        left = None if ends_at is None else ends_at - loop.time()
        try:
            latest = detail = await reads.effect(tenant_id, effect_id)
        except (StoreUnavailable, StoreBusy) as problem:
            if latest is None or (left is not None and left <= 0):
                raise
            say(f"the database does not answer ({type(problem).__name__}); trying on")
            await asyncio.sleep(_OUTAGE_PAUSE_SECONDS)
            continue
        ending = _ended(detail)
        if ending is not None:
            return ending
        if left is not None and left <= 0:
            return Ending(detail, EXIT_NOT_KNOWN, f"not ended in time; {next_step(detail)}")
        intent = detail.intent
        if seen != (intent.version, intent.state):
            if seen is None or seen[1] is not intent.state:
                say(f"{intent.state.value} ({intent.reason}); {next_step(detail)}")
            seen = (intent.version, intent.state)
            pause, warned = _LOOK_FIRST_SECONDS, False
        if not warned and overdue_seconds(detail) > _OVERDUE_SECONDS:
            say("its next action is overdue and nobody acts: is a worker running? See "
                "`effect-broker doctor`")  # fmt: skip
            warned = True
        rest = next_look_seconds(detail, pause)
        await asyncio.sleep(rest if left is None else min(rest, left))
        pause = min(pause * _LOOK_FACTOR, _LOOK_CAP_SECONDS)


def next_look_seconds(detail: EffectDetail, pause_seconds: float) -> float:
    """Return how long to rest before the next look.

    Never past the moment at which the next action is due; before it only for what may come early.
    """
    if detail.intent.state is EffectState.DISPATCHING:
        pause_seconds = min(pause_seconds, _OPEN_CAP_SECONDS)
    due = -overdue_seconds(detail)
    if due <= 0:
        return min(pause_seconds, _OPEN_CAP_SECONDS)
    return max(_LOOK_FIRST_SECONDS, min(pause_seconds, due))


def overdue_seconds(detail: EffectDetail) -> float:
    """Return for how long the next action has been due on the database clock; negative before."""
    at = detail.intent.next_action_at
    return 0.0 if at is None else (detail.now - at).total_seconds()


def next_step(detail: EffectDetail) -> str:
    """Return in words what happens next and when."""
    if is_final(detail.intent.state):
        at = detail.intent.next_action_at
        if at is not None:
            return f"settled; its objects at the target are counted at {at:%Y-%m-%d %H:%M:%S}Z"
        return "nothing more happens"
    if detail.intent.next_action_at is None:
        return "nothing happens by itself; a person or new evidence ends it"
    late = overdue_seconds(detail)
    moment = f"{detail.intent.next_action_at:%Y-%m-%d %H:%M:%S}Z"
    if late > _OVERDUE_SECONDS:
        return f"next action was due {span(late)} ago ({moment})"
    if late >= 0:
        return "next action is due now"
    left = f"{-late:.1f} s" if -late < _SHORT_SECONDS else span(-late)
    return f"next action in {left} ({moment})"


def _ended(detail: EffectDetail) -> Ending | None:
    words = words_of(detail.intent.reason)
    match detail.intent.state:
        case EffectState.SUCCEEDED:
            return Ending(detail, EXIT_SUCCEEDED, words.meaning)
        case EffectState.FAILED_FINAL | EffectState.CANCELLED:
            return Ending(detail, EXIT_FAILED, words.meaning)
        case EffectState.COMPENSATED:
            return Ending(detail, EXIT_FAILED, "It happened, and a linked effect has undone it.")
        case _ if detail.parked:
            text = f"Waits for a person. {words.meaning} {words.remedy or ''}".strip()
            return Ending(detail, EXIT_NOT_KNOWN, text)
        case _:
            return None
