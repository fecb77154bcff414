"""The edges of the count after the end: every class, every state, every verdict, every moment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from effect_contracts.audit import (
    FIRST_COUNT_BOUNDS,
    LAST_COUNT_BOUNDS,
    first_count_at,
    is_count,
    next_count_at,
)
from effect_contracts.facts import (
    Attempt,
    EffectState,
    Facts,
    Outcome,
    Policy,
    SafetyClass,
    Verdict,
)

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def sent(times: int) -> Facts:
    """So many attempts that may have been sent, the last one recorded at second 0."""
    return Facts(
        attempts=tuple(
            Attempt(n, at(n - times - 1), at(n - times + 9), Outcome.AMBIGUOUS, at(n - times))
            for n in range(1, times + 1)
        )
    )


def policy(safety: SafetyClass) -> Policy:
    return Policy(safety, settlement_bound_seconds=10.0, probes=True)


RECONCILABLE = policy(SafetyClass.RECONCILABLE)


def test_the_declared_numbers_are_four_and_a_hundred_and_twenty_eight_bounds() -> None:
    assert (FIRST_COUNT_BOUNDS, LAST_COUNT_BOUNDS) == (4, 128)


@pytest.mark.parametrize("safety", list(SafetyClass))
def test_only_the_reconcilable_are_counted(safety: SafetyClass) -> None:
    counted = safety is SafetyClass.RECONCILABLE
    due = first_count_at(sent(2), policy(safety), EffectState.SUCCEEDED, at(0))
    assert (due is not None) is counted
    assert is_count(sent(2), policy(safety), at(1000)) is counted


@pytest.mark.parametrize(("times", "owed"), [(0, False), (1, False), (2, True), (3, True)])
def test_a_count_is_owed_from_the_second_sending_on(times: int, owed: bool) -> None:
    due = first_count_at(sent(times), RECONCILABLE, EffectState.SUCCEEDED, at(0))
    assert due == (at(40) if owed else None)


def test_a_look_up_counts_from_the_fourth_bound_on_and_ever_after() -> None:
    moments = [39.999, 40, 40.001, 4000]
    assert [is_count(sent(2), RECONCILABLE, at(m)) for m in moments] == [False, True, True, True]


@pytest.mark.parametrize("state", list(EffectState))
@pytest.mark.parametrize("seen", list(Verdict))
def test_what_was_seen_is_asked_again_only_where_it_says_less(
    state: EffectState, seen: Verdict
) -> None:
    absent = state is EffectState.SUCCEEDED and seen is Verdict.NOT_COMMITTED
    again = next_count_at(sent(2), RECONCILABLE, state, seen, at(50))
    assert again == (at(100) if seen is Verdict.UNKNOWN or absent else None)
