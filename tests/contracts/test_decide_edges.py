"""The edges of the table: the row that is named, the first of a kind, the very moment."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from effect_contracts.decide import (
    Action,
    Reason,
    conclusive_from,
    deadline,
    decide,
    settled_by,
)
from effect_contracts.facts import (
    CODE_ALREADY_EXISTS,
    CODE_REPLAYED_ERROR,
    Attempt,
    EvidenceSource,
    Facts,
    Hold,
    Outcome,
    Policy,
    SafetyClass,
    Verdict,
)
from effect_contracts.life import LifeEvent
from effect_contracts.operations import open_operation

from .decide_cases import (
    IDEMPOTENT,
    RECONCILABLE,
    TRANSACTIONAL,
    UNSAFE,
    at,
    attempt,
    evidence,
)

TICK = timedelta(microseconds=1)
LONG_AFTER = at(100_000)
PAUSED = frozenset({Hold.PAUSED})
MOVED = frozenset({Hold.TARGET_CHANGED})
ONE_DOUBT = (attempt(1, Outcome.AMBIGUOUS),)
PERSON = EvidenceSource.OPERATOR
TWO_OBJECTS = (
    attempt(1, Outcome.COMMITTED, external_id="a"),
    attempt(2, Outcome.COMMITTED, 20, external_id="b"),
)
SAID = evidence(Verdict.COMMITTED, 30, source=PERSON, ids=("b",))
ABSENT = evidence(Verdict.NOT_COMMITTED, 5000)
EXISTS = attempt(2, Outcome.REJECTED, 20, code=CODE_ALREADY_EXISTS)


def spent(outcome: Outcome, count: int = 3) -> tuple[Attempt, ...]:
    return tuple(attempt(n + 1, outcome, 100 * n) for n in range(count))


ROWS: list[tuple[Facts, Policy, Reason, int]] = [
    (Facts(TWO_OBJECTS), IDEMPOTENT, Reason.CONTRACT_VIOLATION, 1),
    (Facts(TWO_OBJECTS, failed_by_operator=True), IDEMPOTENT, Reason.FAILED_BY_OPERATOR, 1),
    (Facts(TWO_OBJECTS, (SAID,)), IDEMPOTENT, Reason.COMMITTED, 1),
    (Facts((attempt(1, Outcome.COMMITTED),)), IDEMPOTENT, Reason.COMMITTED, 2),
    (Facts(ONE_DOUBT, failed_by_operator=True), IDEMPOTENT, Reason.FAILED_BY_OPERATOR, 2),
    (Facts((attempt(1, Outcome.KEY_CONFLICT),)), IDEMPOTENT, Reason.TARGET_KEY_CONFLICT, 3),
    (Facts((attempt(1, Outcome.PARTIAL),)), IDEMPOTENT, Reason.PARTIAL_RESULT, 3),
    (Facts((attempt(1, None, 99_995),)), IDEMPOTENT, Reason.ATTEMPT_OPEN, 4),
    (Facts(cancel_requested=True), IDEMPOTENT, Reason.CANCELLED, 5),
    (Facts(holds=PAUSED), IDEMPOTENT, Reason.PAUSED, 6),
    (Facts(holds=PAUSED, send_before=at(200_000)), IDEMPOTENT, Reason.PAUSED, 6),
    (Facts(ONE_DOUBT, holds=MOVED), RECONCILABLE, Reason.TARGET_CHANGED, 6),
    (Facts(), IDEMPOTENT, Reason.FIRST_ATTEMPT, 7),
    (Facts(send_before=at(1)), IDEMPOTENT, Reason.EXPIRED, 7),
    (Facts((attempt(1, Outcome.REJECTED),)), IDEMPOTENT, Reason.REJECTED, 8),
    (Facts((*ONE_DOUBT, EXISTS), (replace(ABSENT, covers_through=2),)), RECONCILABLE,
     Reason.CONFLICT_UNATTRIBUTED, 8),
    (Facts(ONE_DOUBT, (replace(ABSENT, source=PERSON),)), UNSAFE, Reason.PROVED_NOT_COMMITTED, 9),
    (Facts((attempt(1, Outcome.RETRYABLE),)), IDEMPOTENT, Reason.NO_COMMIT_PROVED, 9),
    (Facts((attempt(1, Outcome.RETRYABLE, 99_999),)), IDEMPOTENT, Reason.BACKOFF, 9),
    (Facts(spent(Outcome.NOT_SENT)), IDEMPOTENT, Reason.NEVER_SENT, 10),
    (Facts(spent(Outcome.RETRYABLE)), IDEMPOTENT, Reason.RETRIES_EXHAUSTED, 10),
    (Facts(ONE_DOUBT, (evidence(Verdict.MISMATCH, 50),)), RECONCILABLE,
     Reason.AMBIGUOUS_PROBE, 11),
    (Facts((*ONE_DOUBT, EXISTS), (evidence(Verdict.MISMATCH, 50),)), RECONCILABLE,
     Reason.CONFLICT_UNATTRIBUTED, 11),
    (Facts(ONE_DOUBT), UNSAFE, Reason.OUTCOME_UNKNOWN, 11),
    (Facts(ONE_DOUBT), TRANSACTIONAL, Reason.LOOK_UP, 11),
    (Facts(ONE_DOUBT), IDEMPOTENT, Reason.KEY_EXPIRED, 11),
    (Facts((attempt(1, Outcome.AMBIGUOUS, 99_900),)), IDEMPOTENT, Reason.SAME_KEY_AGAIN, 11),
    (Facts((attempt(1, Outcome.AMBIGUOUS, 99_999),)), IDEMPOTENT, Reason.BACKOFF, 11),
    (Facts((attempt(1, Outcome.IN_PROGRESS, 99_999),)), IDEMPOTENT, Reason.IN_PROGRESS, 11),
    (Facts(spent(Outcome.AMBIGUOUS)), IDEMPOTENT, Reason.RETRIES_EXHAUSTED, 11),
    (Facts((*ONE_DOUBT, EXISTS)), IDEMPOTENT, Reason.CONFLICT_UNATTRIBUTED, 11),
    (Facts((attempt(1, Outcome.AMBIGUOUS, code=CODE_REPLAYED_ERROR),
            attempt(2, Outcome.AMBIGUOUS, 20, code=CODE_REPLAYED_ERROR))), IDEMPOTENT,
     Reason.REPLAYED_ERROR, 11),
    (Facts(ONE_DOUBT), replace(RECONCILABLE, probes=False), Reason.PROBE_HORIZON_PASSED, 11),
    (Facts(ONE_DOUBT, probes_since_attempt=9, probe_began_at=at(90_000)), RECONCILABLE,
     Reason.PROBE_HORIZON_PASSED, 11),
    (Facts(ONE_DOUBT, probes_since_attempt=9, probe_began_at=at(99_990)),
     replace(RECONCILABLE, probe_horizon_seconds=10**6), Reason.SETTLING, 11),
    (Facts(ONE_DOUBT, probes_since_attempt=1, probe_began_at=at(90_000),
           look_up_asked_at=at(90_001)), RECONCILABLE, Reason.LOOK_UP, 11),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"row {row[3]} {row[2].value}")
def test_a_decision_names_its_row(row: tuple[Facts, Policy, Reason, int]) -> None:
    """The row is stored with the event: people and the trace check read it."""
    facts, policy, reason, number = row
    found = decide(facts, policy, LONG_AFTER)
    assert (found.reason, found.row) == (reason, number)


def test_the_rows_are_all_there() -> None:
    assert {row[3] for row in ROWS} == set(range(1, 12))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_first_of_a_kind_is_kept(order: tuple[int, int]) -> None:
    answers = (
        attempt(1, Outcome.COMMITTED, external_id="x"),
        attempt(2, Outcome.COMMITTED, 20, external_id="x"),
    )
    assert decide(Facts(answers), IDEMPOTENT, LONG_AFTER).winner == answers[0]
    found = (
        evidence(Verdict.COMMITTED, 50, ids=("x",)),
        evidence(Verdict.COMMITTED, 40, ids=("x",)),
    )
    listed = (found[order[0]], found[order[1]])
    assert decide(Facts(ONE_DOUBT, listed), IDEMPOTENT, LONG_AFTER).winner == listed[0]


def test_of_what_persons_have_said_the_last_word_counts() -> None:
    words = tuple(
        evidence(Verdict.COMMITTED, began, source=PERSON, ids=(name,))
        for began, name in ((30, "a"), (40, "b"), (50, "a"))
    )
    looked = evidence(Verdict.COMMITTED, 60, ids=("b",))
    for found in ((*words, looked), (looked, *words), words):
        decision = decide(Facts(TWO_OBJECTS, found), IDEMPOTENT, LONG_AFTER)
        assert decision.winner == words[-1]
        assert decision.freezes


def test_what_freezes_says_so_and_nothing_else_does() -> None:
    for facts, policy, _, row in ROWS:
        assert decide(facts, policy, LONG_AFTER).freezes is (row == 1)


def test_an_attempt_is_lost_from_its_deadline_and_margin_on() -> None:
    facts = Facts((attempt(1, None),))
    for moment, lost in ((at(11) - TICK, ()), (at(11), (1,)), (at(11) + TICK, (1,))):
        assert decide(facts, UNSAFE, moment).lost == lost
    assert decide(facts, UNSAFE, at(5)).at == at(11)


def test_an_approval_does_not_come_back() -> None:
    asks = replace(IDEMPOTENT, approval_valid_seconds=60.0)
    for seconds, action in ((59, Action.DISPATCH), (60, Action.PARK), (61, Action.PARK)):
        assert decide(Facts(approved_at=at(0)), asks, at(seconds)).action is action
    told_already = Facts(holds=frozenset({Hold.AWAITING_APPROVAL}))
    assert decide(told_already, asks, at(0)).reason is Reason.AWAITING_APPROVAL


def test_an_effect_expires_at_its_last_moment_and_not_before() -> None:
    facts = Facts(send_before=at(50))
    assert decide(facts, IDEMPOTENT, at(50) - TICK).action is Action.DISPATCH
    for moment in (at(50), at(50) + TICK, at(500)):
        assert decide(facts, IDEMPOTENT, moment).reason is Reason.EXPIRED


def test_a_held_effect_rests_by_what_is_known_of_it() -> None:
    for attempts, event in (
        ((), LifeEvent.NOTHING_SENT),
        ((attempt(1, Outcome.RETRYABLE),), LifeEvent.NO_COMMIT_PROVED),
        ((attempt(1, Outcome.AMBIGUOUS, 99_900),), LifeEvent.OUTCOME_LOST),
    ):
        found = decide(Facts(attempts, holds=PAUSED), IDEMPOTENT, LONG_AFTER)
        assert (found.action, found.event, found.reason) == (Action.PARK, event, Reason.PAUSED)


def test_the_next_ordinal_follows_the_attempts() -> None:
    many = replace(IDEMPOTENT, attempts_max=9)
    for count in range(4):
        facts = Facts(tuple(attempt(n + 1, Outcome.RETRYABLE, 50 * n) for n in range(count)))
        assert decide(facts, many, LONG_AFTER).ordinal == count + 1


def test_the_budget_ends_with_the_last_attempt_of_the_contract() -> None:
    for count, reason in ((2, Reason.NO_COMMIT_PROVED), (3, Reason.RETRIES_EXHAUSTED),
                          (4, Reason.RETRIES_EXHAUSTED)):  # fmt: skip
        facts = Facts(spent(Outcome.RETRYABLE, count))
        assert decide(facts, IDEMPOTENT, LONG_AFTER).reason is reason


def test_stored_errors_are_taken_so_often_and_not_more() -> None:
    for limit, reason in ((3, Reason.SAME_KEY_AGAIN), (2, Reason.REPLAYED_ERROR),
                          (1, Reason.REPLAYED_ERROR)):  # fmt: skip
        policy = replace(IDEMPOTENT, replayed_errors_max=limit, attempts_max=9)
        facts = Facts((attempt(1, Outcome.AMBIGUOUS, code=CODE_REPLAYED_ERROR),
                       attempt(2, Outcome.AMBIGUOUS, 20, code=CODE_REPLAYED_ERROR)))  # fmt: skip
        assert decide(facts, policy, at(100)).reason is reason


def test_progress_is_free_until_its_bound() -> None:
    policy = replace(IDEMPOTENT, attempts_max=1, in_progress_bound_seconds=100.0)
    facts = Facts((attempt(1, Outcome.IN_PROGRESS),))
    assert decide(facts, policy, at(100) - TICK).reason is Reason.SAME_KEY_AGAIN
    for moment in (at(100), at(101)):
        assert decide(facts, policy, moment).reason is Reason.RETRIES_EXHAUSTED


def test_the_whole_next_attempt_has_to_fit_before_the_key_expires() -> None:
    """An attempt's ten seconds, the margin's one and the transit's five."""
    policy = replace(IDEMPOTENT, key_retention_seconds=116.0)
    facts = Facts((attempt(1, Outcome.AMBIGUOUS),))
    assert decide(facts, policy, at(100)).reason is Reason.SAME_KEY_AGAIN
    assert decide(facts, policy, at(100) + TICK).reason is Reason.KEY_EXPIRED


def test_a_wait_follows_the_target_up_to_the_cap_and_never_shortens_ours() -> None:
    policy = replace(IDEMPOTENT, backoff_initial_seconds=8.0, retry_after_cap_seconds=20.0)
    plain = decide(Facts((attempt(1, Outcome.RETRYABLE),)), policy, at(1)).at
    assert plain is not None
    assert at(5) <= plain <= at(9)  # recorded at 1, half of the wait is kept
    for asked, expected in ((-5.0, plain), (0.0, plain), (1.0, plain), (15.0, at(16)),
                            (20.0, at(21)), (500.0, at(21))):  # fmt: skip
        facts = Facts((attempt(1, Outcome.RETRYABLE, retry_after_seconds=asked),))
        assert decide(facts, policy, at(1)).at == expected


def test_waits_grow_with_the_ordinal() -> None:
    policy = replace(IDEMPOTENT, attempts_max=9, backoff_initial_seconds=64.0)
    for ordinal in (1, 2, 3):
        attempts = tuple(attempt(n + 1, Outcome.RETRYABLE, 0) for n in range(ordinal))
        found = decide(Facts(attempts), policy, at(1)).at
        assert found is not None
        wait = 64.0 * 2 ** (ordinal - 1)
        assert at(1 + wait / 2) <= found <= at(1 + wait)


# Look-ups -----------------------------------------------------------------------------------------


def looked(count: int, began: float, **more: object) -> Facts:
    facts = Facts(ONE_DOUBT, probes_since_attempt=count, probe_began_at=at(began))
    return replace(facts, **more)  # type: ignore[arg-type]


def test_looks_are_spaced_ever_wider_up_to_the_cap() -> None:
    policy = replace(RECONCILABLE, probe_cap_seconds=16.0)
    for count, wait in ((1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 16)):
        found = decide(looked(count, 1000), policy, at(1000))
        assert (found.reason, found.at) == (Reason.SETTLING, at(1000 + wait))
        assert decide(looked(count, 1000), policy, at(1000 + wait)).reason is Reason.LOOK_UP


def test_the_first_conclusive_moment_is_worth_a_look_of_its_own() -> None:
    """The answer came at 1, the bound is 30: absence counts after 31."""
    policy = replace(RECONCILABLE, probe_initial_seconds=100.0)
    for began, expected in (
        (30, at(31) + TICK),
        (31, at(31) + TICK),
        (31.000001, at(131.000001)),
        (32, at(132)),
    ):
        assert decide(looked(1, began), policy, at(began)).at == expected
    # A schedule that comes by at that very moment needs no other.
    exact = replace(RECONCILABLE, probe_initial_seconds=1.0)
    assert decide(looked(1, 30), exact, at(30)).at == at(31)


def test_a_look_that_is_asked_for_comes_once_and_not_while_something_is_on_its_way() -> None:
    def reason(asked: float, began: float | None, now: float) -> Reason:
        facts = Facts(
            ONE_DOUBT,
            probes_since_attempt=0 if began is None else 8,
            probe_began_at=None if began is None else at(began),
            look_up_asked_at=at(asked),
        )
        return decide(facts, RECONCILABLE, at(now)).reason

    assert reason(50, 49, 51) is Reason.LOOK_UP
    assert reason(50, 50, 51) is Reason.SETTLING
    assert reason(50, 51, 52) is Reason.SETTLING
    assert reason(50, None, 50) is Reason.LOOK_UP
    restarted = looked(8, 49, look_up_asked_at=at(50), bounds_restart_at=at(60))
    assert decide(restarted, RECONCILABLE, at(60) - TICK).reason is Reason.SETTLING
    assert decide(restarted, RECONCILABLE, at(60)).reason is Reason.LOOK_UP


def test_the_horizon_is_not_passed_by_what_began_too_early() -> None:
    policy = replace(RECONCILABLE, probe_horizon_seconds=100.0)
    for began, reason in (
        (31, Reason.LOOK_UP),
        (31.000001, Reason.PROBE_HORIZON_PASSED),
        (90, Reason.PROBE_HORIZON_PASSED),
    ):
        assert decide(looked(9, began), policy, at(5000)).reason is reason
    assert decide(Facts(ONE_DOUBT), policy, at(5000)).reason is Reason.LOOK_UP


def test_the_first_look_is_a_loss_and_later_ones_a_search() -> None:
    assert decide(Facts(ONE_DOUBT), RECONCILABLE, at(5)).event is LifeEvent.OUTCOME_LOST
    assert decide(looked(1, 5), RECONCILABLE, at(500)).event is LifeEvent.EVIDENCE_SOUGHT


# What clears --------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", list(EvidenceSource))
@pytest.mark.parametrize("safety", [RECONCILABLE, TRANSACTIONAL])
def test_absence_clears_by_who_saw_it_and_when(source: EvidenceSource, safety: Policy) -> None:
    policy = replace(safety, settlement_bound_seconds=30)

    def cleared(began: float) -> bool:
        found = evidence(Verdict.NOT_COMMITTED, began, source=source)
        decision = decide(Facts(ONE_DOUBT, (found,)), policy, LONG_AFTER)
        return decision.reason is Reason.NO_COMMIT_PROVED

    early, just, late = cleared(31), cleared(31.000001), cleared(5000)
    match source:
        case EvidenceSource.TRANSACTION:
            assert (early, just, late) == (True, True, True)
        case EvidenceSource.WEBHOOK:
            assert (early, just, late) == (False, False, False)
        case EvidenceSource.OPERATOR:
            assert (early, just, late) == (False, True, True)
        case EvidenceSource.PROBE:
            looks = policy.safety is SafetyClass.RECONCILABLE
            assert (early, just, late) == (False, looks, looks)


def test_absence_speaks_of_the_attempts_that_existed() -> None:
    attempts = (attempt(1, Outcome.AMBIGUOUS), attempt(2, Outcome.AMBIGUOUS, 20))
    for covers, reason in ((1, Reason.LOOK_UP), (2, Reason.NO_COMMIT_PROVED)):
        found = evidence(Verdict.NOT_COMMITTED, 5000, covers=covers)
        assert decide(Facts(attempts, (found,)), RECONCILABLE, LONG_AFTER).reason is reason


def test_something_that_was_seen_since_makes_absence_worthless() -> None:
    for began, cleared in ((4999, True), (5000, False), (5001, False)):
        seen = evidence(Verdict.MISMATCH, began)
        decision = decide(Facts(ONE_DOUBT, (ABSENT, seen)), RECONCILABLE, LONG_AFTER)
        assert (decision.reason is Reason.NO_COMMIT_PROVED) is cleared


def test_exists_already_is_a_doubt_only_after_a_doubt() -> None:
    def reason(*attempts: Attempt) -> Reason:
        return decide(Facts(attempts), IDEMPOTENT, at(100)).reason

    first = attempt(1, Outcome.REJECTED, code=CODE_ALREADY_EXISTS)
    assert reason(first) is Reason.REJECTED
    assert reason(attempt(1, Outcome.NOT_SENT), EXISTS) is Reason.REJECTED
    assert reason(attempt(1, Outcome.AMBIGUOUS), EXISTS) is Reason.CONFLICT_UNATTRIBUTED
    # The same attempt is no doubt about itself, nor is one that came later.
    itself = attempt(1, Outcome.AMBIGUOUS, code=CODE_ALREADY_EXISTS)
    assert reason(itself) is Reason.SAME_KEY_AGAIN


# The words ----------------------------------------------------------------------------------------


def test_the_words_of_the_table() -> None:
    lost, sent = attempt(1, None), attempt(2, Outcome.AMBIGUOUS, 100)
    unsent = attempt(3, Outcome.NOT_SENT, 200)
    assert deadline(lost, IDEMPOTENT) == at(11)
    assert deadline(sent, IDEMPOTENT) == at(101)
    assert settled_by((lost, sent, unsent), IDEMPOTENT) == at(101)
    assert settled_by((unsent,), IDEMPOTENT) is None
    assert conclusive_from((sent,), RECONCILABLE) == at(131)
    assert conclusive_from((sent,), RECONCILABLE, at(100)) == at(131)
    assert conclusive_from((sent,), RECONCILABLE, at(200)) == at(230)
    assert conclusive_from((sent,), IDEMPOTENT) is None
    assert conclusive_from((unsent,), RECONCILABLE) is None


@pytest.mark.parametrize(
    ("recorded", "polled"), [(19.999999, None), (20.0, 1), (20.000001, 1), (None, None)]
)
def test_an_operation_is_polled_unless_a_later_attempt_left_it_behind(
    recorded: float | None, polled: int | None
) -> None:
    accepted = attempt(
        1,
        Outcome.IN_PROGRESS,
        operation=True,
        recorded_at=None if recorded is None else at(recorded),
    )
    found = open_operation(Facts((accepted, attempt(2, Outcome.AMBIGUOUS, 20))))
    assert (found and found.ordinal) == polled
