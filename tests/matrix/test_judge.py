"""The judge fails a cell for each guarantee that is broken, and passes one that held."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from effect_broker.faultpoints import FaultPoint
from effect_broker.proof.matrix.axes import CELLS, Cell, Fault, TargetClass
from effect_broker.proof.matrix.expected import Expected, expected, expected_meanwhile
from effect_broker.proof.matrix.judge import Observation, Seen, verdict

CELL = Cell(TargetClass.RECONCILABLE, FaultPoint.AFTER_TARGET_ANSWER, Fault.STOP)
UNSAFE = Cell(TargetClass.UNSAFE, FaultPoint.AFTER_TARGET_ANSWER, Fault.KILL)
BEHIND_THE_GATE = Cell(TargetClass.RECONCILABLE, FaultPoint.AFTER_LAST_GATE, Fault.STOP)
LYING = Cell(TargetClass.RECONCILABLE_LYING, FaultPoint.BEFORE_SOCKET_WRITE, Fault.FIN)


def seen(wanted: Expected, *, one_attempt: bool = False) -> Seen:
    """An effect that stands as it should."""
    final = wanted.state in {"succeeded", "failed_final"}
    return Seen(
        state=wanted.state,
        reason=wanted.reason or "some_reason",
        alert="duplicate_detected" if wanted.duplicate else None,
        final=final,
        rests=True,
        receipt=final,
        attempts=1 if one_attempt else max(wanted.requests, 1),
        requests=wanted.requests,
        effects=wanted.effects,
        frozen=wanted.duplicate,
    )


def perfect(cell: Cell) -> Observation:
    """A cell in which everything held."""
    meanwhile = expected_meanwhile(cell)
    end = seen(expected(cell), one_attempt=cell.fault is Fault.TWICE)
    return Observation(end, seen(meanwhile) if meanwhile else None)


def test_a_cell_that_held_is_passed_and_one_effect_more_is_not() -> None:
    for cell in CELLS:
        held = perfect(cell)
        assert verdict(cell, held).problems == (), cell.name
        one_more = replace(held.end, effects=held.end.effects + 1)
        assert verdict(cell, replace(held, end=one_more)).unexpected, cell.name


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"effects": 2}, "a duplicate where the class forbids it"),
        ({"effects": 0}, "a success without an effect"),
        ({"keys": 2}, "not the same key and bytes on every request"),
        ({"bodies": 2}, "not the same key and bytes on every request"),
        ({"requests": 2}, "more requests than attempts"),
        ({"receipt": False}, "a receipt belongs to every settled effect and to no other"),
        ({"rests": False}, "neither final nor visibly waiting"),
    ],
)
@pytest.mark.parametrize("when", ["end", "meanwhile"])
def test_each_guarantee_alone_fails_a_cell(change: dict[str, Any], why: str, when: str) -> None:
    held = perfect(CELL)
    moment: Seen = getattr(held, when)
    changed: dict[str, Any] = {when: replace(moment, **change)}
    broken = replace(held, **changed)
    assert why in verdict(CELL, broken).broken


def test_a_receipt_of_an_effect_that_is_not_settled_fails_the_cell() -> None:
    held = perfect(UNSAFE)
    assert held.end.state == "outcome_unknown"
    assert verdict(UNSAFE, replace(held, end=replace(held.end, receipt=True))).broken


def test_a_failure_of_what_the_target_holds_fails_the_cell() -> None:
    held = perfect(CELL)
    lost = replace(held.end, state="failed_final")
    why = "a failure although the target holds the effect"
    assert why in verdict(CELL, replace(held, end=lost)).broken


def test_another_end_within_the_guarantees_is_unexpected_and_no_more() -> None:
    held = perfect(UNSAFE)
    resolved = replace(held.end, state="succeeded", final=True, receipt=True)
    found = verdict(UNSAFE, replace(held, end=resolved))
    assert found.unexpected
    assert not found.broken


def test_a_duplicate_of_a_lying_target_has_to_be_found() -> None:
    held = perfect(LYING)
    assert held.end.effects == 2
    quiet = replace(held, end=replace(held.end, alert=None))
    assert "the duplicate was not detected" in verdict(LYING, quiet).broken


@pytest.mark.parametrize("change", [{"frozen": False}, {"alert": None}])
def test_a_second_object_of_a_process_that_sent_late_is_found_and_freezes(
    change: dict[str, Any],
) -> None:
    held = perfect(BEHIND_THE_GATE)
    assert (held.end.requests, held.end.effects) == (2, 2)
    missed = replace(held, end=replace(held.end, **change))
    why = "expected an alert and a frozen contract"
    assert why in verdict(BEHIND_THE_GATE, missed).unexpected


def test_before_it_came_back_there_was_no_second_object() -> None:
    held = perfect(BEHIND_THE_GATE)
    assert held.meanwhile is not None
    early = replace(held, meanwhile=replace(held.meanwhile, effects=2, requests=2))
    assert verdict(BEHIND_THE_GATE, early).problems


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"struck": False}, "the fault did not strike"),
        ({"same_effect": False}, "a resubmit did not give the same effect"),
        ({"remarks": ("the process did not live",)}, "the process did not live"),
    ],
)
def test_what_went_wrong_on_the_way_fails_a_cell(change: dict[str, Any], why: str) -> None:
    assert why in verdict(CELL, replace(perfect(CELL), **change)).problems
