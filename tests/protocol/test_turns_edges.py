"""Only a turn is waited for so briefly: every other short wait is slept through."""

from __future__ import annotations

from datetime import timedelta

import pytest

from effect_contracts.facts import Hold
from protocol.world import World


@pytest.mark.parametrize("hold", [Hold.PAUSED, Hold.TENANT_DISABLED])
async def test_what_expires_in_a_moment_is_waited_for_in_the_run(hold: Hold) -> None:
    world = World("idempotent")
    world.memory.holds.add(hold)
    await world.submit(send_before=world.clock.now() + timedelta(seconds=3))
    await world.run()
    assert world.process.rested == [3.0]
    assert world.state == ("failed_final", "expired")
    assert world.target.sent == []
