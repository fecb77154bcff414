"""What a person may conclude, at the very moment from which it counts."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from effect_broker.protocol import resolution
from effect_contracts.facts import Certified, Conclusion, EffectState, Hold
from protocol.test_judging import TICK, in_doubt
from protocol.world import World, contract


@pytest.mark.parametrize(("ends_after", "helps"), [(1 * TICK, False), (2 * TICK, True)])
async def test_whether_absence_helps_is_judged_at_the_first_moment_at_which_it_counts(
    ends_after: timedelta, helps: bool
) -> None:
    """The target's certificate ends just then: a moment before, it lets the effect be sent."""
    world = World("reconcilable")
    snapshot = await in_doubt(world)
    recorded_at, bound = snapshot.facts.attempts[0].recorded_at, timedelta(seconds=60)
    assert recorded_at is not None
    ends_at = recorded_at + bound + ends_after
    identity = world.adapter.identity(world.document)
    demanding = contract("reconcilable", oversight={"certificate": {}})
    there = replace(
        snapshot,
        document=demanding,
        parked=True,
        intent=replace(
            snapshot.intent, state=EffectState.MANUAL_REVIEW, reason=Hold.AWAITING_CERTIFICATE
        ),
        facts=replace(
            snapshot.facts,
            certificates=(Certified("c-1", identity, frozenset(), recorded_at, ends_at),),
        ),
    )
    stated = {found.conclusion for found in resolution.permitted(there)}
    assert (Conclusion.NOT_COMMITTED in stated) is helps
