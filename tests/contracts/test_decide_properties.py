"""`decide` under long random histories: the design's answer, no broken promise, no idle loop."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from effect_contracts.decide import Action, Decision, Reason, decide
from effect_contracts.facts import (
    Attempt,
    Facts,
    Outcome,
    Policy,
)

from .decide_histories import MOMENTS, T0, closed, everything_known, policies
from .decide_oracle import consult
from .decide_promises import broken_promises

# The longest chain: open, then settling or backing off, then the same once more where the free
# time of "in progress" ran out during the wait.
WAITS_MAX = 4


@settings(max_examples=700, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(everything_known(), policies(), MOMENTS)
def test_any_history_gets_the_designs_answer_and_breaks_no_promise(
    facts: Facts, policy: Policy, now: datetime
) -> None:
    decision = decide(facts, policy, now)
    event(f"row {decision.row}: {decision.action} {decision.reason}")
    assert not [*broken_promises(facts, policy, now, decision)]
    expected, lost = consult(facts, policy, now)
    assert decision.lost == lost
    assert (
        decision.action,
        decision.event,
        decision.reason,
        decision.at,
        decision.ordinal,
        decision.freezes,
    ) == expected


def free_until(facts: Facts, policy: Policy) -> datetime:
    """When attempts that the target has answered with "in progress" begin to count."""
    starts = [a.started_at for a in facts.attempts if a.outcome is Outcome.IN_PROGRESS]
    bound = timedelta(seconds=policy.in_progress_bound_seconds)
    return min(starts) + bound if starts else datetime.max.replace(tzinfo=UTC)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(everything_known(), policies(), MOMENTS)
def test_waits_lead_somewhere_in_a_few_steps(facts: Facts, policy: Policy, now: datetime) -> None:
    waits: list[Decision] = []
    decision = decide(facts, policy, now)
    while decision.action is Action.WAIT:
        assert decision.at is not None
        assert decision.at > now
        waits.append(decision)
        assert len(waits) <= WAITS_MAX, waits
        # Asking again before the moment gives the same answer, so an early run changes nothing.
        if decision.at - now > timedelta(microseconds=1):
            early = decide(facts, policy, decision.at - timedelta(microseconds=1))
            assert early.action is not Action.DISPATCH
            # But for attempts that were free while the target was at work: once they count, no
            # further one may follow what was waited for, and looking up need not wait.
            if early.action is Action.PROBE:
                assert decision.reason in {Reason.IN_PROGRESS, Reason.BACKOFF}
                assert now < free_until(facts, policy) < decision.at
        facts, now = closed(facts, decision), decision.at
        decision = decide(facts, policy, now)
        assert decision != waits[-1], "a wait that leads to itself"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    policies(),
    st.lists(
        st.sampled_from([Outcome.AMBIGUOUS, Outcome.IN_PROGRESS, Outcome.NOT_SENT, None]),
        min_size=1,
        max_size=5,
    ),
)
def test_an_effect_about_which_nothing_is_ever_learned_comes_to_rest(
    policy: Policy, answers: list[Outcome | None]
) -> None:
    facts, now = Facts(), T0
    # Short free time and horizon bound the number of steps: some 200 attempts, then 110 probes.
    policy = replace(
        policy,
        in_progress_bound_seconds=min(policy.in_progress_bound_seconds, 90),
        backoff_initial_seconds=max(policy.backoff_initial_seconds, 1.0),
        probe_horizon_seconds=min(policy.probe_horizon_seconds, 50),
    )
    for _ in range(1_000):
        decision = decide(facts, policy, now)
        facts = closed(facts, decision)
        match decision.action:
            case Action.DISPATCH:
                outcome = answers[len(facts.attempts) % len(answers)]
                ends_at = now + timedelta(seconds=policy.attempt_deadline_seconds)
                granted = Attempt(
                    len(facts.attempts) + 1, now, ends_at, outcome, now if outcome else None
                )
                facts = replace(
                    facts,
                    attempts=(*facts.attempts, granted),
                    probes_since_attempt=0,
                    probe_began_at=None,
                )
            case Action.PROBE:
                probes = facts.probes_since_attempt + 1
                facts = replace(facts, probes_since_attempt=probes, probe_began_at=now)
            case Action.WAIT:
                assert decision.at is not None
                now = decision.at
            case Action.PARK | Action.SETTLE:
                return
    raise AssertionError("never comes to rest")
