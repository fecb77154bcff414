"""How urgent an effect is after a change: until when its key lives, and who was lost while sending.

Every store asks this file at every change, so that no plan can forget it. Nothing here decides what
is sent; it is the order in which a person sees what is not resolved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from effect_broker.protocol.ports import (
    Advance,
    AttemptRow,
    ExtendAttempt,
    LoseAttempt,
    RecordOutcome,
    StartAttempt,
    Urgency,
    Write,
)
from effect_contracts.decide import deadline
from effect_contracts.facts import Attempt, EffectState, Outcome, Policy
from effect_contracts.life import LifeEvent, is_final
from effect_contracts.retention import key_expires_at

NO_URGENCY: Final = Urgency()


def urgency_after(
    before: Urgency,
    state: EffectState,
    attempts: Sequence[AttemptRow],
    writes: Sequence[Write],
    policy: Policy,
) -> Urgency:
    """Return the urgency after `writes`; the other arguments are from before them.

    An attempt whose sender was lost counts as lost until its sender speaks after all, or until
    every attempt is proved not to have committed.
    """
    known = {row.attempt_id: row.fact for row in attempts}
    lost = before.sender_lost
    for write in writes:
        match write:
            case StartAttempt(attempt_id=attempt_id):
                known[attempt_id] = Attempt(write.ordinal, write.started_at, write.deadline_at)
            case ExtendAttempt(attempt_id=attempt_id, deadline_at=deadline_at):
                known[attempt_id] = replace(known[attempt_id], deadline_at=deadline_at)
            case LoseAttempt(ordinal=ordinal):
                attempt_id = next(i for i, fact in known.items() if fact.ordinal == ordinal)
                presumed = replace(known[attempt_id], outcome=Outcome.PRESUMED_AMBIGUOUS)
                known[attempt_id], lost = presumed, True
            case RecordOutcome(attempt_id=attempt_id):
                known[attempt_id] = replace(
                    known[attempt_id], outcome=write.outcome, recorded_at=write.recorded_at
                )
                lost = lost and any(map(_presumed, known.values()))
            case Advance():
                state = write.state
                lost = lost and write.event is not LifeEvent.NO_COMMIT_PROVED
    if is_final(state):
        return NO_URGENCY
    facts = tuple(known.values())
    return Urgency(
        key_expires_at=key_expires_at(facts, policy),
        open_until=max((deadline(a, policy) for a in facts if a.outcome is None), default=None),
        sender_lost=lost,
    )


def _presumed(attempt: Attempt) -> bool:
    return attempt.outcome is Outcome.PRESUMED_AMBIGUOUS
