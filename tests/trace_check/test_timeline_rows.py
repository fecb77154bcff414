"""Each row is judged by itself, whatever is said of the rows before it."""

from __future__ import annotations

import pytest

from effect_contracts.facts import Outcome
from trace_check.asked_alone import after, attempt
from trace_check.test_timeline import left, timeline


def test_an_attempt_is_known_by_its_own_start_whatever_stands_before_it() -> None:
    late = attempt(1, Outcome.NOT_SENT, recorded=20).model_copy(update={"started_at": after(10)})
    early = attempt(2, Outcome.NOT_SENT, recorded=2).model_copy(update={"started_at": after(1)})
    made = timeline(late, early)
    made.begin_before(after(5))
    assert [known.ordinal for known in made.attempts] == [2]


def test_every_attempt_of_which_no_event_told_is_named() -> None:
    made = timeline(*(attempt(n, Outcome.NOT_SENT, recorded=1) for n in (1, 2, 3)))
    assert left(made) == [f"no event tells that attempt {n} started" for n in (1, 2, 3)]


@pytest.mark.parametrize("seconds", [-1, 1])
def test_an_attempt_lasts_no_longer_and_no_shorter_than_was_told(seconds: float) -> None:
    row = attempt(1, Outcome.NOT_SENT, recorded=1)
    made = timeline(row)
    made.start(row)
    made.record(row)
    assert left(made) == []
    made.extend(1, after(30 + seconds))
    assert left(made) == ["no event tells how long attempt 1 lasts"]
