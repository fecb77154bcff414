"""Approvals: nothing is sent without one, and one is for one first attempt, for a while."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from contracts.decide_cases import at, attempt, policy
from effect_contracts.decide import Action, Reason, decide
from effect_contracts.facts import Facts, Hold, Outcome, SafetyClass

NOW = at(1000)
VALID = 60.0
ASKS = replace(policy(SafetyClass.IDEMPOTENT), approval_valid_seconds=VALID)
JUST_IN_TIME = NOW - timedelta(seconds=VALID) + timedelta(microseconds=1)


def test_nothing_is_sent_before_somebody_has_approved_it() -> None:
    found = decide(Facts(), ASKS, NOW)
    assert (found.action, found.reason, found.row) == (Action.PARK, Reason.AWAITING_APPROVAL, 6)


def test_an_approved_effect_is_sent() -> None:
    for approved_at in (NOW, JUST_IN_TIME):
        assert decide(Facts(approved_at=approved_at), ASKS, NOW).action is Action.DISPATCH


def test_an_approval_expires() -> None:
    found = decide(Facts(approved_at=NOW - timedelta(seconds=VALID)), ASKS, NOW)
    assert (found.action, found.reason) == (Action.PARK, Reason.AWAITING_APPROVAL)


def test_without_the_contract_asking_an_approval_is_not_waited_for() -> None:
    assert decide(Facts(), policy(SafetyClass.IDEMPOTENT), NOW).action is Action.DISPATCH


@pytest.mark.parametrize("outcome", [Outcome.NOT_SENT, Outcome.AMBIGUOUS])
def test_what_follows_the_first_attempt_needs_no_further_approval(outcome: Outcome) -> None:
    facts = Facts(attempts=(attempt(1, outcome),), approved_at=None)
    assert decide(facts, ASKS, NOW) == decide(facts, policy(SafetyClass.IDEMPOTENT), NOW)


def test_a_pause_goes_before_an_approval_that_is_missing() -> None:
    facts = Facts(holds=frozenset({Hold.PAUSED}))
    assert decide(facts, ASKS, NOW).reason is Reason.PAUSED


def test_waiting_for_an_approval_it_expires_all_the_same() -> None:
    facts = Facts(send_before=NOW + timedelta(seconds=5))
    found = decide(facts, ASKS, NOW)
    assert (found.action, found.reason, found.at) == (
        Action.WAIT, Reason.AWAITING_APPROVAL, facts.send_before,
    )  # fmt: skip
    assert decide(facts, ASKS, NOW + timedelta(seconds=5)).reason is Reason.EXPIRED
