"""The shipped contract `stripe-charge` at a target that honours idempotency keys as Stripe does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from effect_contracts.facts import Outcome
from real_targets.contracts import Effect, stripe_contract_text
from real_targets.programs import StripeMock
from real_targets.relay import relay

CHARGE: dict[str, Any] = {
    "amount": 4200,
    "currency": "eur",
    "source": "tok_visa",
    "description": "Chair, oak: 50 % & more",
    "metadata": {"order": "o-1"},
}


def _charge(origin: str, **changes: Any) -> Effect:
    return Effect.of(stripe_contract_text(origin), "order:1", {**CHARGE, **changes})


async def test_a_replay_under_the_same_key_is_the_same_charge(stripe_mock: StripeMock) -> None:
    charge = _charge(stripe_mock.origin)
    first = await charge.send(1)
    again = await charge.send(2)
    assert (first.outcome, again.outcome) == (Outcome.COMMITTED, Outcome.COMMITTED)
    assert first.external_id is not None
    assert again.external_id == first.external_id
    assert again.result == first.result
    [made] = stripe_mock.charges()
    assert made["id"] == first.external_id
    # The nested form was read by the target as it was meant.
    assert (made["amount"], made["description"]) == (4200, CHARGE["description"])
    assert made["metadata"] == {"order": "o-1"}
    assert first.receipt_fields["charge_status"] == "succeeded"


async def test_other_parameters_under_the_same_key_are_a_key_conflict(
    stripe_mock: StripeMock,
) -> None:
    charge = _charge(stripe_mock.origin)
    await charge.send(1)
    drifted = await replace(charge, arguments={**CHARGE, "amount": 9900}).send(2)
    assert (drifted.outcome, drifted.code) == (Outcome.KEY_CONFLICT, "idempotency_error")
    assert [made["amount"] for made in stripe_mock.charges()] == [4200]


async def test_a_declined_card_is_rejected_for_good(stripe_mock: StripeMock) -> None:
    declined = await _charge(stripe_mock.origin, source="tok_chargeDeclined").send()
    assert (declined.outcome, declined.code) == (Outcome.REJECTED, "card_declined")
    assert declined.status == 402
    assert stripe_mock.charges() == []


async def test_a_stored_refusal_is_known_as_a_replay(stripe_mock: StripeMock) -> None:
    """The target marks it; an attempt that got no answer may have been the one it speaks of."""
    charge = _charge(stripe_mock.origin, source="tok_chargeDeclined")
    await charge.send(1)
    again = await charge.send(2)
    assert (again.outcome, again.code) == (Outcome.AMBIGUOUS, "replayed_error")


async def test_an_error_of_the_server_is_ambiguous_and_stays_so_when_replayed(
    stripe_mock: StripeMock,
) -> None:
    charge = _charge(stripe_mock.origin, source="tok_500")
    first = await charge.send(1)
    again = await charge.send(2)
    assert (first.outcome, first.code) == (Outcome.AMBIGUOUS, "unmatched_status_500")
    assert (again.outcome, again.code) == (Outcome.AMBIGUOUS, "replayed_error")
    assert stripe_mock.charges() == []


async def test_a_lost_answer_is_settled_by_sending_the_same_again(stripe_mock: StripeMock) -> None:
    with relay(stripe_mock.port) as way:
        charge = _charge(way.origin)
        way.losing = True
        lost = await charge.send(1)
        assert (lost.outcome, lost.bytes_may_have_left) == (Outcome.AMBIGUOUS, True)
        [made] = stripe_mock.charges()
        way.losing = False
        settled = await charge.send(2)
        assert len(way.requests) == 2
    assert (settled.outcome, settled.external_id) == (Outcome.COMMITTED, made["id"])
    assert len(stripe_mock.charges()) == 1


async def test_a_wrong_secret_key_charges_nothing(
    stripe_mock: StripeMock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EFFECT_BROKER_SECRET_STRIPE", "sk_live_wrong")
    refused = await _charge(stripe_mock.origin).send()
    assert (refused.outcome, refused.status) == (Outcome.REJECTED, 401)
    assert stripe_mock.charges() == []
