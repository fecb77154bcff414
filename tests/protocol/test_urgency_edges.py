"""A lost sender is that of its own attempt, whichever way the rows come."""

from __future__ import annotations

import pytest

from effect_broker.protocol.ports import LoseAttempt
from effect_contracts.facts import Outcome
from protocol.test_urgency import after, rows


@pytest.mark.parametrize("ordinal", [1, 2, 3])
async def test_a_sender_is_lost_with_its_own_attempt_in_rows_that_descend(ordinal: int) -> None:
    known = await rows(*[Outcome.RETRYABLE if n != ordinal else None for n in (1, 2, 3)])
    lost = after([LoseAttempt(ordinal)], attempts=known[::-1])
    assert lost.sender_lost is True
    assert lost.open_until is None
