"""Which attempt a rule speaks of: the last, its own, or every one that a look-up covers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from effect_contracts.decide import Action, Reason, decide
from effect_contracts.facts import (
    CODE_ALREADY_EXISTS,
    Attempt,
    Evidence,
    Facts,
    Outcome,
    Verdict,
)

from .decide_cases import IDEMPOTENT, RECONCILABLE, at, attempt, evidence

LONG_AFTER = at(100_000)


def test_the_reason_of_a_wait_is_that_of_the_last_attempt() -> None:
    for first, last, reason in (
        (Outcome.AMBIGUOUS, Outcome.IN_PROGRESS, Reason.IN_PROGRESS),
        (Outcome.IN_PROGRESS, Outcome.AMBIGUOUS, Reason.BACKOFF),
    ):
        found = decide(Facts((attempt(1, first), attempt(2, last, 20))), IDEMPOTENT, at(21))
        assert (found.action, found.reason) == (Action.WAIT, reason)


def test_a_look_at_the_horizon_itself_is_still_made() -> None:
    """The answer came at 1 and the horizon is 100 later; the last look began at 100."""
    policy = replace(RECONCILABLE, probe_horizon_seconds=100.0)
    facts = Facts((attempt(1, Outcome.AMBIGUOUS),), probes_since_attempt=1, probe_began_at=at(100))
    assert decide(facts, policy, at(100)).at == at(101)
    assert decide(facts, policy, at(101)).reason is Reason.LOOK_UP
    assert decide(facts, policy, at(101.000001)).reason is Reason.PROBE_HORIZON_PASSED


def test_a_look_that_nobody_has_counted_is_no_error() -> None:
    facts = Facts((attempt(1, Outcome.AMBIGUOUS),), probe_began_at=at(500))
    assert decide(facts, RECONCILABLE, at(500)).at == at(501)


@pytest.mark.parametrize(("failed", "reason"), [(1, Reason.LOOK_UP), (2, Reason.LOOK_UP)])
def test_a_failed_operation_says_nothing_of_its_neighbours(failed: int, reason: Reason) -> None:
    attempts = (attempt(1, Outcome.AMBIGUOUS), attempt(2, Outcome.AMBIGUOUS, 20))
    found = evidence(Verdict.REJECTED, 50, covers=failed)
    assert decide(Facts(attempts, (found,)), RECONCILABLE, LONG_AFTER).reason is reason
    both = tuple(evidence(Verdict.REJECTED, 50 + n, covers=n) for n in (1, 2))
    assert decide(Facts(attempts, both), RECONCILABLE, LONG_AFTER).reason is Reason.REJECTED


@pytest.mark.parametrize(
    ("attempts", "found", "reason"),
    [
        # The first answer came at 100: until 130 its request may still show.
        (
            (attempt(1, Outcome.AMBIGUOUS, recorded_at=at(100)), attempt(2, Outcome.AMBIGUOUS, 20)),
            evidence(Verdict.NOT_COMMITTED, 60, covers=2),
            Reason.LOOK_UP,
        ),
        (
            (attempt(1, Outcome.AMBIGUOUS, recorded_at=at(100)), attempt(2, Outcome.AMBIGUOUS, 20)),
            evidence(Verdict.NOT_COMMITTED, 131, covers=2),
            Reason.NO_COMMIT_PROVED,
        ),
        # A later attempt, which the look-up does not speak of, moves nothing.
        (
            (attempt(1, Outcome.AMBIGUOUS), attempt(2, Outcome.RETRYABLE, 99)),
            evidence(Verdict.NOT_COMMITTED, 40, covers=1),
            Reason.NO_COMMIT_PROVED,
        ),
    ],
)
def test_absence_counts_from_the_bound_of_all_that_it_covers(
    attempts: tuple[Attempt, ...], found: Evidence, reason: Reason
) -> None:
    assert decide(Facts(attempts, (found,)), RECONCILABLE, LONG_AFTER).reason is reason


def test_a_target_may_ask_for_less_than_a_second() -> None:
    policy = replace(IDEMPOTENT, backoff_initial_seconds=0.1)
    for asked, expected in ((0.5, at(1.5)), (1.0, at(2)), (1.5, at(2.5))):
        facts = Facts((attempt(1, Outcome.RETRYABLE, retry_after_seconds=asked),))
        assert decide(facts, policy, at(1)).at == expected


def test_a_doubt_that_came_later_makes_no_conflict() -> None:
    exists = attempt(1, Outcome.REJECTED, code=CODE_ALREADY_EXISTS)
    facts = Facts((exists, attempt(2, Outcome.AMBIGUOUS, 20)))
    assert decide(facts, IDEMPOTENT, at(100)).reason is Reason.SAME_KEY_AGAIN
