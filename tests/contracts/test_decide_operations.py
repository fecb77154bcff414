"""Accepted operations at their edges: how often one may be forgotten, and which look says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from effect_contracts.decide import Action, Reason, decide
from effect_contracts.facts import (
    CODE_OPERATION_GONE,
    Evidence,
    Facts,
    Outcome,
    Policy,
    SafetyClass,
    Verdict,
)

from .decide_cases import at, attempt, evidence, policy


def polled(safety: SafetyClass, **numbers: object) -> Policy:
    return policy(safety, polls_operations=True, probe_cap_seconds=10, **numbers)


def gone(began: float, covers: int = 1) -> Evidence:
    return replace(evidence(Verdict.UNKNOWN, began, covers), code=CODE_OPERATION_GONE)


def accepted(count: int) -> Facts:
    """So many attempts, each accepted as an operation of its own, the last one the latest."""
    return Facts(
        tuple(attempt(n + 1, Outcome.IN_PROGRESS, 20 * n, operation=True) for n in range(count))
    )


@pytest.mark.parametrize(("forgotten", "action"), [(1, Action.DISPATCH), (2, Action.PARK),
                                                   (3, Action.PARK)])  # fmt: skip
def test_an_operation_is_forgotten_once_before_a_person_is_asked(
    forgotten: int, action: Action
) -> None:
    facts = accepted(forgotten)
    found = tuple(gone(20 * n + 8, covers=n + 1) for n in range(forgotten))
    facts = replace(
        facts, evidence=found, probes_since_attempt=3, probe_began_at=found[-1].began_at
    )
    decision = decide(facts, polled(SafetyClass.IDEMPOTENT, attempts_max=9), at(90))
    assert decision.action is action
    assert decision.row == 11


@pytest.mark.parametrize("code", ["absent", "zzz", None])
def test_other_looks_are_no_forgotten_operations(code: str | None) -> None:
    facts = replace(
        accepted(1),
        evidence=(gone(8), replace(evidence(Verdict.NOT_COMMITTED, 3, covers=0), code=code)),
        probes_since_attempt=3,
        probe_began_at=at(8),
    )
    decision = decide(facts, polled(SafetyClass.IDEMPOTENT), at(90))
    assert (decision.action, decision.reason) == (Action.DISPATCH, Reason.SAME_KEY_AGAIN)


@pytest.mark.parametrize(("covers", "looks_on"), [(1, True), (2, False), (3, True)])
def test_only_the_look_at_this_operation_says_that_it_is_gone(covers: int, looks_on: bool) -> None:
    facts = replace(
        accepted(2),
        evidence=(gone(30, covers=covers),),
        probes_since_attempt=3,
        probe_began_at=at(30),
    )
    decision = decide(facts, polled(SafetyClass.UNSAFE), at(90))
    assert (decision.action is Action.PROBE) is looks_on
    if not looks_on:
        assert (decision.reason, decision.row) == (Reason.OUTCOME_UNKNOWN, 11)


@pytest.mark.parametrize(
    ("began", "looks_on"), [(5, True), (6, True), (6.000001, False), (40, False)]
)
def test_an_operation_may_be_shown_a_transit_later(began: float, looks_on: bool) -> None:
    """The answer came at 1, the longest transit is 5."""
    facts = replace(
        accepted(1), evidence=(gone(began),), probes_since_attempt=3, probe_began_at=at(began)
    )
    decision = decide(facts, polled(SafetyClass.UNSAFE), at(90))
    assert (decision.action is Action.PROBE) is looks_on


def test_an_older_look_than_the_latest_says_nothing() -> None:
    facts = replace(accepted(1), evidence=(gone(8),), probes_since_attempt=4, probe_began_at=at(20))
    assert decide(facts, polled(SafetyClass.UNSAFE), at(90)).action is Action.PROBE
