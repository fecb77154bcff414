"""The matrix is as large as it says, leaves nothing out without a reason, and samples evenly."""

from __future__ import annotations

import itertools

import pytest

from effect_broker.faultpoints import FaultPoint
from effect_broker.proof.matrix import axes
from effect_broker.proof.matrix.axes import CELLS, Fault, TargetClass, omission, sample, select
from effect_broker.proof.matrix.expected import Situation, situation

PRODUCT = tuple(itertools.product(TargetClass, FaultPoint, Fault))


def test_there_are_at_least_five_hundred_cells() -> None:
    assert len(CELLS) >= 500
    assert len({cell.name for cell in CELLS}) == len(CELLS)
    assert len({cell.kind for cell in CELLS}) == len(CELLS)


def test_every_class_every_place_and_every_fault_has_cells() -> None:
    assert {cell.target for cell in CELLS} == set(TargetClass)
    assert {cell.point for cell in CELLS} == set(FaultPoint)
    assert {cell.fault for cell in CELLS} == set(Fault)
    assert len(FaultPoint) >= 12


def test_every_class_is_killed_and_stopped_at_every_place_that_it_reaches() -> None:
    for target in TargetClass:
        met = {cell.point for cell in CELLS if cell.target is target}
        for fault in (Fault.KILL, Fault.STOP, Fault.RESTART, Fault.READ_ONLY):
            struck = {c.point for c in CELLS if (c.target, c.fault) == (target, fault)}
            # Whoever hands over is killed only; what the database does then is the engine's.
            assert struck == (met if fault is Fault.KILL else met - axes.REAP_POINTS)


def test_every_situation_occurs() -> None:
    assert {situation(cell) for cell in CELLS} == set(Situation)


def test_what_is_left_out_is_left_out_for_a_reason() -> None:
    reasons = [omission(*combination) for combination in PRODUCT]
    assert reasons.count(None) == len(CELLS)
    assert len(CELLS) + sum(axes.OMITTED.values()) == len(PRODUCT)
    # A rule that leaves nothing out any more is a rule nobody has looked at.
    assert set(axes.OMITTED) == {rule.reason for rule in axes.OMISSIONS}


@pytest.mark.parametrize("size", [44, 100])
def test_a_sample_is_fixed_and_covers_what_it_can(size: int) -> None:
    chosen = sample(list(CELLS), size)
    assert len(chosen) == size
    assert chosen == sample(list(reversed(CELLS)), size)[::-1]
    assert {cell.fault for cell in chosen} == set(Fault)
    assert {cell.target for cell in chosen} == set(TargetClass)
    assert {cell.point for cell in chosen} == set(FaultPoint)


def test_cells_are_chosen_by_a_word_or_a_pattern() -> None:
    assert {cell.fault for cell in select("answer-fin")} == {Fault.FIN}
    only = select("unsafe/before_socket_write/kill")
    assert [cell.fault for cell in only][:1] == [Fault.KILL]
    assert {c.target for c in select("reconcilable/*")} == {TargetClass.RECONCILABLE}
    assert select("no-such-cell") == ()
    assert len(select(None, 7)) == 7
