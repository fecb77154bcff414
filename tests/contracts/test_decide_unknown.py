"""Row 11 of the decide table: what follows, by class, once an outcome is unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from effect_contracts.decide import (
    Action,
    Reason,
    conclusive_from,
    decide,
    settled_by,
)
from effect_contracts.facts import (
    CODE_OPERATION_GONE,
    CODE_REPLAYED_ERROR,
    Attempt,
    Evidence,
    EvidenceSource,
    Facts,
    Outcome,
    Policy,
    SafetyClass,
    Verdict,
)
from effect_contracts.life import LifeEvent
from effect_contracts.operations import open_operation

from .decide_cases import (
    DOUBTS,
    EVERY_CLASS,
    IDEMPOTENT,
    RECONCILABLE,
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

# Row 11, unsafe and transactional ---------------------------------------------------------------


@pytest.mark.parametrize("doubt", DOUBTS)
def test_a_lost_answer_of_an_unsafe_effect_stays_unknown_for_ever(doubt: Outcome) -> None:
    facts = Facts((attempt(1, doubt),))
    for now in (11, 3600, 10**8):
        decision = decide(facts, UNSAFE, at(now))
        assert said(decision) == (Action.PARK, LifeEvent.OUTCOME_LOST, Reason.OUTCOME_UNKNOWN)


def test_absence_in_a_transaction_is_settled_by_a_fence_row_only() -> None:
    safe = replace(TRANSACTIONAL, settlement_bound_seconds=1)
    lost = (attempt(1, Outcome.PRESUMED_AMBIGUOUS),)
    looked = Facts(lost, (evidence(Verdict.NOT_COMMITTED, 5000),), 1, at(5000))
    assert decide(looked, safe, at(5001)).action is not Action.DISPATCH
    fence = evidence(Verdict.NOT_COMMITTED, 12, source=EvidenceSource.TRANSACTION)
    decision = decide(Facts(lost, (fence,)), safe, at(13))
    assert (decision.action, decision.ordinal) == (Action.DISPATCH, 2)


@EVERY_CLASS
@pytest.mark.parametrize("verdict", [Verdict.NOT_COMMITTED, Verdict.REJECTED])
def test_a_webhook_proves_a_commit_and_nothing_else(safety: SafetyClass, verdict: Verdict) -> None:
    denied = evidence(verdict, 3000, source=EvidenceSource.WEBHOOK)
    facts = Facts((attempt(1, Outcome.AMBIGUOUS),))
    with_webhook = replace(facts, evidence=(denied,))
    safe = policy(safety, settlement_bound_seconds=30)
    assert decide(with_webhook, safe, at(3001)) == decide(facts, safe, at(3001))


# Row 11, reconcilable ---------------------------------------------------------------------------


def test_absence_counts_only_if_the_look_began_after_the_bound() -> None:
    lost = (attempt(1, Outcome.PRESUMED_AMBIGUOUS),)  # settled by 11, conclusive after 41
    assert settled_by(lost, RECONCILABLE) == at(11)
    assert conclusive_from(lost, RECONCILABLE) == at(41)
    for source in (EvidenceSource.PROBE, EvidenceSource.OPERATOR):
        for began, conclusive in ((12, False), (41, False), (41.000001, True)):
            absent = evidence(Verdict.NOT_COMMITTED, began, source=source)
            facts = Facts(lost, (absent,), 1, at(began))
            dispatches = decide(facts, RECONCILABLE, at(50)).action is Action.DISPATCH
            assert dispatches is conclusive, (source, began)


def test_the_bound_counts_from_the_latest_attempt_that_the_look_covered() -> None:
    attempts = (attempt(1, Outcome.AMBIGUOUS), attempt(2, Outcome.AMBIGUOUS, 100))
    for began, covers, clears in ((105, 1, False), (105, 2, False), (131.5, 2, True)):
        absent = evidence(Verdict.NOT_COMMITTED, began, covers)
        decision = decide(Facts(attempts, (absent,)), RECONCILABLE, at(140))
        assert (decision.action is Action.DISPATCH) is clears, (began, covers)


def test_a_late_record_moves_the_bound() -> None:
    stopped = attempt(1, Outcome.AMBIGUOUS, recorded_at=at(60))  # SIGSTOP before the socket
    absent = evidence(Verdict.NOT_COMMITTED, 45)
    decision = decide(Facts((stopped,), (absent,), 1, at(45)), RECONCILABLE, at(70))
    assert decision.action is not Action.DISPATCH


def test_an_operator_needs_no_declared_bound_but_the_end_of_sending() -> None:
    boundless = policy(SafetyClass.IDEMPOTENT, attempts_max=1)
    lost = (attempt(1, Outcome.PRESUMED_AMBIGUOUS),)
    for began, clears in ((11, False), (11.000001, True)):
        absent = evidence(Verdict.NOT_COMMITTED, began, source=EvidenceSource.OPERATOR)
        failed = decide(Facts(lost, (absent,)), boundless, at(20))
        assert (failed.event is LifeEvent.FAILURE_PROVED) is clears


def test_bounds_start_again_in_full_after_a_restore() -> None:
    lost = (attempt(1, Outcome.PRESUMED_AMBIGUOUS),)
    absent = evidence(Verdict.NOT_COMMITTED, 45)
    facts = Facts(lost, (absent,), 1, at(45), bounds_restart_at=at(40))
    assert decide(facts, RECONCILABLE, at(60)).action is not Action.DISPATCH
    again = evidence(Verdict.NOT_COMMITTED, 70.5)
    seen = replace(facts, evidence=(absent, again), probe_began_at=at(70.5))
    assert decide(seen, RECONCILABLE, at(71)).action is Action.DISPATCH


def test_after_a_restore_the_looks_and_their_horizon_start_again() -> None:
    safe = replace(RECONCILABLE, probe_horizon_seconds=100)
    lost = (attempt(1, Outcome.PRESUMED_AMBIGUOUS),)
    facts = Facts(lost, bounds_restart_at=at(500))
    assert decide(facts, safe, at(100)).at == at(500)
    seen = Facts(lost, (), 4, at(531), bounds_restart_at=at(500))
    assert decide(seen, safe, at(590)).action is Action.PROBE
    assert said(decide(seen, safe, at(601))) == review(Reason.PROBE_HORIZON_PASSED)


def test_absence_covers_all_attempts_so_far_and_ends_a_spent_budget() -> None:
    attempts = tuple(attempt(n, Outcome.AMBIGUOUS, 20 * n) for n in (1, 2, 3))
    absent = evidence(Verdict.NOT_COMMITTED, 200, covers=3)
    decision = decide(Facts(attempts, (absent,)), RECONCILABLE, at(201))
    assert said(decision) == failure(Reason.RETRIES_EXHAUSTED)


def test_an_object_seen_after_an_absence_puts_the_absence_in_doubt_again() -> None:
    absence = evidence(Verdict.NOT_COMMITTED, 50)
    sighting = evidence(Verdict.MISMATCH, 60, ids=("x1", "x2"))
    lost = (attempt(1, Outcome.AMBIGUOUS),)
    before = decide(Facts(lost, (absence,), 1, at(50)), RECONCILABLE, at(70))
    assert before.action is Action.DISPATCH
    after = decide(Facts(lost, (absence, sighting), 2, at(60)), RECONCILABLE, at(70))
    assert said(after) == review(Reason.AMBIGUOUS_PROBE)


def test_a_mismatch_goes_to_a_person() -> None:
    mismatch = evidence(Verdict.MISMATCH, 20, ids=("x1", "x2"))
    facts = Facts((attempt(1, Outcome.AMBIGUOUS),), (mismatch,), 1, at(20))
    assert said(decide(facts, RECONCILABLE, at(21))) == review(Reason.AMBIGUOUS_PROBE)


def test_the_first_look_waits_until_nothing_can_be_on_its_way_from_us() -> None:
    facts = Facts((attempt(1, Outcome.PRESUMED_AMBIGUOUS),))
    decision = decide(facts, RECONCILABLE, at(10.5))
    assert said(decision) == (Action.WAIT, LifeEvent.OUTCOME_LOST, Reason.SETTLING)
    assert decision.at == at(11)
    probing = decide(facts, RECONCILABLE, at(11))
    assert said(probing) == (Action.PROBE, LifeEvent.OUTCOME_LOST, Reason.LOOK_UP)


@pytest.mark.parametrize(
    ("probes", "began", "due"),
    [
        (1, 11, 12),
        (2, 12, 14),
        (5, 26, 41.000001),  # 42 by the schedule: the bound is worth a look of its own
        (5, 41, 41.000001),  # began at the bound, not after it
        (6, 41.000001, 73.000001),
        (40, 1000, 1300),  # the cap
    ],
)
def test_looks_grow_apart_with_one_right_after_the_bound(
    probes: int, began: float, due: float
) -> None:
    facts = Facts((attempt(1, Outcome.PRESUMED_AMBIGUOUS),), (), probes, at(began))
    decision = decide(facts, RECONCILABLE, at(began))
    assert said(decision) == (Action.WAIT, LifeEvent.EVIDENCE_SOUGHT, Reason.SETTLING)
    assert decision.at == at(due)
    probing = decide(facts, RECONCILABLE, at(due))
    assert said(probing) == (Action.PROBE, LifeEvent.EVIDENCE_SOUGHT, Reason.LOOK_UP)


def test_the_horizon_asks_a_person_but_not_before_one_look_after_the_bound() -> None:
    safe = replace(RECONCILABLE, probe_horizon_seconds=100)  # ends at 111
    lost = (attempt(1, Outcome.PRESUMED_AMBIGUOUS),)
    unseen = decide(Facts(lost), safe, at(5000))
    assert unseen.action is Action.PROBE
    too_early = decide(Facts(lost, (), 3, at(41)), safe, at(5000))
    assert too_early.action is Action.PROBE
    seen = decide(Facts(lost, (), 4, at(41.5)), safe, at(5000))
    assert said(seen) == review(Reason.PROBE_HORIZON_PASSED)
    # The next look would be at 132, so nothing is gained by waiting until then.
    too_far = decide(Facts(lost, (), 6, at(100)), safe, at(101))
    assert said(too_far) == review(Reason.PROBE_HORIZON_PASSED)


def test_a_horizon_within_the_bound_still_gets_its_look_after_the_bound() -> None:
    safe = replace(RECONCILABLE, probe_horizon_seconds=10)  # ends at 21, the bound at 41
    lost = (attempt(1, Outcome.PRESUMED_AMBIGUOUS),)
    decision = decide(Facts(lost, (), 5, at(26)), safe, at(27))
    assert (decision.action, decision.at) == (Action.WAIT, at(41.000001))


# Row 11, idempotent -----------------------------------------------------------------------------


@pytest.mark.parametrize("doubt", DOUBTS)
def test_the_same_key_goes_again_after_settled_by_and_a_back_off(doubt: Outcome) -> None:
    facts = Facts((attempt(1, doubt),))
    waiting = decide(facts, IDEMPOTENT, at(1))
    assert waiting.event is LifeEvent.OUTCOME_LOST
    assert waiting.action is Action.WAIT
    end = 11 if doubt is Outcome.PRESUMED_AMBIGUOUS else 1
    assert waiting.at is not None
    assert at(end + 0.5) <= waiting.at <= at(end + 1)
    again = decide(facts, IDEMPOTENT, waiting.at)
    expected = (Action.DISPATCH, LifeEvent.ATTEMPT_STARTED, Reason.SAME_KEY_AGAIN)
    assert said(again) == expected
    assert again.ordinal == 2


def test_an_earlier_attempt_that_may_still_send_is_waited_for() -> None:
    early = attempt(1, Outcome.PRESUMED_AMBIGUOUS, deadline_at=at(300))
    facts = Facts((early, attempt(2, Outcome.AMBIGUOUS, 20)))
    assert decide(facts, IDEMPOTENT, at(100)).at == at(301)


def test_the_whole_next_attempt_has_to_fit_before_the_key_expires() -> None:
    # A whole attempt: deadline 10, margin 1, transit 5. Counted from the start at 0, not from
    # the record, so the last start is at 3600 - 16.
    facts = Facts((attempt(1, Outcome.AMBIGUOUS),))
    assert decide(facts, IDEMPOTENT, at(3584)).action is Action.DISPATCH
    late = decide(facts, IDEMPOTENT, at(3584.000001))
    assert said(late) == review(Reason.KEY_EXPIRED)


def test_the_key_counts_from_the_first_attempt_that_may_have_been_sent() -> None:
    facts = Facts((attempt(1, Outcome.NOT_SENT), attempt(2, Outcome.AMBIGUOUS, 1000)))
    assert decide(facts, IDEMPOTENT, at(4584)).action is Action.DISPATCH
    refused = Facts((attempt(1, Outcome.RETRYABLE), attempt(2, Outcome.AMBIGUOUS, 1000)))
    assert decide(refused, IDEMPOTENT, at(4584)).reason is Reason.KEY_EXPIRED


def test_a_wait_that_would_outlive_the_key_is_not_begun() -> None:
    asked = attempt(1, Outcome.IN_PROGRESS, retry_after_seconds=3600.0)
    assert said(decide(Facts((asked,)), IDEMPOTENT, at(2))) == review(Reason.KEY_EXPIRED)


def test_without_a_declared_retention_no_key_is_sent_twice() -> None:
    keyless = replace(IDEMPOTENT, key_retention_seconds=None)
    facts = Facts((attempt(1, Outcome.AMBIGUOUS),))
    assert said(decide(facts, keyless, at(50))) == review(Reason.KEY_EXPIRED)


def test_a_spent_budget_of_lost_answers_is_reviewed_and_never_failed() -> None:
    attempts = tuple(attempt(n, Outcome.AMBIGUOUS, 20 * n) for n in (1, 2, 3))
    decision = decide(Facts(attempts), IDEMPOTENT, at(99))
    assert said(decision) == review(Reason.RETRIES_EXHAUSTED)


def test_in_progress_is_free_of_charge_until_its_bound() -> None:
    safe = replace(IDEMPOTENT, attempts_max=2, in_progress_bound_seconds=100)
    attempts = tuple(attempt(n, Outcome.IN_PROGRESS, 20 * (n - 1)) for n in (1, 2, 3))
    free = decide(Facts(attempts), safe, at(99.9))
    assert (free.action, free.ordinal) == (Action.DISPATCH, 4)
    charged = decide(Facts(attempts), safe, at(100))
    assert said(charged) == review(Reason.RETRIES_EXHAUSTED)


def test_in_progress_waits_by_retry_after() -> None:
    facts = Facts((attempt(1, Outcome.IN_PROGRESS, retry_after_seconds=45.0),))
    decision = decide(facts, IDEMPOTENT, at(1))
    assert said(decision) == (Action.WAIT, LifeEvent.OUTCOME_LOST, Reason.IN_PROGRESS)
    assert decision.at == at(46)


def test_a_target_that_replays_a_stored_error_is_reviewed_after_a_bound() -> None:
    replayed = [attempt(n, Outcome.AMBIGUOUS, 20 * n, code=CODE_REPLAYED_ERROR) for n in (1, 2)]
    safe = replace(IDEMPOTENT, attempts_max=9)
    assert decide(Facts(tuple(replayed[:1])), safe, at(99)).action is Action.DISPATCH
    assert said(decide(Facts(tuple(replayed)), safe, at(99))) == review(Reason.REPLAYED_ERROR)


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ({"key_retention_seconds": 20}, Reason.KEY_EXPIRED),
        ({"attempts_max": 1}, Reason.RETRIES_EXHAUSTED),
        ({"replayed_errors_max": 0}, Reason.REPLAYED_ERROR),
    ],
)
def test_an_idempotent_effect_that_cannot_go_again_is_looked_up_first(
    numbers: dict[str, object], reason: Reason
) -> None:
    safe = policy(SafetyClass.IDEMPOTENT, probes=True, probe_horizon_seconds=100, **numbers)
    lost = (attempt(1, Outcome.AMBIGUOUS),)
    assert decide(Facts(lost), safe, at(50)).action is Action.PROBE
    given_up = decide(Facts(lost, (), 6, at(60)), safe, at(500))
    assert said(given_up) == review(reason)


# Accepted operations ----------------------------------------------------------------------------


@EVERY_CLASS
def test_an_accepted_operation_is_polled_and_never_sent_again(safety: SafetyClass) -> None:
    accepted = (attempt(1, Outcome.AMBIGUOUS, operation=True),)
    safe = policy(safety, polls_operations=True, probe_horizon_seconds=100)
    polling = decide(Facts(accepted), safe, at(1))
    assert said(polling) == (Action.PROBE, LifeEvent.EVIDENCE_SOUGHT, Reason.LOOK_UP)
    running = decide(Facts(accepted, (), 1, at(1)), safe, at(1.5))
    assert said(running) == (Action.WAIT, LifeEvent.EVIDENCE_SOUGHT, Reason.SETTLING)
    failed = evidence(Verdict.REJECTED, 5)
    ended = decide(Facts(accepted, (failed,), 2, at(5)), safe, at(6))
    assert said(ended) == failure(Reason.REJECTED)
    endless = decide(Facts(accepted, (), 9, at(90)), safe, at(500))
    assert said(endless) == review(Reason.PROBE_HORIZON_PASSED)


def test_a_failed_operation_clears_its_own_attempt_only() -> None:
    attempts = (attempt(1, Outcome.AMBIGUOUS), attempt(2, Outcome.AMBIGUOUS, 20, operation=True))
    failed = evidence(Verdict.REJECTED, 25, covers=2)
    decision = decide(Facts(attempts, (failed,)), RECONCILABLE, at(26))
    assert decision.action is Action.PROBE


def polled_contract(safety: SafetyClass) -> Policy:
    """Transit is five seconds, so a look counts from the sixth second after the attempt on."""
    return policy(safety, polls_operations=True, probe_horizon_seconds=100, probe_cap_seconds=10)


def gone(began: float, covers: int = 1) -> Evidence:
    return replace(evidence(Verdict.UNKNOWN, began, covers), code=CODE_OPERATION_GONE)


def after_a_poll(began: float, *found: Evidence, accepted: Attempt | None = None) -> Facts:
    first = attempt(1, Outcome.IN_PROGRESS, operation=True)
    return Facts((accepted or first,), found, 3, at(began))


def test_an_operation_that_is_gone_leaves_an_unsafe_effect_unknown_for_a_person() -> None:
    decision = decide(after_a_poll(8, gone(8)), polled_contract(SafetyClass.UNSAFE), at(9))
    assert said(decision) == (Action.PARK, LifeEvent.OUTCOME_LOST, Reason.OUTCOME_UNKNOWN)


def test_an_operation_that_is_gone_is_sent_again_under_its_key() -> None:
    idempotent = polled_contract(SafetyClass.IDEMPOTENT)
    decision = decide(after_a_poll(8, gone(8)), idempotent, at(60))
    assert said(decision) == (Action.DISPATCH, LifeEvent.ATTEMPT_STARTED, Reason.SAME_KEY_AGAIN)
    forgetful = replace(idempotent, key_retention_seconds=50)
    expired = decide(after_a_poll(8, gone(8)), forgetful, at(60))
    assert said(expired) == review(Reason.KEY_EXPIRED)


def test_an_operation_that_is_gone_is_looked_up_by_key_to_the_horizon() -> None:
    reconcilable = polled_contract(SafetyClass.RECONCILABLE)
    asking = decide(after_a_poll(8, gone(8)), reconcilable, at(30))
    assert said(asking) == (Action.PROBE, LifeEvent.EVIDENCE_SOUGHT, Reason.LOOK_UP)
    ended = decide(after_a_poll(99, gone(99)), reconcilable, at(300))
    assert said(ended) == review(Reason.PROBE_HORIZON_PASSED)


@pytest.mark.parametrize("safety", [SafetyClass.UNSAFE, SafetyClass.IDEMPOTENT])
def test_an_operation_that_is_not_shown_yet_is_asked_for_again(safety: SafetyClass) -> None:
    early, counts = after_a_poll(6, gone(6)), after_a_poll(6.5, gone(6.5))
    asking = decide(early, polled_contract(safety), at(60))
    assert said(asking) == (Action.PROBE, LifeEvent.EVIDENCE_SOUGHT, Reason.LOOK_UP)
    assert decide(counts, polled_contract(safety), at(60)).action is not Action.PROBE
    # The schedule is over, and nobody will look again.
    brief = replace(polled_contract(SafetyClass.UNSAFE), probe_horizon_seconds=3)
    ended = decide(early, brief, at(60))
    assert said(ended) == (Action.PARK, LifeEvent.OUTCOME_LOST, Reason.OUTCOME_UNKNOWN)


def test_the_latest_look_counts_and_a_person_may_ask_for_one_more() -> None:
    unsafe = polled_contract(SafetyClass.UNSAFE)
    running_again = after_a_poll(20, gone(8))
    assert decide(running_again, unsafe, at(60)).action is Action.PROBE
    asked = replace(after_a_poll(8, gone(8)), look_up_asked_at=at(9))
    assert decide(asked, unsafe, at(60)).action is Action.PROBE
    answered = replace(after_a_poll(10, gone(10)), look_up_asked_at=at(9))
    assert decide(answered, unsafe, at(60)).action is Action.PARK
    of_another = after_a_poll(8, gone(8, covers=2))
    assert decide(of_another, unsafe, at(60)).action is Action.PROBE


def test_an_operation_that_was_left_behind_is_not_polled_for_ever() -> None:
    idempotent = polled_contract(SafetyClass.IDEMPOTENT)
    attempts = (
        attempt(1, Outcome.IN_PROGRESS, operation=True),
        attempt(2, Outcome.AMBIGUOUS, 20),
    )
    facts = Facts(attempts, (gone(8),))
    assert open_operation(facts) is None
    assert said(decide(facts, idempotent, at(60)))[2] is Reason.SAME_KEY_AGAIN
    again = (attempts[0], attempt(2, Outcome.IN_PROGRESS, 20, operation=True))
    twice = Facts(again, (gone(8), gone(30, covers=2)), 3, at(30))
    unknown = (Action.PARK, LifeEvent.OUTCOME_LOST, Reason.OUTCOME_UNKNOWN)
    assert said(decide(twice, idempotent, at(60))) == unknown
    late = replace(attempts[0], recorded_at=at(21))
    assert open_operation(Facts((late, attempts[1]))) == late


def test_no_look_up_shows_the_absence_of_what_was_accepted() -> None:
    accepted = attempt(1, Outcome.IN_PROGRESS, operation=True)
    absent = evidence(Verdict.NOT_COMMITTED, 50)
    reconcilable = polled_contract(SafetyClass.RECONCILABLE)
    by_look = decide(after_a_poll(50, absent, accepted=accepted), reconcilable, at(90))
    assert by_look.action is Action.PROBE
    by_person = replace(absent, source=EvidenceSource.OPERATOR)
    told = decide(after_a_poll(50, by_person, accepted=accepted), reconcilable, at(90))
    assert told.action is Action.DISPATCH
