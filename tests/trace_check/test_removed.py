"""Effects whose rows retention has removed: the rest is believed only where it is whole."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from effect_contracts.trace import Rule, verify_lines
from trace_check import corpus
from trace_check.forging import Line, end_of, parsed, sealed


@pytest.fixture(scope="module")
def settled() -> list[Line]:
    """The account of a settled effect that was sent."""
    for seed in range(50):
        lines = parsed(corpus.scheduled("idempotent", seed))
        intent = lines[2]["intent"]
        settled = intent["state"] == "succeeded" and intent["alert"] is None
        if settled and intent["next_action_at"] is None and lines[2]["attempts"]:
            return lines
    raise AssertionError("no schedule settles its effect")


def removed(effect: Line) -> Line:
    """What retention leaves of it."""
    left = copy.deepcopy(effect)
    left["intent"]["retention_stage"] = 3
    return left | {"attempts": [], "events": [], "evidence": []}


def judged(lines: list[Line], effect: Line, *, whole: bool = False) -> set[Rule]:
    header, contract = lines[0], lines[1]
    found = verify_lines(sealed([header, contract, effect, end_of(effect)]), whole=whole).violations
    return {violation.rule for violation in found}


def test_what_is_left_of_a_settled_effect_is_good(settled: list[Line]) -> None:
    assert judged(settled, settled[2]) == set()
    assert judged(settled, removed(settled[2])) == set()
    assert judged(settled, removed(settled[2]), whole=True) == {Rule.PRUNED}


def _state(left: Line) -> None:
    left["intent"]["state"] = "outcome_unknown"


def _alert(left: Line) -> None:
    left["intent"]["alert"] = "late_contradiction"


def _content(left: Line) -> None:
    left["receipt"]["content"] = left["receipt"]["content"].replace("succeeded", "cancelled")


def _no_receipt(left: Line) -> None:
    left["receipt"] = None


def _key(left: Line) -> None:
    left["intent"]["operation_key"] += "x"


FALSE: dict[str, tuple[Callable[[Line], None], Rule]] = {
    "an open state": (_state, Rule.PRUNED),
    "an alert": (_alert, Rule.PRUNED),
    "another receipt": (_content, Rule.RECEIPT),
    "no receipt": (_no_receipt, Rule.RECEIPT),
    "another key": (_key, Rule.IDENTITY),
}


@pytest.mark.parametrize("name", FALSE)
def test_what_does_not_fit_is_found(settled: list[Line], name: str) -> None:
    forge, rule = FALSE[name]
    left = removed(settled[2])
    forge(left)
    assert rule in judged(settled, left)


@pytest.mark.parametrize("rows", ["attempts", "events"])
def test_rows_that_stand_there_all_the_same_are_found(settled: list[Line], rows: str) -> None:
    left = removed(settled[2])
    left[rows] = settled[2][rows]
    assert judged(settled, left) == {Rule.PRUNED}


def test_nothing_is_removed_of_what_is_open(settled: list[Line]) -> None:
    for seed in range(50):
        lines = parsed(corpus.scheduled("unsafe", seed))
        if lines[2]["intent"]["state"] == "outcome_unknown":
            lines[2]["intent"]["retention_stage"] = 1
            assert judged(lines, lines[2]) == {Rule.PRUNED}
            return
    raise AssertionError("no schedule leaves its effect open")
