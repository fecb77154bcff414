"""Two marks on a settled effect: undone by another, and its alert dealt with by somebody."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from effect_broker.protocol.acknowledgement import Acknowledged, Acknowledgement, acknowledge
from effect_broker.protocol.compensation import undo
from effect_broker.protocol.ports import Acknowledge, Advance, Change, Snapshot
from effect_contracts.facts import Alert, EffectState
from protocol.world import World

OTHER = UUID(int=9)


async def settled(world: World) -> Snapshot:
    await world.submit()
    await world.run()
    return world.snapshot


def written(change: Change[Any]) -> Advance:
    (advance,) = [write for write in change.writes if isinstance(write, Advance)]
    return advance


async def test_what_has_succeeded_is_undone_once_and_nothing_is_ahead_of_it(
    idempotent: World,
) -> None:
    snapshot = await settled(idempotent)
    due = replace(snapshot, intent=replace(snapshot.intent, next_action_at=snapshot.now))
    change = undo(due, by=OTHER, actor="worker:test")
    advance = written(change)
    assert change.result is True
    assert advance.state is EffectState.COMPENSATED
    assert (advance.next_action_at, advance.parked) == (None, False)
    assert advance.metadata == {"by": str(OTHER)}


@pytest.mark.parametrize("state", [s for s in EffectState if s is not EffectState.SUCCEEDED])
async def test_what_has_not_succeeded_is_not_undone(idempotent: World, state: EffectState) -> None:
    snapshot = await settled(idempotent)
    other = replace(snapshot, intent=replace(snapshot.intent, state=state))
    assert undo(other, by=OTHER, actor="worker:test") == Change(False)


@pytest.mark.parametrize("alert", list(Alert))
async def test_an_alert_is_dealt_with_by_its_own_name(idempotent: World, alert: Alert) -> None:
    snapshot = await settled(idempotent)
    said = Acknowledgement(alert, "seen at the target", "operator:test")
    assert acknowledge(snapshot, said) == Change(Acknowledged.NOTHING_THERE)
    for present in Alert:
        at = snapshot.now
        intent = replace(snapshot.intent, next_action_at=at)
        change = acknowledge(replace(snapshot, alert=present, intent=intent), said)
        if present is not alert:
            assert change == Change(Acknowledged.ANOTHER_ALERT)
            continue
        advance = written(change)
        assert change.result is Acknowledged.NEW
        assert Acknowledge(alert, said.reason, said.actor) in change.writes
        assert (advance.state, advance.parked) == (snapshot.intent.state, False)
        assert advance.next_action_at == at  # what was ahead of it still is
