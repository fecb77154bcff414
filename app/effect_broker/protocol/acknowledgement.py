"""Acknowledging an alert: a person has dealt with it, and it no longer waits for anybody.

It changes nothing of the effect but that. An alert that comes later is another one; whoever names
an alert that is no longer the present one is told, and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from effect_broker.protocol.ports import Acknowledge, Advance, Change, Snapshot
from effect_contracts.facts import Alert
from effect_contracts.life import LifeEvent, move


class Acknowledged(StrEnum):
    """What has become of an acknowledgement."""

    NEW = "new"
    NOTHING_THERE = "nothing_there"
    ANOTHER_ALERT = "another_alert"


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """What a person says of an alert."""

    alert: Alert
    reason: str
    actor: str


def acknowledge(snapshot: Snapshot, said: Acknowledgement) -> Change[Acknowledged]:
    """Take the alert from the effect, with the reason on record."""
    intent = snapshot.intent
    if snapshot.alert is None:
        return Change(Acknowledged.NOTHING_THERE)
    if snapshot.alert is not said.alert:
        return Change(Acknowledged.ANOTHER_ALERT)
    advance = Advance(
        event=LifeEvent.LATE_FACT,
        state=move(intent.state, LifeEvent.LATE_FACT),
        reason=intent.reason,
        next_action_at=intent.next_action_at,
        parked=False,
        actor=said.actor,
        kind="acknowledged",
        metadata={"alert": said.alert.value},
    )
    return Change(Acknowledged.NEW, (Acknowledge(said.alert, said.reason, said.actor), advance))
