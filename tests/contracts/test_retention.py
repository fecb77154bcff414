"""How long a key lives, to the second, and when the last whole attempt has to begin."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from effect_contracts.facts import Attempt, Outcome, Policy, SafetyClass
from effect_contracts.retention import key_expires_at, latest_start_at

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def attempt(ordinal: int, began: float, outcome: Outcome | None) -> Attempt:
    return Attempt(ordinal, at(began), at(began + 30), outcome)


def policy(retention: float | None) -> Policy:
    return Policy(
        SafetyClass.IDEMPOTENT,
        key_retention_seconds=retention,
        attempt_deadline_seconds=30.0,
        clock_margin_seconds=0.5,
        transit_seconds=7.0,
    )


@pytest.mark.parametrize("outcome", [None, *Outcome])
def test_a_key_lives_from_the_first_attempt_that_may_have_sent(outcome: Outcome | None) -> None:
    first, second = attempt(1, 10, outcome), attempt(2, 100, Outcome.AMBIGUOUS)
    began = 100 if outcome is Outcome.NOT_SENT else 10
    for known in ((first, second), (second, first)):
        assert key_expires_at(known, policy(3600.0)) == at(began + 3600)


def test_a_key_without_an_end_or_without_a_use_does_not_expire() -> None:
    used = (attempt(1, 10, Outcome.AMBIGUOUS),)
    assert key_expires_at(used, policy(None)) is None
    assert latest_start_at(used, policy(None)) is None
    for unused in ((), (attempt(1, 10, Outcome.NOT_SENT),)):
        assert key_expires_at(unused, policy(3600.0)) is None
        assert latest_start_at(unused, policy(3600.0)) is None


@pytest.mark.parametrize("retention", [3600.0, 60.0, 1.0])
def test_a_whole_attempt_its_margin_and_its_transit_fit_into_the_keys_life(
    retention: float,
) -> None:
    used = (attempt(1, 10, Outcome.AMBIGUOUS),)
    assert latest_start_at(used, policy(retention)) == at(10 + retention - 37.5)
