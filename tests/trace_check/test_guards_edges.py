"""The rules on settling at their edges: a moment counts once it has come, however long ago."""

from __future__ import annotations

import pytest

from effect_contracts.facts import EffectState
from effect_contracts.trace.findings import Rule
from effect_contracts.trace.guards import check_settlement
from trace_check.asked_alone import TICK, after, holds, known


@pytest.mark.parametrize(
    ("seconds", "counts"), [(-TICK, False), (0, True), (TICK, True), (1e6, True)]
)
def test_an_end_and_a_withdrawal_count_from_their_moment_on(seconds: float, counts: bool) -> None:
    at = after(100 + seconds)
    expired, withdrawn = known(send_before=100), known(cancel_asked=100)
    support = (Rule.SUPPORT, check_settlement)
    assert holds(*support, expired, EffectState.FAILED_FINAL, at) is counts
    assert holds(*support, withdrawn, EffectState.CANCELLED, at) is counts
