"""The table of expectations is total, and says nothing that the classes do not promise."""

from __future__ import annotations

from effect_broker.faultpoints import FaultPoint
from effect_broker.proof.matrix.axes import CELLS, Fault, TargetClass
from effect_broker.proof.matrix.expected import (
    OUTCOMES,
    Situation,
    expected,
    expected_meanwhile,
    situation,
)
from effect_contracts.facts import EffectState, SafetyClass
from effect_contracts.life import is_final


def test_every_situation_has_an_outcome_for_every_class() -> None:
    assert set(OUTCOMES) == set(Situation)
    assert all(set(row) == set(TargetClass) for row in OUTCOMES.values())


def test_every_cell_has_an_expectation() -> None:
    for cell in CELLS:
        assert expected(cell) in OUTCOMES[situation(cell)].values()
        assert (expected_meanwhile(cell) is not None) == (cell.fault is Fault.STOP)


def test_an_expected_end_is_final_or_one_that_waits_for_a_person() -> None:
    resting = {EffectState.OUTCOME_UNKNOWN, EffectState.MANUAL_REVIEW}
    for cell in CELLS:
        state = EffectState(expected(cell).state)
        assert is_final(state) or state in resting


def test_a_success_has_an_effect_and_a_failure_has_none() -> None:
    for cell in CELLS:
        wanted = expected(cell)
        if wanted.state == "succeeded":
            assert wanted.effects >= 1
        if wanted.state == "failed_final":
            assert wanted.effects == 0
        assert wanted.requests >= wanted.effects


def test_two_effects_are_expected_only_where_nobody_can_prevent_them() -> None:
    for cell in CELLS:
        if expected(cell).effects < 2:
            continue
        lied = cell.target is TargetClass.RECONCILABLE_LYING
        keyed = cell.target in {TargetClass.IDEMPOTENT, TargetClass.IDEMPOTENT_EXPIRING}
        behind = cell.point is FaultPoint.AFTER_LAST_GATE and cell.fault is Fault.STOP
        looked = cell.target.safety is SafetyClass.RECONCILABLE
        assert lied or (behind and looked) or (cell.fault is Fault.TWICE and not keyed)


def test_what_is_sent_behind_the_last_gate_after_a_takeover_is_expected_by_class() -> None:
    """As the page of the guarantees says; requests and effects at the target."""
    ends = {
        cell.target: (expected(cell).requests, expected(cell).effects, expected(cell).duplicate)
        for cell in CELLS
        if cell.point is FaultPoint.AFTER_LAST_GATE and cell.fault is Fault.STOP
    }
    assert ends == {
        TargetClass.TRANSACTIONAL: (1, 1, False),
        TargetClass.IDEMPOTENT: (2, 1, False),
        TargetClass.IDEMPOTENT_EXPIRING: (1, 1, False),
        TargetClass.RECONCILABLE: (2, 2, True),
        TargetClass.RECONCILABLE_LAGGING: (2, 2, True),
        TargetClass.RECONCILABLE_LYING: (2, 2, True),
        TargetClass.UNSAFE: (1, 1, False),
    }


def test_an_unsafe_effect_is_never_expected_to_be_sent_twice() -> None:
    for cell in CELLS:
        if cell.target is TargetClass.UNSAFE and cell.fault is not Fault.TWICE:
            assert expected(cell).requests <= 1


def test_a_transactional_effect_always_happens_exactly_once() -> None:
    for cell in CELLS:
        if cell.target is TargetClass.TRANSACTIONAL:
            wanted = expected(cell)
            assert (wanted.state, wanted.effects) == ("succeeded", 1)
