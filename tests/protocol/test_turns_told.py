"""The event of whoever waits for a turn names it, and no other event does."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from effect_broker.protocol import conclusion
from effect_broker.protocol.ports import Advance
from effect_contracts.decide import Reason, decide
from effect_contracts.facts import Facts, Hold
from protocol.world import World


async def _told(world: World, facts: Facts) -> tuple[Reason, Advance]:
    snapshot = replace(world.snapshot, facts=facts)
    decision = decide(facts, world.document.policy(), snapshot.now)
    change = conclusion.write_decision(snapshot, facts, decision, None, "worker:w", "wait", {})
    advance = change.writes[-1]
    assert isinstance(advance, Advance)
    return decision.reason, advance


async def test_only_who_waits_for_a_turn_names_one() -> None:
    world = World("idempotent", limits={"per_second_max": 1.0})
    await world.submit()
    facts = world.snapshot.facts
    turn_at = world.clock.now() + timedelta(seconds=2)
    reason, advance = await _told(world, replace(facts, turn_at=turn_at))
    assert reason is Reason.TARGET_BUSY
    assert advance.metadata["turn_at"] == "2026-01-01T00:00:02.000000Z"
    assert advance.next_action_at == turn_at
    reason, advance = await _told(world, replace(facts, holds=frozenset({Hold.PAUSED})))
    assert reason is Reason.PAUSED
    assert "turn_at" not in advance.metadata
