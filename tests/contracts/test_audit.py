"""When a settled effect is counted at its target once more (`effect_contracts.audit`)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from effect_contracts.audit import (
    FIRST_COUNT_BOUNDS,
    LAST_COUNT_BOUNDS,
    first_count_at,
    is_count,
    late_count_at,
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
BOUND_SECONDS = 10.0
POLICY = Policy(SafetyClass.RECONCILABLE, settlement_bound_seconds=BOUND_SECONDS, probes=True)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def attempt(ordinal: int, outcome: Outcome) -> Attempt:
    started = at(100.0 * (ordinal - 1))
    return Attempt(ordinal, started, started + timedelta(seconds=30), outcome, started)


def sent(*outcomes: Outcome) -> Facts:
    return Facts(attempts=tuple(attempt(i + 1, o) for i, o in enumerate(outcomes)))


REDISPATCHED = sent(Outcome.AMBIGUOUS, Outcome.COMMITTED)


@pytest.mark.parametrize("state", [EffectState.SUCCEEDED, EffectState.FAILED_FINAL])
def test_a_settlement_after_a_redispatch_owes_a_count_some_bounds_later(state: EffectState) -> None:
    due = first_count_at(REDISPATCHED, POLICY, state, at(200))
    assert due == at(200 + FIRST_COUNT_BOUNDS * BOUND_SECONDS)


@pytest.mark.parametrize("state", [EffectState.CANCELLED, EffectState.COMPENSATED])
def test_other_ends_owe_none(state: EffectState) -> None:
    assert first_count_at(REDISPATCHED, POLICY, state, at(200)) is None


@pytest.mark.parametrize(
    "facts",
    [sent(Outcome.COMMITTED), sent(Outcome.NOT_SENT, Outcome.COMMITTED), sent(Outcome.REJECTED)],
)
def test_an_effect_that_was_sent_once_is_not_counted(facts: Facts) -> None:
    assert first_count_at(facts, POLICY, EffectState.SUCCEEDED, at(200)) is None


@pytest.mark.parametrize(
    "policy",
    [
        Policy(SafetyClass.IDEMPOTENT, settlement_bound_seconds=BOUND_SECONDS, probes=True),
        Policy(SafetyClass.RECONCILABLE, settlement_bound_seconds=BOUND_SECONDS),
    ],
)
def test_only_a_target_that_can_be_asked_by_our_key_is_counted(policy: Policy) -> None:
    assert first_count_at(REDISPATCHED, policy, EffectState.SUCCEEDED, at(200)) is None
    # Nor is a look-up that was under way when it ended: the schema leaves it no later action.
    assert not is_count(REDISPATCHED, policy, at(10_000))


def test_a_bound_of_nothing_still_leaves_some_time() -> None:
    policy = Policy(SafetyClass.RECONCILABLE, settlement_bound_seconds=0.0, probes=True)
    assert first_count_at(REDISPATCHED, policy, EffectState.SUCCEEDED, at(200)) == at(202)


@pytest.mark.parametrize(
    ("facts", "state", "counted"),
    [
        (REDISPATCHED, EffectState.SUCCEEDED, True),
        (REDISPATCHED, EffectState.FAILED_FINAL, True),
        (sent(Outcome.AMBIGUOUS), EffectState.SUCCEEDED, False),
        (sent(Outcome.NOT_SENT, Outcome.AMBIGUOUS), EffectState.SUCCEEDED, False),
        (sent(Outcome.AMBIGUOUS), EffectState.FAILED_FINAL, True),
        (REDISPATCHED, EffectState.COMPENSATED, False),
        (Facts(), EffectState.FAILED_FINAL, False),
    ],
)
def test_what_was_sent_late_is_counted_where_it_can_be_one_too_many(
    facts: Facts, state: EffectState, counted: bool
) -> None:
    due = at(200 + FIRST_COUNT_BOUNDS * BOUND_SECONDS) if counted else None
    assert late_count_at(facts, POLICY, state, at(200)) == due
    for other in (
        Policy(SafetyClass.IDEMPOTENT, settlement_bound_seconds=BOUND_SECONDS, probes=True),
        Policy(SafetyClass.RECONCILABLE, settlement_bound_seconds=BOUND_SECONDS),
    ):
        assert late_count_at(facts, other, state, at(200)) is None


def test_a_look_up_that_began_too_early_counts_nothing() -> None:
    first = 100 + FIRST_COUNT_BOUNDS * BOUND_SECONDS  # the last attempt was recorded at 100
    assert not is_count(REDISPATCHED, POLICY, at(first - 0.001))
    assert is_count(REDISPATCHED, POLICY, at(first))
    assert not is_count(Facts(), POLICY, at(first))


@pytest.mark.parametrize("seen", [Verdict.COMMITTED, Verdict.MISMATCH])
def test_a_count_that_saw_the_effect_is_the_last(seen: Verdict) -> None:
    assert next_count_at(REDISPATCHED, POLICY, EffectState.SUCCEEDED, seen, at(150)) is None


@pytest.mark.parametrize("seen", [Verdict.UNKNOWN, Verdict.NOT_COMMITTED])
def test_a_count_that_saw_less_is_repeated_ever_later(seen: Verdict) -> None:
    due = next_count_at(REDISPATCHED, POLICY, EffectState.SUCCEEDED, seen, at(150))
    assert due == at(200)  # 50 seconds have passed since the last attempt
    last = 100 + LAST_COUNT_BOUNDS * BOUND_SECONDS
    for moment, goes_on in ((last, True), (last + 0.001, False)):
        due = next_count_at(REDISPATCHED, POLICY, EffectState.SUCCEEDED, seen, at(moment))
        assert (due is not None) is goes_on


def test_a_failed_effect_that_is_absent_is_counted_once() -> None:
    absent = next_count_at(
        REDISPATCHED, POLICY, EffectState.FAILED_FINAL, Verdict.NOT_COMMITTED, at(150)
    )
    assert absent is None
