"""Certificates: where a contract demands one, no attempt starts while none that fits is in force.

The demand is a hold like any other, so the whole of it is one sentence: without a certificate that
fits, `decide` says what it says under that hold, and with one what it says without the demand. This
is asked of every combination of two attempts, of what is known of them, and of the other holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import product

import pytest

from contracts.decide_cases import EVERY_CLASS, at, attempt, evidence, policy
from effect_contracts.certified import of_target, standing_certificate
from effect_contracts.decide import Action, Reason, decide
from effect_contracts.election import election_decision
from effect_contracts.facts import (
    Attempt,
    CertificateDemand,
    Certified,
    Evidence,
    EvidenceSource,
    Facts,
    Hold,
    Outcome,
    SafetyClass,
    Verdict,
)

NOW = at(1000)
HOUR = timedelta(hours=1)
TICK = timedelta(microseconds=1)
TARGET = "https://api.example.com#acct_1"
ANY = CertificateDemand()
OUTCOMES: tuple[Outcome | None, ...] = (None, *Outcome)


def certificate(name: str = "c", **members: object) -> Certified:
    """One whose trials ended an hour ago and that is good for another hour."""
    made = Certified(name, TARGET, frozenset({"ten_at_once"}), NOW - HOUR, NOW + HOUR)
    return replace(made, **members)  # type: ignore[arg-type]


# Whether it fits ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("demand", "now", "fits"),
    [
        (ANY, NOW, True),
        (ANY, NOW + HOUR - TICK, True),
        (ANY, NOW + HOUR, False),
        (CertificateDemand(age_seconds_max=3600.0), NOW - TICK, True),
        (CertificateDemand(age_seconds_max=3600.0), NOW, False),
        # The shorter of the two counts, whichever it is.
        (CertificateDemand(age_seconds_max=86_400.0), NOW + HOUR, False),
        (CertificateDemand(trials=frozenset({"ten_at_once"})), NOW, True),
        (CertificateDemand(trials=frozenset({"ten_at_once", "key_is_kept"})), NOW, False),
    ],
)
def test_a_certificate_fits_while_it_is_young_good_and_shows_what_is_asked(
    demand: CertificateDemand, now: datetime, fits: bool
) -> None:
    assert (standing_certificate((certificate(),), demand, now) is not None) is fits
    asks = replace(policy(SafetyClass.IDEMPOTENT), certificate=demand)
    found = decide(Facts(certificates=(certificate(),)), asks, now)
    expected = Reason.FIRST_ATTEMPT if fits else Reason.AWAITING_CERTIFICATE
    assert found.reason is expected


def test_of_several_the_one_that_fits_longest_is_named_with_its_end() -> None:
    old = certificate("old", expires_at=NOW + 5 * HOUR)
    young = certificate("young", ended_at=NOW, expires_at=NOW + 3 * HOUR)
    other = certificate("other", trials=frozenset(), expires_at=NOW + 9 * HOUR)
    demand = CertificateDemand(7200.0, frozenset({"ten_at_once"}))
    assert standing_certificate((old, young, other), demand, NOW) == (young, NOW + 2 * HOUR)
    assert standing_certificate((old, young, other), ANY, NOW) == (other, NOW + 9 * HOUR)
    assert standing_certificate((), ANY, NOW) is None


def test_a_sandbox_stands_in_for_the_target_only_where_the_contract_names_it() -> None:
    own, tried = certificate("own"), certificate("tried", target_identity="https://s.example#a")
    named = CertificateDemand(sandbox_identity="https://s.example#a")
    assert of_target((own, tried), ANY, TARGET) == (own,)
    assert of_target((own, tried), named, TARGET) == (own, tried)
    assert of_target((own, tried), named, "https://other.example#a") == (tried,)
    assert of_target((own, tried), None, TARGET) == ()


# The gate ---------------------------------------------------------------------------------------


def _known(safety: SafetyClass, attempts: tuple[Attempt, ...]) -> Iterator[tuple[Evidence, ...]]:
    yield ()
    if attempts:
        covers = len(attempts)
        source = (
            EvidenceSource.TRANSACTION
            if safety is SafetyClass.TRANSACTIONAL
            else EvidenceSource.PROBE
        )
        yield (evidence(Verdict.NOT_COMMITTED, 500, covers, source),)
        yield (evidence(Verdict.COMMITTED, 500, covers, source, ("x1",)),)


def _sequences() -> Iterator[tuple[Attempt, ...]]:
    yield ()
    for first in OUTCOMES:
        yield (attempt(1, first, external_id="x1" if first is Outcome.COMMITTED else None),)
    for first, second in product(Outcome, OUTCOMES):
        yield (attempt(1, first), attempt(2, second, start=100))


HELD = (
    frozenset[Hold](),
    frozenset({Hold.PAUSED}),
    frozenset({Hold.TARGET_CHANGED}),
)


@EVERY_CLASS
def test_the_gate_is_one_hold_and_nothing_else(safety: SafetyClass) -> None:
    """Every combination, at moments within and after the attempts' deadlines."""
    plain, asked = policy(safety), 0
    asks = replace(plain, certificate=ANY)
    for attempts in _sequences():
        until = (None,) if attempts else (None, at(2000))  # it speaks of first attempts only
        for known, holds, send_before, now in product(
            _known(safety, attempts), HELD, until, (at(105), NOW)
        ):
            facts = Facts(attempts, known, holds=holds, send_before=send_before)
            within = replace(facts, certificates=(certificate(ended_at=at(0)),))
            assert decide(within, asks, now) == decide(facts, plain, now)
            closed = replace(facts, holds=holds | {Hold.AWAITING_CERTIFICATE})
            found = decide(facts, asks, now)
            assert found == decide(closed, plain, now)
            assert found.action is not Action.DISPATCH
            asked += decide(facts, plain, now).action is Action.DISPATCH
    assert asked, "no combination would have been sent"


@EVERY_CLASS
def test_what_ends_while_an_attempt_is_under_way_calls_nothing_back(safety: SafetyClass) -> None:
    asks = replace(policy(safety), certificate=ANY)
    facts = Facts((attempt(1, None),))
    assert decide(facts, asks, at(5)).reason is Reason.ATTEMPT_OPEN
    done = Facts((attempt(1, Outcome.COMMITTED, external_id="x1"),))
    assert decide(done, asks, at(5)).reason is Reason.COMMITTED


def test_look_ups_go_on_and_the_second_send_waits() -> None:
    asks = replace(policy(SafetyClass.RECONCILABLE), certificate=ANY)
    lost = (attempt(1, Outcome.AMBIGUOUS),)
    assert decide(Facts(lost), asks, NOW).action is Action.PROBE
    absent = Facts(lost, (evidence(Verdict.NOT_COMMITTED, 500),))
    assert decide(absent, asks, NOW).reason is Reason.AWAITING_CERTIFICATE


def test_nobody_is_asked_to_approve_what_could_not_be_sent() -> None:
    asks = replace(policy(SafetyClass.IDEMPOTENT), certificate=ANY, approval_valid_seconds=60.0)
    assert decide(Facts(), asks, NOW).reason is Reason.AWAITING_CERTIFICATE
    certified = Facts(certificates=(certificate(),))
    assert decide(certified, asks, NOW).reason is Reason.AWAITING_APPROVAL


def test_a_pause_and_a_freeze_go_before_a_certificate_that_is_missing() -> None:
    asks = replace(policy(SafetyClass.IDEMPOTENT), certificate=ANY)
    for hold in (Hold.PAUSED, Hold.FROZEN, Hold.TENANT_DISABLED):
        facts = Facts(holds=frozenset({hold}))
        assert decide(facts, asks, NOW).reason is Reason(hold.value)


def test_waiting_for_a_certificate_it_expires_all_the_same() -> None:
    asks = replace(policy(SafetyClass.IDEMPOTENT), certificate=ANY)
    facts = Facts(send_before=NOW + HOUR)
    found = decide(facts, asks, NOW)
    assert (found.action, found.at) == (Action.WAIT, facts.send_before)
    assert decide(facts, asks, NOW + HOUR).reason is Reason.EXPIRED


def test_nobody_is_elected_without_a_certificate() -> None:
    asks = replace(policy(SafetyClass.IDEMPOTENT), certificate=ANY, awaits_caller=True)
    assert election_decision(Facts(), asks, NOW).reason is Reason.AWAITING_CERTIFICATE
    certified = Facts(certificates=(certificate(),))
    assert election_decision(certified, asks, NOW).action is Action.DISPATCH
    assert decide(certified, asks, NOW).reason is Reason.AWAITING_CALLER
