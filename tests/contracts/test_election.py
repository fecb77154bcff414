"""Who may be elected, what is decided while a caller is awaited, and how long a lease may last."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from effect_contracts.decide import Action, Reason, decide
from effect_contracts.election import election_decision, extended_deadline, sender_actor
from effect_contracts.facts import (
    Attempt,
    Evidence,
    EvidenceSource,
    Facts,
    Hold,
    Outcome,
    Policy,
    SafetyClass,
    Verdict,
)
from effect_contracts.life import LifeEvent

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def policy(safety: SafetyClass, **more: object) -> Policy:
    made = Policy(
        safety,
        attempt_deadline_seconds=10,
        clock_margin_seconds=1,
        transit_seconds=2,
        backoff_initial_seconds=1,
        backoff_cap_seconds=1,
        awaits_caller=True,
        key_retention_seconds=100 if safety is SafetyClass.IDEMPOTENT else None,
        settlement_bound_seconds=5 if safety is SafetyClass.RECONCILABLE else None,
        probes=safety is SafetyClass.RECONCILABLE,
    )
    return replace(made, **more)  # type: ignore[arg-type]


def lease(ordinal: int = 1, started: float = 0, outcome: Outcome | None = None) -> Attempt:
    recorded = None
    if outcome not in {None, Outcome.PRESUMED_AMBIGUOUS}:
        recorded = at(started + 1)
    return Attempt(ordinal, at(started), at(started + 10), outcome, recorded)


ALL = (SafetyClass.IDEMPOTENT, SafetyClass.RECONCILABLE, SafetyClass.UNSAFE)


@pytest.mark.parametrize("safety", ALL)
def test_a_new_effect_waits_for_a_caller_who_is_elected_at_once(safety: SafetyClass) -> None:
    waits = decide(Facts(), policy(safety), T0)
    assert (waits.action, waits.reason, waits.event) == (
        Action.PARK, Reason.AWAITING_CALLER, LifeEvent.NOTHING_SENT,
    )  # fmt: skip
    granted = election_decision(Facts(), policy(safety), T0)
    assert (granted.action, granted.reason, granted.ordinal) == (
        Action.DISPATCH, Reason.FIRST_ATTEMPT, 1,
    )  # fmt: skip


def test_a_new_effect_waits_no_longer_than_until_it_expires() -> None:
    facts = Facts(send_before=at(50))
    waits = decide(facts, policy(SafetyClass.UNSAFE), T0)
    assert (waits.action, waits.at) == (Action.WAIT, at(50))
    assert decide(facts, policy(SafetyClass.UNSAFE), at(50)).reason is Reason.EXPIRED
    assert election_decision(facts, policy(SafetyClass.UNSAFE), at(50)).action is Action.SETTLE


@pytest.mark.parametrize("safety", ALL)
def test_beside_an_open_lease_nobody_is_elected(safety: SafetyClass) -> None:
    facts = Facts(attempts=(lease(),))
    for now in (at(0), at(10.9)):
        granted = election_decision(facts, policy(safety), now)
        assert (granted.action, granted.reason, granted.at) == (
            Action.WAIT, Reason.ATTEMPT_OPEN, at(11),
        )  # fmt: skip


def test_after_a_lost_lease_an_idempotent_effect_is_performed_again_while_its_key_lives() -> None:
    rules = policy(SafetyClass.IDEMPOTENT)
    facts = Facts(attempts=(lease(),))
    granted = election_decision(facts, rules, at(20))
    assert (granted.action, granted.reason, granted.ordinal, granted.lost) == (
        Action.DISPATCH, Reason.SAME_KEY_AGAIN, 2, (1,),
    )  # fmt: skip
    # A whole lease, its margin and the transit have to fit before the key is forgotten: 87.
    waits = decide(facts, rules, at(20))
    assert (waits.action, waits.reason) == (Action.WAIT, Reason.AWAITING_CALLER)
    assert waits.event is LifeEvent.OUTCOME_LOST
    assert waits.at == at(87) + timedelta(microseconds=1)
    assert election_decision(facts, rules, at(87)).action is Action.DISPATCH
    for decided in (election_decision, decide):
        late = decided(facts, rules, waits.at)
        assert (late.action, late.reason) == (Action.PARK, Reason.KEY_EXPIRED)


def test_after_a_lost_lease_a_reconcilable_effect_is_looked_up_and_not_performed() -> None:
    rules = policy(SafetyClass.RECONCILABLE)
    facts = Facts(attempts=(lease(),))
    for decided in (election_decision, decide):
        assert decided(facts, rules, at(20)).action is Action.PROBE
    absent = Evidence("e", EvidenceSource.PROBE, Verdict.NOT_COMMITTED, at(17), 1)
    cleared = replace(facts, evidence=(absent,))
    assert election_decision(cleared, rules, at(20)).reason is Reason.NO_COMMIT_PROVED
    waits = decide(cleared, rules, at(20))
    assert (waits.action, waits.reason, waits.event) == (
        Action.PARK, Reason.AWAITING_CALLER, LifeEvent.NO_COMMIT_PROVED,
    )  # fmt: skip
    early = replace(facts, evidence=(replace(absent, began_at=at(16)),))
    assert election_decision(early, rules, at(20)).action is not Action.DISPATCH


def test_after_a_lost_lease_an_unsafe_effect_is_never_performed_again() -> None:
    facts = Facts(attempts=(lease(),))
    for decided in (election_decision, decide):
        for now in (at(11), at(1e6)):
            decision = decided(facts, policy(SafetyClass.UNSAFE), now)
            assert (decision.action, decision.reason) == (Action.PARK, Reason.OUTCOME_UNKNOWN)


@pytest.mark.parametrize("safety", ALL)
def test_what_was_not_sent_waits_for_the_next_caller(safety: SafetyClass) -> None:
    facts = Facts(attempts=(lease(outcome=Outcome.NOT_SENT),))
    assert election_decision(facts, policy(safety), at(1)).reason is Reason.BACKOFF
    assert election_decision(facts, policy(safety), at(5)).action is Action.DISPATCH
    waits = decide(facts, policy(safety), at(5))
    assert (waits.action, waits.reason) == (Action.PARK, Reason.AWAITING_CALLER)


@pytest.mark.parametrize("safety", ALL)
def test_a_hold_stops_elections_and_is_told_before_the_wait(safety: SafetyClass) -> None:
    facts = Facts(holds=frozenset({Hold.PAUSED}))
    for decided in (election_decision, decide):
        decision = decided(facts, policy(safety), T0)
        assert (decision.action, decision.reason) == (Action.PARK, Reason.PAUSED)


@pytest.mark.parametrize("safety", ALL)
def test_a_contract_that_workers_send_awaits_nobody(safety: SafetyClass) -> None:
    by_workers = policy(safety, awaits_caller=False)
    for facts in (Facts(), Facts(attempts=(lease(outcome=Outcome.NOT_SENT),))):
        for now in (T0, at(5)):
            assert decide(facts, by_workers, now) == election_decision(facts, by_workers, now)


# Leases ------------------------------------------------------------------------------------------


def extension(rules: Policy, attempt: Attempt, now: float) -> datetime | None:
    return extended_deadline(attempt, Facts(attempts=(attempt,)), rules, at(now))


def test_a_lease_is_extended_by_a_whole_one_from_now_up_to_its_bound() -> None:
    rules = policy(SafetyClass.UNSAFE, lease_seconds_max=25)
    assert extension(rules, lease(), 4) == at(14)
    assert extension(rules, replace(lease(), deadline_at=at(18)), 17) == at(25)
    assert extension(rules, replace(lease(), deadline_at=at(25)), 20) is None


def test_a_lease_is_not_extended_where_the_contract_does_not_say_so() -> None:
    assert extension(policy(SafetyClass.UNSAFE), lease(), 4) is None


def test_a_lease_that_has_run_out_or_was_ended_is_not_revived() -> None:
    rules = policy(SafetyClass.UNSAFE, lease_seconds_max=25)
    assert extension(rules, lease(), 9.999) == at(19.999)
    assert extension(rules, lease(), 10) is None
    for outcome in (Outcome.PRESUMED_AMBIGUOUS, Outcome.AMBIGUOUS):
        assert extension(rules, lease(outcome=outcome), 4) is None


def test_a_lease_is_not_extended_into_the_time_in_which_the_key_may_be_forgotten() -> None:
    rules = policy(SafetyClass.IDEMPOTENT, lease_seconds_max=1000)
    long = replace(lease(), deadline_at=at(95))
    assert extension(rules, long, 94) == at(97)  # the margin and the transit fit before 100
    unsafe = replace(rules, safety=SafetyClass.UNSAFE)
    assert extension(unsafe, long, 94) == at(104)


def test_the_sender_of_an_attempt_is_a_worker_or_a_caller() -> None:
    assert sender_actor("host-1-abc") == "worker:host-1-abc"
    assert sender_actor("caller:key-1") == "caller:key-1"
