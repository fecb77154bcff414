"""The life of an effect: this file owns its states and every legal move between them.

An effect starts as `prepared` when its intent is committed and moves only by the events below.
`LIFE` is one literal; a pair that does not stand in it is illegal, raises and changes nothing.
No other module assigns a state: a store writes what `move` returns. The diagram in the
documentation is printed from this table.

What happens is decided elsewhere (`effect_contracts.decide`); this table is the second,
independent opinion on it. A final state has no event that leads out of it, but for one:
`succeeded` becomes `compensated` when a linked effect has undone it. `late_fact` keeps the state
on purpose, so that facts which come after the end are stored and rewrite nothing.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from effect_contracts.facts import FINAL_STATES, EffectState


class IllegalTransition(Exception):
    """A move that does not stand in `LIFE`: a mistake of the broker's own, never of a caller."""

    def __init__(self, state: EffectState, event: LifeEvent) -> None:
        super().__init__(f"no move from {state} by {event}")
        self.state = state
        self.event = event


class LifeEvent(StrEnum):
    """What can happen to an effect, by what it shows."""

    NOTHING_SENT = "nothing_sent"  # no attempt exists; it waits for its first one
    ATTEMPT_STARTED = "attempt_started"  # transaction 1 granted an attempt
    ATTEMPT_OPEN = "attempt_open"  # a fact arrived while an attempt may still be sending
    NO_COMMIT_PROVED = "no_commit_proved"  # every attempt is cleared; another may follow
    OUTCOME_LOST = "outcome_lost"  # some attempt may have committed and nothing tells
    EVIDENCE_SOUGHT = "evidence_sought"  # the target is being asked
    REVIEW_NEEDED = "review_needed"  # only a person can go on
    COMMIT_PROVED = "commit_proved"  # the effect exists
    FAILURE_PROVED = "failure_proved"  # it does not exist and will not be tried again
    CANCEL_GRANTED = "cancel_granted"  # withdrawn before a first attempt
    UNDONE = "undone"  # a linked effect has compensated it
    LATE_FACT = "late_fact"  # something was learned after the end


_S = EffectState
_E = LifeEvent

# What may follow once an attempt exists and the effect is not final.
_AFTER_AN_ATTEMPT: Final = {
    _E.ATTEMPT_STARTED: _S.DISPATCHING,
    _E.ATTEMPT_OPEN: _S.DISPATCHING,
    _E.NO_COMMIT_PROVED: _S.RETRYABLE,
    _E.OUTCOME_LOST: _S.OUTCOME_UNKNOWN,
    _E.EVIDENCE_SOUGHT: _S.RECONCILING,
    _E.REVIEW_NEEDED: _S.MANUAL_REVIEW,
    _E.COMMIT_PROVED: _S.SUCCEEDED,
    _E.FAILURE_PROVED: _S.FAILED_FINAL,
}

LIFE: Final[dict[EffectState, dict[LifeEvent, EffectState]]] = {
    _S.PREPARED: {
        _E.NOTHING_SENT: _S.PREPARED,
        _E.ATTEMPT_STARTED: _S.DISPATCHING,
        _E.REVIEW_NEEDED: _S.MANUAL_REVIEW,
        _E.FAILURE_PROVED: _S.FAILED_FINAL,
        _E.CANCEL_GRANTED: _S.CANCELLED,
    },
    _S.DISPATCHING: _AFTER_AN_ATTEMPT,
    _S.RETRYABLE: _AFTER_AN_ATTEMPT,
    _S.OUTCOME_UNKNOWN: _AFTER_AN_ATTEMPT,
    _S.RECONCILING: _AFTER_AN_ATTEMPT,
    _S.MANUAL_REVIEW: {
        **_AFTER_AN_ATTEMPT,
        # A run that kept failing before its first attempt was parked; a person let it go on.
        _E.NOTHING_SENT: _S.PREPARED,
        _E.CANCEL_GRANTED: _S.CANCELLED,
    },
    _S.SUCCEEDED: {
        _E.LATE_FACT: _S.SUCCEEDED,
        _E.UNDONE: _S.COMPENSATED,
    },
    _S.FAILED_FINAL: {_E.LATE_FACT: _S.FAILED_FINAL},
    _S.CANCELLED: {_E.LATE_FACT: _S.CANCELLED},
    _S.COMPENSATED: {_E.LATE_FACT: _S.COMPENSATED},
}


def move(state: EffectState, event: LifeEvent) -> EffectState:
    """Return the state after `event`.

    Raises:
        IllegalTransition: the pair does not stand in `LIFE`; nothing has changed.
    """
    target = LIFE[state].get(event)
    if target is None:
        raise IllegalTransition(state, event)
    return target


def is_final(state: EffectState) -> bool:
    """Whether no attempt, probe or decision of the broker can follow."""
    return state in FINAL_STATES


def mermaid() -> str:
    """Return the state diagram as Mermaid text, printed from `LIFE`; the docs hold a copy."""
    lines = ["stateDiagram-v2", "    [*] --> prepared : submitted"]
    for state, moves in LIFE.items():
        by_target: dict[EffectState, list[str]] = {}
        for event, target in moves.items():
            by_target.setdefault(target, []).append(event.value)
        lines += [
            f"    {state} --> {target} : {', '.join(events)}"
            for target, events in by_target.items()
        ]
    lines += [f"    {state} --> [*]" for state in LIFE if is_final(state)]
    return "\n".join(lines) + "\n"
