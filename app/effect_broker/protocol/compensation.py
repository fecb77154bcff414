"""Compensating: an effect that has succeeded is undone once a linked effect has succeeded.

The two are effects of their own, with keys of their own; nothing of the first is sent again. Its
receipt stays, as the record of what was done before it was undone.
"""

from __future__ import annotations

from uuid import UUID

from effect_broker.protocol.ports import Advance, Change, Snapshot
from effect_contracts.facts import EffectState
from effect_contracts.life import LifeEvent, move


def undo(snapshot: Snapshot, *, by: UUID, actor: str) -> Change[bool]:
    """Mark a succeeded effect as compensated by the effect `by`; False where it is no longer so.

    Nothing is ahead of it any more: to count its objects at the target would find them gone.
    """
    intent = snapshot.intent
    if intent.state is not EffectState.SUCCEEDED:
        return Change(False)
    advance = Advance(
        event=LifeEvent.UNDONE,
        state=move(intent.state, LifeEvent.UNDONE),
        reason=intent.reason,
        next_action_at=None,
        parked=False,
        actor=actor,
        kind="compensated",
        metadata={"by": str(by)},
    )
    return Change(True, (advance,))
