"""Elections at their edges: the last second of a lease, long after it, and what is told back."""

from __future__ import annotations

from uuid import uuid4

import pytest

from effect_adapters.base import Answer
from effect_broker.protocol.conclusion import Next
from effect_broker.protocol.election import Extension
from effect_contracts.facts import Outcome
from protocol.test_elections import LEASE, elected


@pytest.mark.parametrize("left", [1.0, 0.5, 0.25])
async def test_a_lease_is_held_to_its_very_end(left: float) -> None:
    desk, mine = await elected()
    desk.let_pass(LEASE - left)
    again = await desk.elect(mine)
    assert (again.elected, again.ordinal, again.lease_seconds) == (True, 1, left)
    assert await desk.extend(mine) == Extension(True, LEASE)


@pytest.mark.parametrize("late", [0.25, 1, 1000])
async def test_a_lease_that_is_over_is_not_extended(late: float) -> None:
    desk, mine = await elected()
    desk.let_pass(LEASE + late)
    version = desk.snapshot.intent.version
    assert await desk.extend(mine) == Extension(False, 0.0)
    assert desk.snapshot.intent.version == version


async def test_whoever_is_elected_is_told_the_version_that_it_has_made() -> None:
    desk, mine = await elected()
    await desk.tell(mine, Answer(Outcome.NOT_SENT, "refused", bytes_may_have_left=False))
    desk.let_pass(600)
    before = desk.snapshot.intent.version
    assert before > 2
    found = await desk.elect(uuid4())
    assert found.elected
    assert found.view.version == before + 1 == desk.snapshot.intent.version


async def test_whoever_tells_is_told_where_the_effect_stands() -> None:
    desk, mine = await elected()
    stranger = (await desk.tell(uuid4())).view
    assert (stranger.state, stranger.version) == desk.stands
    await desk.tell(mine)
    for view in ((await desk.tell(mine)).view, (await desk.tell(mine, ordinal=2)).view):
        assert (view.state, view.version) == desk.stands
        assert view.next is Next.END
