"""An attempt is lost from the moment at which it was presumed so, and not before."""

from __future__ import annotations

from datetime import timedelta

import pytest

from effect_contracts.facts import Outcome

from .test_history import BEGAN_AT, folded, story

LOST = Outcome.PRESUMED_AMBIGUOUS.value


@pytest.mark.parametrize(
    ("events", "lost_after", "outcome"),
    [(3, 2, LOST), (2, 2.5, None), (2, 3, None), (3, 3, LOST), (3, 3.5, None), (4, 3.5, LOST)],
)
def test_the_fold_knows_of_a_loss_once_it_has_happened(
    events: int, lost_after: float, outcome: str | None
) -> None:
    """The events of the story are a second apart."""
    lost_at = BEGAN_AT + timedelta(seconds=lost_after)
    attempt = folded(story()[:events], {1: lost_at}).attempts[1]
    assert attempt.outcome == outcome
    assert attempt.told_at == (lost_at if outcome else None)
