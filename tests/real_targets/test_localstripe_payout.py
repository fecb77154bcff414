"""A target that takes an idempotency key and ignores it: why its contract is `unsafe`."""

from __future__ import annotations

from typing import Any

from effect_contracts.facts import Outcome
from real_targets.contracts import Effect, contract_text
from real_targets.programs import Localstripe
from real_targets.relay import relay

PAYOUT: dict[str, Any] = {"amount": 90000, "currency": "eur", "description": "September"}


def _payout(origin: str, **changes: Any) -> Effect:
    text = contract_text("localstripe-payout", origin)
    return Effect.of(text, "payout:2026-09", {**PAYOUT, **changes})


async def test_the_same_request_again_is_a_second_payout(localstripe: Localstripe) -> None:
    payout = _payout(localstripe.origin)
    first = await payout.send(1)
    again = await payout.send(2)
    assert (first.outcome, again.outcome) == (Outcome.COMMITTED, Outcome.COMMITTED)
    assert first.external_id != again.external_id
    made = {payout["id"] for payout in localstripe.payouts()}
    assert made == {first.external_id, again.external_id}


async def test_a_lost_answer_is_ambiguous_and_the_payout_is_made(localstripe: Localstripe) -> None:
    with relay(localstripe.port) as way:
        way.losing = True
        lost = await _payout(way.origin).send()
        assert len(way.requests) == 1
    assert (lost.outcome, lost.bytes_may_have_left) == (Outcome.AMBIGUOUS, True)
    assert [payout["amount"] for payout in localstripe.payouts()] == [90000]


async def test_a_refused_payout_is_rejected(localstripe: Localstripe) -> None:
    refused = await _payout(localstripe.origin, currency="xxx").send()
    assert (refused.outcome, refused.status) == (Outcome.REJECTED, 400)
    assert localstripe.payouts() == []
