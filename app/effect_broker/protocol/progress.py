"""What counts as progress of a run: a generation in which a fact was added has got somewhere.

An effect whose runs end without one, again and again, is parked (`changes.requeue`): something is
wrong that another run does not mend.
"""

from __future__ import annotations

from typing import Final

from effect_broker.protocol.ports import (
    AddApproval,
    AddEvidence,
    AddReceipt,
    AskToReconcile,
    ExtendAttempt,
    FenceMutation,
    KeepPace,
    LoseAttempt,
    RecordOutcome,
    StartAttempt,
    Write,
)

_FACTS: Final = (
    StartAttempt,
    ExtendAttempt,
    LoseAttempt,
    RecordOutcome,
    AddEvidence,
    FenceMutation,
    AddReceipt,
    AskToReconcile,
    AddApproval,
    KeepPace,  # a turn that was given, or taken
)


def adds_a_fact(write: Write) -> bool:
    """Whether the write is one after which its generation has got somewhere."""
    return isinstance(write, _FACTS)
