"""Who has come in vain leaves room for the other tenants' turns too."""

from __future__ import annotations

import pytest

from effect_contracts.pacing import Pace, place

from .test_pacing import NOW, ONE_PLACE, seconds


@pytest.mark.parametrize(("others", "waits"), [(0, 0.05), (1, 0.1), (2, 0.15)])
def test_the_second_try_is_spread_over_the_tenants_who_wait(others: int, waits: float) -> None:
    pace = Pace(open_attempts=1, hold_seconds=0.1, others=others)
    assert seconds(place(ONE_PLACE, pace, NOW, waited=True).turn_at) == pytest.approx(waits)
