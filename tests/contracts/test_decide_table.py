"""Rows 1 to 10 of the decide table, one promise each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from effect_contracts.decide import Action, Decision, Reason, decide
from effect_contracts.facts import (
    CODE_ALREADY_EXISTS,
    EvidenceSource,
    Facts,
    Hold,
    Outcome,
    SafetyClass,
    Verdict,
)
from effect_contracts.life import LifeEvent

from .decide_cases import (
    DENIALS,
    DOUBTS,
    EVERY_CLASS,
    IDEMPOTENT,
    RECONCILABLE,
    T0,
    TRANSACTIONAL,
    UNSAFE,
    at,
    attempt,
    evidence,
    failure,
    policy,
    review,
    said,
)

# Row 1 ------------------------------------------------------------------------------------------


@EVERY_CLASS
def test_two_objects_are_a_contract_violation_that_freezes(safety: SafetyClass) -> None:
    first = attempt(1, Outcome.COMMITTED, external_id="x1")
    second = attempt(2, Outcome.COMMITTED, 20, external_id="x2")
    found = evidence(Verdict.COMMITTED, 15, ids=("x2",))
    for facts in (
        Facts((first, second)),
        Facts((first,), (found,)),
        Facts((attempt(1, Outcome.AMBIGUOUS),), (evidence(Verdict.COMMITTED, 9, ids=("a", "b")),)),
        Facts((first, second), holds=frozenset({Hold.TARGET_CHANGED})),
    ):
        decision = decide(facts, policy(safety), at(30))
        assert said(decision) == review(Reason.CONTRACT_VIOLATION)
        assert decision.freezes


@EVERY_CLASS
def test_a_person_ends_a_contract_violation_by_saying_which_object_counts(
    safety: SafetyClass,
) -> None:
    first = attempt(1, Outcome.COMMITTED, external_id="x1")
    second = attempt(2, Outcome.COMMITTED, 20, external_id="x2")
    told = evidence(Verdict.COMMITTED, 25, ids=("x2",), source=EvidenceSource.OPERATOR)
    decision = decide(Facts((first, second), (told,)), policy(safety), at(30))
    assert (decision.action, decision.reason) == (Action.SETTLE, Reason.COMMITTED)
    assert decision.winner == told
    assert decision.freezes
    ended = decide(Facts((first, second), failed_by_operator=True), policy(safety), at(30))
    assert said(ended) == failure(Reason.FAILED_BY_OPERATOR)
    assert ended.freezes


def test_one_object_seen_twice_and_a_commit_without_an_id_are_no_violation() -> None:
    named = attempt(1, Outcome.COMMITTED, external_id="x1")
    again = attempt(2, Outcome.COMMITTED, 20, external_id="x1")
    unnamed = attempt(3, Outcome.COMMITTED, 40)
    decision = decide(Facts((named, again, unnamed)), IDEMPOTENT, at(50))
    assert said(decision) == (Action.SETTLE, LifeEvent.COMMIT_PROVED, Reason.COMMITTED)
    assert not decision.freezes


# Row 2 ------------------------------------------------------------------------------------------


@EVERY_CLASS
@pytest.mark.parametrize("later", [o for o in Outcome if o is not Outcome.COMMITTED])
def test_a_commit_wins_over_whatever_came_before_or_after(
    safety: SafetyClass, later: Outcome
) -> None:
    for outcomes in ((Outcome.COMMITTED, later), (later, Outcome.COMMITTED)):
        attempts = tuple(
            attempt(n, outcome, 20 * (n - 1), external_id="x1" if n == 1 else None)
            for n, outcome in enumerate(outcomes, start=1)
        )
        facts = Facts(attempts, failed_by_operator=True, holds=frozenset(Hold))
        decision = decide(facts, policy(safety), at(40))
        assert said(decision) == (Action.SETTLE, LifeEvent.COMMIT_PROVED, Reason.COMMITTED)


@EVERY_CLASS
def test_committed_evidence_settles_a_lost_answer(safety: SafetyClass) -> None:
    for source in EvidenceSource:
        found = evidence(Verdict.COMMITTED, 2, source=source, ids=("x1",))
        denied = evidence(Verdict.NOT_COMMITTED, 3000)
        facts = Facts((attempt(1, Outcome.AMBIGUOUS),), (denied, found))
        decision = decide(facts, policy(safety), at(3001))
        assert said(decision) == (Action.SETTLE, LifeEvent.COMMIT_PROVED, Reason.COMMITTED)
        assert decision.winner == found


def test_the_receipt_prefers_the_targets_own_answer() -> None:
    answer = attempt(2, Outcome.COMMITTED, 20, external_id="x1")
    found = evidence(Verdict.COMMITTED, 5, ids=("x1",))
    facts = Facts((attempt(1, Outcome.AMBIGUOUS), answer), (found,))
    assert decide(facts, IDEMPOTENT, at(40)).winner == answer


def test_a_commit_settles_while_another_attempt_is_open() -> None:
    facts = Facts((attempt(1, Outcome.COMMITTED), attempt(2, None, 20)))
    assert decide(facts, IDEMPOTENT, at(21)).reason is Reason.COMMITTED


@EVERY_CLASS
@pytest.mark.parametrize("outcome", [*DENIALS, *DOUBTS, Outcome.KEY_CONFLICT, None])
def test_a_persons_final_failure_ends_the_effect(
    safety: SafetyClass, outcome: Outcome | None
) -> None:
    facts = Facts((attempt(1, outcome),), failed_by_operator=True, holds=frozenset(Hold))
    assert said(decide(facts, policy(safety), at(5))) == failure(Reason.FAILED_BY_OPERATOR)


# Row 3 ------------------------------------------------------------------------------------------


@EVERY_CLASS
@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Outcome.KEY_CONFLICT, Reason.TARGET_KEY_CONFLICT),
        (Outcome.PARTIAL, Reason.PARTIAL_RESULT),
    ],
)
def test_a_key_conflict_and_a_partial_result_go_to_a_person(
    safety: SafetyClass, outcome: Outcome, reason: Reason
) -> None:
    absent = evidence(Verdict.NOT_COMMITTED, 900, covers=2, source=EvidenceSource.OPERATOR)
    for attempts in (
        (attempt(1, outcome),),
        (attempt(1, Outcome.AMBIGUOUS), attempt(2, outcome, 20)),
        (attempt(1, outcome), attempt(2, Outcome.REJECTED, 20)),
    ):
        for known in ((), (absent,)):
            decision = decide(Facts(attempts, known), policy(safety), at(1000))
            assert said(decision) == review(reason)


@EVERY_CLASS
@pytest.mark.parametrize("outcome", [Outcome.KEY_CONFLICT, Outcome.PARTIAL])
def test_nobody_is_asked_while_another_attempt_is_open(
    safety: SafetyClass, outcome: Outcome
) -> None:
    # What parks is looked at by nobody: the open attempt would stay open in it.
    facts = Facts((attempt(1, outcome), attempt(2, None, 20)))
    waits = decide(facts, policy(safety), at(21))
    assert (waits.action, waits.reason) == (Action.WAIT, Reason.ATTEMPT_OPEN)
    assert waits.at is not None
    decided = decide(facts, policy(safety), waits.at)
    assert decided.action is Action.PARK
    assert decided.lost == (2,)


def test_two_objects_freeze_at_once_and_are_shown_once_no_attempt_is_open() -> None:
    first = attempt(1, Outcome.COMMITTED, external_id="x1")
    second = attempt(2, Outcome.COMMITTED, 20, external_id="x2")
    facts = Facts((first, second, attempt(3, None, 40)))
    waits = decide(facts, IDEMPOTENT, at(41))
    assert (waits.action, waits.freezes) == (Action.WAIT, True)
    assert waits.at is not None
    decided = decide(facts, IDEMPOTENT, waits.at)
    assert (said(decided), decided.freezes) == (review(Reason.CONTRACT_VIOLATION), True)


# Row 4 ------------------------------------------------------------------------------------------


@EVERY_CLASS
def test_an_open_attempt_is_waited_for_until_its_deadline_and_the_margin(
    safety: SafetyClass,
) -> None:
    facts = Facts((attempt(1, None),), holds=frozenset({Hold.TARGET_CHANGED}))
    for now in (0, 5, 10, 10.999999):
        decision = decide(facts, policy(safety), at(now))
        assert said(decision) == (Action.WAIT, LifeEvent.ATTEMPT_OPEN, Reason.ATTEMPT_OPEN)
        assert decision.at == at(11)
        assert decision.lost == ()


@EVERY_CLASS
def test_an_attempt_that_is_open_past_its_deadline_is_lost_and_named(safety: SafetyClass) -> None:
    decision = decide(Facts((attempt(1, None),)), policy(safety), at(11))
    assert decision.lost == (1,)
    presumed = Facts((attempt(1, Outcome.PRESUMED_AMBIGUOUS),))
    assert replace(decision, lost=()) == decide(presumed, policy(safety), at(11))


# Row 5 ------------------------------------------------------------------------------------------


@EVERY_CLASS
def test_a_cancel_counts_before_the_first_attempt_only(safety: SafetyClass) -> None:
    facts = Facts(cancel_requested=True, holds=frozenset(Hold), send_before=at(-1))
    expected = (Action.SETTLE, LifeEvent.CANCEL_GRANTED, Reason.CANCELLED)
    assert said(decide(facts, policy(safety), T0)) == expected
    for outcome in (*DENIALS, *DOUBTS):
        tried = Facts((attempt(1, outcome),))
        wanted = replace(tried, cancel_requested=True)
        assert decide(wanted, policy(safety), at(90)) == decide(tried, policy(safety), at(90))


# Row 6 ------------------------------------------------------------------------------------------


@EVERY_CLASS
@pytest.mark.parametrize("hold", [h for h in Hold if h is not Hold.TARGET_CHANGED])
def test_a_held_effect_rests_with_the_holds_reason(safety: SafetyClass, hold: Hold) -> None:
    holds = frozenset({hold})
    first = decide(Facts(holds=holds), policy(safety), T0)
    assert said(first) == (Action.PARK, LifeEvent.NOTHING_SENT, Reason(hold.value))
    refused = Facts((attempt(1, Outcome.RETRYABLE, retry_after_seconds=60.0),), holds=holds)
    for now in (2, 500):  # within the back-off and after it
        decision = decide(refused, policy(safety), at(now))
        expected = (Action.PARK, LifeEvent.NO_COMMIT_PROVED, Reason(hold.value))
        assert said(decision) == expected


def test_probes_go_on_while_an_effect_is_held() -> None:
    holds = frozenset({Hold.PAUSED, Hold.FROZEN, Hold.TENANT_DISABLED})
    facts = Facts((attempt(1, Outcome.PRESUMED_AMBIGUOUS),), holds=holds)
    for now in (5, 11):
        unheld = replace(facts, holds=frozenset())
        for safe in (RECONCILABLE, TRANSACTIONAL):
            assert decide(facts, safe, at(now)) == decide(unheld, safe, at(now))
    idempotent = decide(facts, IDEMPOTENT, at(500))
    assert said(idempotent) == (Action.PARK, LifeEvent.OUTCOME_LOST, Reason.PAUSED)


@EVERY_CLASS
def test_a_changed_target_is_neither_sent_to_nor_asked(safety: SafetyClass) -> None:
    holds = frozenset({Hold.PAUSED, Hold.TARGET_CHANGED})
    waits_or_asks = [
        Facts(holds=holds),
        Facts((attempt(1, Outcome.RETRYABLE),), holds=holds),
        Facts((attempt(1, Outcome.AMBIGUOUS, operation=True),), holds=holds),
    ]
    for facts in waits_or_asks:
        for now in (1.5, 3000):
            polling = policy(safety, polls_operations=True)
            decision = decide(facts, polling, at(now))
            assert said(decision) == review(Reason.TARGET_CHANGED)


@EVERY_CLASS
def test_a_hold_keeps_no_settled_effect_open(safety: SafetyClass) -> None:
    facts = Facts((attempt(1, Outcome.REJECTED),), holds=frozenset(Hold))
    assert said(decide(facts, policy(safety), at(2))) == failure(Reason.REJECTED)


# Row 7 ------------------------------------------------------------------------------------------


@EVERY_CLASS
def test_the_first_attempt_is_dispatched_at_once(safety: SafetyClass) -> None:
    decision = decide(Facts(), policy(safety), T0)
    assert decision == Decision(
        Action.DISPATCH, LifeEvent.ATTEMPT_STARTED, Reason.FIRST_ATTEMPT, 7, ordinal=1
    )


@EVERY_CLASS
def test_no_first_attempt_starts_at_or_after_send_before(safety: SafetyClass) -> None:
    facts = Facts(send_before=at(60))
    assert decide(facts, policy(safety), at(59.999999)).action is Action.DISPATCH
    for now in (60, 61):
        assert said(decide(facts, policy(safety), at(now))) == failure(Reason.EXPIRED)


def test_send_before_does_not_stop_a_second_attempt() -> None:
    facts = Facts((attempt(1, Outcome.NOT_SENT),), send_before=at(1))
    assert decide(facts, UNSAFE, at(500)).action is Action.DISPATCH


# Rows 8 to 10 -----------------------------------------------------------------------------------


@EVERY_CLASS
def test_a_rejection_is_final_once_nothing_else_can_have_committed(safety: SafetyClass) -> None:
    for outcomes in (
        (Outcome.REJECTED,),
        (Outcome.NOT_SENT, Outcome.REJECTED),
        (Outcome.RETRYABLE, Outcome.NOT_SENT, Outcome.REJECTED),
    ):
        attempts = tuple(attempt(n, o, 20 * n) for n, o in enumerate(outcomes, start=1))
        assert said(decide(Facts(attempts), policy(safety), at(99))) == failure(Reason.REJECTED)


@EVERY_CLASS
def test_a_later_rejection_proves_nothing_about_an_earlier_lost_answer(
    safety: SafetyClass,
) -> None:
    for doubt in DOUBTS:
        facts = Facts((attempt(1, doubt), attempt(2, Outcome.REJECTED, 20)))
        decision = decide(facts, policy(safety), at(22))
        assert decision.event is not LifeEvent.FAILURE_PROVED
        assert decision.event is LifeEvent.OUTCOME_LOST or decision.action is Action.DISPATCH


@EVERY_CLASS
@pytest.mark.parametrize("outcome", DENIALS)
def test_a_proved_miss_is_tried_again_after_a_back_off(
    safety: SafetyClass, outcome: Outcome
) -> None:
    facts = Facts((attempt(1, outcome),), jitter_seed=3)
    decision = decide(facts, policy(safety), at(1))
    assert said(decision) == (Action.WAIT, LifeEvent.NO_COMMIT_PROVED, Reason.BACKOFF)
    # Recorded at 1, initial back-off 1 s, of which the jitter takes at most half.
    assert decision.at is not None
    assert at(1.5) <= decision.at <= at(2)
    again = decide(facts, policy(safety), decision.at)
    assert said(again)[2] is Reason.NO_COMMIT_PROVED
    assert (again.action, again.ordinal) == (Action.DISPATCH, 2)


@pytest.mark.parametrize(
    ("asked", "wait"), [(90.0, 90), (7200.0, 3600), (float("inf"), 3600), (-5.0, 1), (0.0, 1)]
)
def test_retry_after_lengthens_a_wait_up_to_its_cap(asked: float, wait: float) -> None:
    facts = Facts((attempt(1, Outcome.RETRYABLE, retry_after_seconds=asked),))
    decision = decide(facts, UNSAFE, at(1))
    assert decision.at is not None
    assert at(1 + wait / 2) <= decision.at <= at(1 + wait)
    if wait > 1:
        assert decision.at == at(1 + wait)


def test_a_retry_after_that_is_no_number_is_ignored() -> None:
    facts = Facts((attempt(1, Outcome.RETRYABLE),))
    odd = Facts((attempt(1, Outcome.RETRYABLE, retry_after_seconds=float("nan")),))
    assert decide(odd, UNSAFE, at(1)) == decide(facts, UNSAFE, at(1))


@EVERY_CLASS
def test_a_spent_budget_says_whether_anything_was_ever_sent(safety: SafetyClass) -> None:
    unsent = tuple(attempt(n, Outcome.NOT_SENT, 20 * n) for n in (1, 2, 3))
    assert said(decide(Facts(unsent), policy(safety), at(99))) == failure(Reason.NEVER_SENT)
    refused = (*unsent[:2], attempt(3, Outcome.RETRYABLE, 60))
    decision = decide(Facts(refused), policy(safety), at(99))
    assert said(decision) == failure(Reason.RETRIES_EXHAUSTED)


@pytest.mark.parametrize("doubt", DOUBTS)
def test_an_unsafe_effect_is_never_sent_again_on_another_word_than_the_targets(
    doubt: Outcome,
) -> None:
    absent = evidence(Verdict.NOT_COMMITTED, 20, source=EvidenceSource.OPERATOR)
    decision = decide(Facts((attempt(1, doubt),), (absent,)), UNSAFE, at(30))
    assert said(decision) == failure(Reason.PROVED_NOT_COMMITTED)


# "Exists already" -------------------------------------------------------------------------------


@EVERY_CLASS
def test_exists_already_without_doubt_before_it_is_a_plain_rejection(safety: SafetyClass) -> None:
    named = attempt(2, Outcome.REJECTED, 20, code=CODE_ALREADY_EXISTS)
    for before in (Outcome.NOT_SENT, Outcome.RETRYABLE, Outcome.REJECTED):
        facts = Facts((attempt(1, before), named))
        assert said(decide(facts, policy(safety), at(40))) == failure(Reason.REJECTED)


@pytest.mark.parametrize("doubt", DOUBTS)
def test_exists_already_after_doubt_is_looked_up_or_reviewed(doubt: Outcome) -> None:
    named = attempt(2, Outcome.REJECTED, 20, code=CODE_ALREADY_EXISTS)
    facts = Facts((attempt(1, doubt), named))
    for safe in (RECONCILABLE, TRANSACTIONAL, policy(SafetyClass.IDEMPOTENT, probes=True)):
        assert decide(facts, safe, at(40)).action is Action.PROBE
    assert said(decide(facts, IDEMPOTENT, at(40))) == review(Reason.CONFLICT_UNATTRIBUTED)


@pytest.mark.parametrize("source", [EvidenceSource.PROBE, EvidenceSource.OPERATOR])
def test_exists_already_outweighs_older_evidence_of_absence(source: EvidenceSource) -> None:
    named = attempt(2, Outcome.REJECTED, 50, code=CODE_ALREADY_EXISTS)
    older = evidence(Verdict.NOT_COMMITTED, 45, covers=1, source=source)
    facts = Facts((attempt(1, Outcome.AMBIGUOUS), named), (older,))
    assert decide(facts, RECONCILABLE, at(60)).action is Action.PROBE
    newer = evidence(Verdict.NOT_COMMITTED, 90, covers=2, source=source)
    seen = replace(facts, evidence=(older, newer))
    assert said(decide(seen, RECONCILABLE, at(95))) == review(Reason.CONFLICT_UNATTRIBUTED)


def test_an_object_of_that_name_that_is_not_ours_is_never_adopted() -> None:
    named = attempt(2, Outcome.REJECTED, 20, code=CODE_ALREADY_EXISTS)
    other = evidence(Verdict.MISMATCH, 30, covers=2, ids=("x1",))
    facts = Facts((attempt(1, Outcome.AMBIGUOUS), named), (other,))
    for safe in (RECONCILABLE, IDEMPOTENT):
        assert said(decide(facts, safe, at(40))) == review(Reason.CONFLICT_UNATTRIBUTED)
