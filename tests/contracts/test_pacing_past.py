"""What is over is over: a turn of the past is no turn."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from effect_contracts.pacing import Pace, place

from .test_pacing import NOW, ONE_PLACE


@pytest.mark.parametrize("waited", [False, True])
def test_turns_that_are_over_hold_nobody_up_and_bring_nobody_forward(waited: bool) -> None:
    """The next turn is as far from now as where nobody has ever had one."""
    fresh = Pace(open_attempts=1, hold_seconds=0.1)
    over_at = NOW - timedelta(seconds=7)
    past = replace(fresh, turns_at=over_at, again_at=over_at)
    expected = place(ONE_PLACE, fresh, NOW, waited=waited).turn_at
    assert expected is not None
    assert expected > NOW
    assert place(ONE_PLACE, past, NOW, waited=waited).turn_at == expected
