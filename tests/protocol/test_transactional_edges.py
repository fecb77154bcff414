"""The budget of a mutation: what has run out ends it before it begins, under a name of its own."""

from __future__ import annotations

import pytest

from protocol.world import World


@pytest.mark.parametrize("late_by", [0.0, 0.5, 100.0])
async def test_a_budget_that_is_spent_is_said_to_be(transactional: World, late_by: float) -> None:
    await transactional.submit()
    transactional.on_reach["after_attempt_commit"] = lambda: transactional.let_pass(30 + late_by)
    await transactional.dispatch(1, 1)
    (attempt,) = transactional.snapshot.facts.attempts
    assert (attempt.outcome, attempt.code) == ("not_sent", "budget_spent")
    assert "inside_mutation" not in transactional.reached
