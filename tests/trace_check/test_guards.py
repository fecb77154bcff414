"""The rules on sending and settling, each asked itself about facts that are made for it.

No store lets most of these facts in, and no `decide` of ours would act on them. That is why the
rules are asked alone: a second lock is worth nothing if it only holds while the first one does.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from effect_contracts.facts import (
    CODE_ALREADY_EXISTS,
    Conclusion,
    EffectState,
    EvidenceSource,
    Outcome,
    SafetyClass,
    Verdict,
)
from effect_contracts.trace.findings import Rule
from effect_contracts.trace.guards import check_absence, check_grant, check_settlement
from effect_contracts.trace.log import ResolutionRecord
from effect_contracts.trace.timeline import Timeline
from trace_check.asked_alone import (
    BEGAN_AT,
    DEADLINE,
    MARGIN,
    TICK,
    TRANSIT,
    after,
    attempt,
    evidence,
    holds,
    known,
    refused,
)

# Sending again ------------------------------------------------------------------------------------


def test_the_first_attempt_is_always_granted() -> None:
    for safety in SafetyClass:
        check_grant(known(safety=safety), BEGAN_AT)


@pytest.mark.parametrize("safety", SafetyClass)
def test_nothing_is_sent_while_an_attempt_is_open(safety: SafetyClass) -> None:
    rows = (attempt(1, Outcome.NOT_SENT, recorded=1), attempt(2, None, starts=2))
    what = refused(Rule.ONE_OPEN, check_grant, known(*rows, safety=safety), after(1000))
    assert what == "attempt 2 is still open"


@pytest.mark.parametrize("outcome", [Outcome.COMMITTED, Outcome.KEY_CONFLICT, Outcome.PARTIAL])
@pytest.mark.parametrize("safety", SafetyClass)
def test_nothing_is_sent_after_an_answer_that_ends_the_effect(
    safety: SafetyClass, outcome: Outcome
) -> None:
    rows = (attempt(1, outcome, recorded=1), attempt(2, Outcome.NOT_SENT, recorded=1))
    what = refused(Rule.RESENT, check_grant, known(*rows, safety=safety), after(1000))
    assert what == "an answer before it has ended the effect"


def test_nothing_is_sent_after_evidence_of_a_commit() -> None:
    rows = (attempt(1, Outcome.AMBIGUOUS, recorded=1), evidence(Verdict.COMMITTED, began=2))
    timeline = known(*rows, safety=SafetyClass.IDEMPOTENT, key_retention_seconds=1e6)
    assert refused(Rule.RESENT, check_grant, timeline, after(1000)).startswith("an answer")


def test_nothing_is_sent_after_a_refusal_for_good_unless_an_earlier_attempt_is_in_doubt() -> None:
    rejected = attempt(2, Outcome.REJECTED, recorded=1)
    for safety in SafetyClass:
        timeline = known(attempt(1, Outcome.NOT_SENT, recorded=1), rejected, safety=safety)
        what = refused(Rule.RESENT, check_grant, timeline, after(1000))
        assert what == "the target has refused it for good"
    doubt = attempt(1, Outcome.AMBIGUOUS, recorded=1)
    timeline = known(doubt, rejected, safety=SafetyClass.IDEMPOTENT, key_retention_seconds=1e6)
    check_grant(timeline, after(1000))


@pytest.mark.parametrize("outcome", [Outcome.NOT_SENT, Outcome.RETRYABLE])
@pytest.mark.parametrize("safety", SafetyClass)
def test_what_proves_that_nothing_happened_lets_it_be_sent_again(
    safety: SafetyClass, outcome: Outcome
) -> None:
    check_grant(known(attempt(1, outcome, recorded=1), safety=safety), after(1))


IN_DOUBT = [Outcome.IN_PROGRESS, Outcome.AMBIGUOUS, Outcome.PRESUMED_AMBIGUOUS]


@pytest.mark.parametrize("outcome", IN_DOUBT)
def test_an_unsafe_effect_is_never_sent_again_after_doubt(outcome: Outcome) -> None:
    """Not even where a look-up has found nothing: the target may still do it."""
    rows = (
        attempt(1, Outcome.NOT_SENT, recorded=1), attempt(2, outcome, recorded=1),
        evidence(Verdict.NOT_COMMITTED, EvidenceSource.OPERATOR, began=900, through=2),
    )  # fmt: skip
    timeline = known(*rows, safety=SafetyClass.UNSAFE)
    what = refused(Rule.UNSAFE, check_grant, timeline, after(1000))
    assert what == "attempt [2] may have committed"


@pytest.mark.parametrize("safety", [SafetyClass.RECONCILABLE, SafetyClass.TRANSACTIONAL])
@pytest.mark.parametrize("outcome", IN_DOUBT)
def test_after_doubt_only_evidence_of_absence_lets_it_be_sent_again(
    safety: SafetyClass, outcome: Outcome
) -> None:
    rows = (attempt(1, Outcome.NOT_SENT, recorded=1), attempt(2, outcome, recorded=1))
    what = refused(Rule.CONCLUSIVE, check_grant, known(*rows, safety=safety), after(1000))
    assert what == "nothing proves that attempt [2] did not commit"
    absent = evidence(Verdict.NOT_COMMITTED, EvidenceSource.OPERATOR, began=900, through=2)
    check_grant(known(*rows, absent, safety=safety), after(1000))


# The same key again -------------------------------------------------------------------------------

RETENTION = 600.0
WHOLE = DEADLINE + MARGIN + TRANSIT


def idempotent(*rows: Any, **policy: Any) -> Timeline:
    return known(
        *rows, safety=SafetyClass.IDEMPOTENT, **{"key_retention_seconds": RETENTION, **policy}
    )


def test_the_same_key_waits_until_the_attempt_before_can_send_no_more() -> None:
    lost = attempt(1, Outcome.PRESUMED_AMBIGUOUS)
    check_grant(idempotent(lost), after(DEADLINE + MARGIN))
    what = refused(Rule.SETTLED_BY, check_grant, idempotent(lost), after(DEADLINE + MARGIN - TICK))
    assert what == "attempt 1 may still be on the wire"
    told = attempt(1, Outcome.AMBIGUOUS, recorded=7)
    check_grant(idempotent(told), after(7))
    refused(Rule.SETTLED_BY, check_grant, idempotent(told), after(7 - TICK))


def test_an_attempt_that_sent_nothing_keeps_nobody_waiting() -> None:
    rows = (
        attempt(1, Outcome.AMBIGUOUS, recorded=1), attempt(2, Outcome.NOT_SENT, recorded=500),
    )  # fmt: skip
    check_grant(idempotent(*rows), after(2))


def test_the_same_key_is_not_sent_where_the_target_may_forget_it_meanwhile() -> None:
    rows = (
        attempt(1, Outcome.NOT_SENT, starts=-5000, recorded=-4999),
        attempt(2, Outcome.AMBIGUOUS, recorded=1),
        attempt(3, Outcome.AMBIGUOUS, starts=100, recorded=101),
    )
    timeline = idempotent(*rows)
    check_grant(timeline, after(RETENTION - WHOLE))
    what = refused(Rule.RETENTION, check_grant, timeline, after(RETENTION - WHOLE + TICK))
    assert what == "the key could be forgotten before the attempt has ended"


def test_the_same_key_is_not_sent_to_a_target_that_keeps_none() -> None:
    doubt = attempt(1, Outcome.AMBIGUOUS, recorded=1)
    timeline = idempotent(doubt, key_retention_seconds=None)
    assert refused(Rule.RETENTION, check_grant, timeline, after(2)) == "the target keeps no key"


def test_evidence_of_absence_frees_the_key_of_its_retention() -> None:
    rows = (
        attempt(1, Outcome.AMBIGUOUS, recorded=1), evidence(Verdict.NOT_COMMITTED, began=100),
    )  # fmt: skip
    check_grant(idempotent(*rows), after(1e6))


# Evidence of absence ------------------------------------------------------------------------------

BOUND = 60.0


def clears(*rows: Any, at: float = 1e6, **changes: Any) -> bool:
    """Whether these facts prove of every attempt that it did not commit."""
    return holds(Rule.CONCLUSIVE, check_grant, known(*rows, **changes), after(at))


DOUBT = attempt(1, Outcome.AMBIGUOUS, recorded=10)


def test_a_look_up_counts_only_if_it_began_after_the_bound() -> None:
    for began, counts in ((10 + BOUND, False), (10 + BOUND + TICK, True), (0, False)):
        assert clears(DOUBT, evidence(Verdict.NOT_COMMITTED, began=began)) is counts
    lost = attempt(1, Outcome.PRESUMED_AMBIGUOUS)
    ends = DEADLINE + MARGIN + BOUND
    for began, counts in ((ends, False), (ends + TICK, True)):
        assert clears(lost, evidence(Verdict.NOT_COMMITTED, began=began)) is counts


def test_the_bound_counts_from_the_latest_of_the_attempts_that_are_covered() -> None:
    second = attempt(2, Outcome.NOT_SENT, starts=20, recorded=500)
    later = attempt(2, Outcome.AMBIGUOUS, starts=20, recorded=500)
    third = attempt(3, Outcome.RETRYABLE, starts=600, recorded=700)
    early = evidence(Verdict.NOT_COMMITTED, began=100, through=2)
    late = evidence(Verdict.NOT_COMMITTED, began=561, through=2)
    assert clears(DOUBT, second, early)  # it sent nothing
    assert not clears(DOUBT, later, early)
    assert clears(DOUBT, later, late)
    assert clears(DOUBT, later, third, late)  # that one is not covered
    assert not clears(DOUBT, later, evidence(Verdict.NOT_COMMITTED, began=561, through=1))


def test_after_a_restore_the_bound_counts_from_there() -> None:
    seen = evidence(Verdict.NOT_COMMITTED, began=100)
    assert clears(DOUBT, seen, restarted=100 - BOUND - TICK)
    assert not clears(DOUBT, seen, restarted=100 - BOUND)
    # A restore that is still to come was not known, and an older one moves nothing back.
    assert clears(DOUBT, seen, restarted=2000, at=1000)
    assert not clears(
        known, DOUBT, evidence(Verdict.NOT_COMMITTED, began=10 + BOUND), restarted=-500
    )


def test_without_a_bound_a_look_up_never_counts_and_a_person_counts_at_once() -> None:
    for began, counts in ((10, False), (10 + TICK, True)):
        seen = evidence(Verdict.NOT_COMMITTED, EvidenceSource.OPERATOR, began=began)
        assert clears(DOUBT, seen, settlement_bound_seconds=None) is counts
        probe = evidence(Verdict.NOT_COMMITTED, began=1e5)
        assert not clears(DOUBT, probe, settlement_bound_seconds=None)
    person = evidence(Verdict.NOT_COMMITTED, EvidenceSource.OPERATOR, began=10 + BOUND)
    assert not clears(DOUBT, person), "a bound that is known holds for a person too"


@pytest.mark.parametrize(
    "verdict", sorted(set(Verdict) - {Verdict.NOT_COMMITTED, Verdict.COMMITTED})
)
def test_no_other_verdict_is_one_of_absence(verdict: Verdict) -> None:
    seen = evidence(verdict, EvidenceSource.OPERATOR, began=1e4, through=2)
    assert not clears(DOUBT, seen)


def test_a_mismatch_as_late_as_a_look_up_puts_it_in_doubt() -> None:
    seen = evidence(Verdict.NOT_COMMITTED, began=100)
    for began, counts in ((100, False), (101, False), (100 - TICK, True)):
        assert clears(DOUBT, seen, evidence(Verdict.MISMATCH, began=began)) is counts


def test_a_webhook_clears_nothing() -> None:
    seen = evidence(Verdict.NOT_COMMITTED, EvidenceSource.WEBHOOK, began=1e4)
    assert not clears(DOUBT, seen)


def test_a_transaction_of_its_own_knows_at_once() -> None:
    seen = evidence(Verdict.NOT_COMMITTED, EvidenceSource.TRANSACTION, began=0)
    changes: dict[str, Any] = {"safety": SafetyClass.TRANSACTIONAL}
    assert clears(DOUBT, seen, **changes)
    probe = evidence(Verdict.NOT_COMMITTED, EvidenceSource.PROBE, began=1e4)
    assert not clears(DOUBT, probe, **changes)
    person = evidence(Verdict.NOT_COMMITTED, EvidenceSource.OPERATOR, began=1e4)
    assert clears(DOUBT, person, **changes)


def test_an_accepted_operation_is_cleared_by_its_own_failure_or_a_person() -> None:
    polled = attempt(1, Outcome.IN_PROGRESS, recorded=10, operation=True)
    assert not clears(polled, evidence(Verdict.NOT_COMMITTED, began=1e4))
    assert clears(polled, evidence(Verdict.NOT_COMMITTED, EvidenceSource.OPERATOR,
                                          began=1e4))  # fmt: skip
    assert clears(polled, evidence(Verdict.REJECTED, began=0))
    assert not clears(polled, evidence(Verdict.REJECTED, EvidenceSource.WEBHOOK, began=0))


@pytest.mark.parametrize("through", [1, 3])
def test_a_failed_operation_speaks_of_its_own_attempt_alone(through: int) -> None:
    rows = (
        attempt(1, Outcome.NOT_SENT, recorded=1),
        attempt(2, Outcome.IN_PROGRESS, recorded=10, operation=True),
        attempt(3, Outcome.NOT_SENT, recorded=11),
    )
    assert not clears(*rows, evidence(Verdict.REJECTED, through=through))
    assert clears(*rows, evidence(Verdict.REJECTED, through=2))


def test_an_exists_already_makes_older_evidence_of_absence_worthless() -> None:
    conflict = attempt(
        2, Outcome.NOT_SENT, starts=200, recorded=201, code=CODE_ALREADY_EXISTS
    )  # fmt: skip
    older = evidence(Verdict.NOT_COMMITTED, began=100, through=1)
    newer = evidence(Verdict.NOT_COMMITTED, began=1000, through=2)
    assert not clears(DOUBT, conflict, older)
    assert clears(DOUBT, conflict, newer)
    other = attempt(2, Outcome.NOT_SENT, starts=200, recorded=201, code="refused")
    assert clears(DOUBT, other, older)
    # One that came before the attempt in doubt says nothing of what was seen after it.
    first = attempt(1, Outcome.NOT_SENT, recorded=1, code=CODE_ALREADY_EXISTS)
    doubt = attempt(2, Outcome.AMBIGUOUS, starts=5, recorded=10)
    assert clears(first, doubt, evidence(Verdict.NOT_COMMITTED, began=100, through=2))
    assert not clears(first, doubt, evidence(Verdict.NOT_COMMITTED, began=100, through=1))


# Settling -----------------------------------------------------------------------------------------


def settle(timeline: Timeline, state: EffectState, at: float = 1e4) -> None:
    check_settlement(timeline, state, after(at))


def support(timeline: Timeline, state: EffectState, at: float = 1e4) -> str:
    return refused(Rule.SUPPORT, settle, timeline, state, at)


def test_a_success_rests_on_an_answer_or_on_evidence() -> None:
    settle(known(attempt(1, Outcome.COMMITTED, recorded=1)), EffectState.SUCCEEDED)
    settle(known(DOUBT, evidence(Verdict.COMMITTED)), EffectState.SUCCEEDED)
    for rows in ((), (DOUBT,), (DOUBT, evidence(Verdict.MISMATCH))):
        what = support(known(*rows), EffectState.SUCCEEDED)
        assert what == "nothing says that it has happened"


def test_of_several_objects_only_a_person_says_which_one_counts() -> None:
    one = attempt(1, Outcome.COMMITTED, recorded=1, external_id="a")
    nameless = attempt(1, Outcome.COMMITTED, recorded=1)
    other = evidence(Verdict.COMMITTED, ids=("b",))
    two = evidence(Verdict.COMMITTED, ids=("a", "b"))
    for rows in ((one, other), (one, two), (nameless, two), (DOUBT, two)):
        what = support(known(*rows), EffectState.SUCCEEDED)
        assert what == "several objects are known under its key"
        said = evidence(Verdict.COMMITTED, EvidenceSource.OPERATOR, ids=("a",))
        settle(known(*rows, said), EffectState.SUCCEEDED)
    for rows in ((one, evidence(Verdict.COMMITTED, ids=("a",))), (nameless, other)):
        settle(known(*rows), EffectState.SUCCEEDED)
    # A person who says something else of it has not said which one counts.
    unsure = evidence(Verdict.UNKNOWN, EvidenceSource.OPERATOR)
    support(known(one, other, unsure), EffectState.SUCCEEDED)


def test_a_failure_rests_on_the_proof_that_nothing_happened() -> None:
    failed = EffectState.FAILED_FINAL
    settle(known(attempt(1, Outcome.REJECTED, recorded=1)), failed)
    settle(known(DOUBT, evidence(Verdict.NOT_COMMITTED, began=100)), failed)
    rows = (attempt(1, Outcome.REJECTED, recorded=1), attempt(2, Outcome.AMBIGUOUS, recorded=9))
    what = support(known(*rows), failed)
    assert what == "nothing proves that attempt [2] did not commit"


@pytest.mark.parametrize("by_answer", [True, False])
def test_what_has_happened_is_no_failure(by_answer: bool) -> None:
    committed = attempt(1, Outcome.COMMITTED, recorded=1)
    rows = (committed,) if by_answer else (DOUBT, evidence(Verdict.COMMITTED))
    what = support(known(*rows), EffectState.FAILED_FINAL)
    assert what == "something says that it happened"


def given_up(timeline: Timeline) -> Timeline:
    """A person has ended it as failed."""
    one = timeline.line.resolutions[0]
    timeline.resolved.add(one.decision_id)
    return timeline


@pytest.fixture
def resignation() -> Any:
    return ResolutionRecord(
        decision_id="d", evidence_id=UUID(int=1), conclusion=Conclusion.FAILED, digest="0" * 64,
        actor="operator:o", recorded_at=BEGAN_AT,
    )  # fmt: skip


def test_a_person_may_end_what_is_in_doubt_and_what_has_several_objects(resignation: Any) -> None:
    failed, resolved = EffectState.FAILED_FINAL, (resignation,)
    settle(given_up(known(DOUBT, resolved=resolved)), failed)
    support(known(DOUBT, resolved=resolved), failed)
    two = evidence(Verdict.COMMITTED, ids=("a", "b"))
    settle(given_up(known(DOUBT, two, resolved=resolved)), failed)
    support(known(DOUBT, two, resolved=resolved), failed)
    one = evidence(Verdict.COMMITTED, ids=("a",))
    what = support(given_up(known(DOUBT, one, resolved=resolved)), failed)
    assert what == "something says that it happened"


def test_what_was_never_sent_fails_only_when_it_has_expired() -> None:
    failed = EffectState.FAILED_FINAL
    what = "it was never sent and is not expired"
    assert support(known(), failed) == what
    assert support(known(send_before=100), failed, at=100 - TICK) == what
    settle(known(send_before=100), failed, at=100)


def test_only_what_was_never_sent_and_somebody_withdrew_is_cancelled() -> None:
    cancelled = EffectState.CANCELLED
    settle(known(cancel_asked=100), cancelled, at=100)
    assert support(known(cancel_asked=100), cancelled, at=100 - TICK) == "nobody asked to cancel it"
    assert support(known(), cancelled) == "nobody asked to cancel it"
    sent = known(attempt(1, Outcome.NOT_SENT, recorded=1), cancel_asked=0)
    assert support(sent, cancelled) == "it was sent before it was cancelled"


@pytest.mark.parametrize(
    "state",
    [s for s in EffectState
     if s not in {EffectState.SUCCEEDED, EffectState.FAILED_FINAL, EffectState.CANCELLED}],
)  # fmt: skip
def test_no_settlement_writes_another_state(state: EffectState) -> None:
    rows = known(attempt(1, Outcome.COMMITTED, recorded=1))
    assert support(rows, state) == f"{state} is not written by a settlement"


# A person's word ----------------------------------------------------------------------------------


def test_a_person_has_to_look_late_enough() -> None:
    for began, counts in ((10 + BOUND, False), (10 + BOUND + TICK, True)):
        seen = evidence(Verdict.NOT_COMMITTED, EvidenceSource.OPERATOR, began=began)
        if counts:
            check_absence(known(DOUBT), seen, after(1e4))
        else:
            what = refused(Rule.CONCLUSIVE, check_absence, known(DOUBT), seen, after(1e4))
            assert what == "the look came too early"


def test_how_late_is_the_latest_attempt_that_was_sent_the_bound_and_the_restore() -> None:
    seen = evidence(Verdict.NOT_COMMITTED, EvidenceSource.OPERATOR, began=100)

    def early(*rows: Any, **changes: Any) -> bool:
        timeline = known(*rows, **changes)
        return not holds(Rule.CONCLUSIVE, check_absence, timeline, seen, after(1e4))

    unsent = attempt(2, Outcome.NOT_SENT, starts=500, recorded=501)
    assert not early()
    assert not early(unsent)
    assert not early(DOUBT, unsent)
    assert early(DOUBT, attempt(2, Outcome.AMBIGUOUS, starts=500, recorded=501))
    assert early(attempt(1, Outcome.PRESUMED_AMBIGUOUS, starts=10))
    assert not early(attempt(1, Outcome.PRESUMED_AMBIGUOUS, starts=9))
    assert early(DOUBT, restarted=100 - BOUND)
    assert not early(DOUBT, restarted=100 - BOUND - TICK)
    assert not early(DOUBT, restarted=2e4)
    at_once = {"settlement_bound_seconds": None}
    assert not early(attempt(1, Outcome.AMBIGUOUS, recorded=100 - TICK), **at_once)
    assert early(attempt(1, Outcome.AMBIGUOUS, recorded=100), **at_once)
