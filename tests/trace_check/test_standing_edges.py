"""Where an effect stands, at the edges: what sorts before and after, and the last event alone."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from effect_contracts.facts import EffectState, Verdict
from effect_contracts.trace.findings import Rule
from effect_contracts.trace.standing import standing_findings
from trace_check.asked_alone import after
from trace_check.test_standing import (
    LOST,
    NO_FENCES,
    NOT_DUE,
    Found,
    _event,
    due,
    ended,
    identity_of,
    line,
    mutated,
    own,
    standing,
)


def test_another_id_or_tool_is_found_wherever_it_sorts() -> None:
    wrong = (Rule.IDENTITY, "the effect's id does not follow from its operation key")
    assert identity_of(effect_id=UUID("f" * 32)) == [wrong]
    differs = (Rule.CONTRACT, "the intent and its contract differ in the tool")
    assert identity_of(tool="a") == identity_of(tool="z") == [differs]


def test_absence_of_one_attempt_stands_on_its_fence() -> None:
    absent = (own(Verdict.NOT_COMMITTED, through=1),)
    assert mutated((1, "fence"), rows=(LOST,), evidence=absent) == []
    assert mutated(rows=(LOST,), evidence=absent) == [NO_FENCES]


def _standing_after(*events_at: float, updated: float, due_at: float) -> Found:
    told: dict[str, Any] = {"updated_at": after(updated), "next_action_at": after(due_at)}
    made = line(intent=told, events=tuple(_event(after(at)) for at in events_at))
    return [(found.rule, found.what) for found in standing_findings(made, ended(due(5)))]


def test_what_came_after_an_earlier_event_only_is_the_last_events_own() -> None:
    assert _standing_after(0, 2, 3, updated=3, due_at=6) == [NOT_DUE]
    assert _standing_after(0, 2, 3, updated=4, due_at=6) == []


@pytest.mark.parametrize(("reason", "moves"), [("target_busy", True), ("a", False), ("z", False)])
def test_a_turn_in_vain_moves_the_next_action_as_far_as_the_target_needs(
    reason: str, moves: bool
) -> None:
    """It is no event. Every other wait is moved by a quarter of an hour at most."""
    for at in (1, 5000):
        found = standing(ended(due(5)), updated=10, due=at, reason=reason)
        assert found == ([] if moves else [NOT_DUE]), at
        untouched = standing(ended(due(5)), updated=0, due=at, reason=reason)
        assert untouched == [NOT_DUE], at
    final = EffectState.SUCCEEDED
    assert standing(ended(due(5)), updated=10, state=final, reason=reason) == [NOT_DUE]
