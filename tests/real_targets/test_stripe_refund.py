"""The shipped contract `stripe-refund`: replays by key, and refunds that are found in the list."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from effect_contracts.facts import Outcome, Verdict
from real_targets.contracts import Effect, stripe_contract_text
from real_targets.programs import StripeMock
from real_targets.relay import Relay, relay


def _charged(target: StripeMock) -> str:
    form = {"amount": 4200, "currency": "eur", "source": "tok_visa"}
    made = target.http.post("/v1/charges", data=form)
    made.raise_for_status()
    return str(made.json()["id"])


def _refund(origin: str, charge: str, name: str = "refund:1", **changes: Any) -> Effect:
    arguments: dict[str, Any] = {"charge": charge, "amount": 1000, "order": "o-1"}
    arguments["reason"] = "duplicate"
    return Effect.of(stripe_contract_text(origin, "stripe-refund", **changes), name, arguments)


def _refunds(target: StripeMock, charge: str) -> list[dict[str, Any]]:
    listed = target.http.get("/v1/refunds", params={"charge": charge, "limit": 100}).json()
    found: list[dict[str, Any]] = listed["data"]
    return found


def _paths(way: Relay) -> list[bytes]:
    return [request.split(b" ", 2)[1].partition(b"?")[0] for request in way.requests]


async def test_a_refund_is_made_once_and_refuses_other_parameters(stripe_mock: StripeMock) -> None:
    charge = _charged(stripe_mock)
    refund = _refund(stripe_mock.origin, charge)
    first, again = await refund.send(1), await refund.send(2)
    assert (first.outcome, again.outcome) == (Outcome.COMMITTED, Outcome.COMMITTED)
    drifted = await replace(refund, arguments={"charge": charge, "amount": 1001}).send(3)
    assert (drifted.outcome, drifted.code) == (Outcome.KEY_CONFLICT, "idempotency_error")
    [made] = _refunds(stripe_mock, charge)
    assert first.external_id == again.external_id == made["id"]
    assert made["metadata"] == {"effect_key": refund.key, "order": "o-1"}
    assert (made["amount"], made["reason"]) == (1000, "duplicate")


async def test_a_lost_refund_is_confirmed_from_the_list_and_never_by_search(
    stripe_mock: StripeMock,
) -> None:
    charge = _charged(stripe_mock)
    with relay(stripe_mock.port) as way:
        refund = _refund(way.origin, charge)
        before = await refund.ask()
        assert before.verdict is Verdict.NOT_COMMITTED
        way.losing = True
        lost = await refund.send()
        way.losing = False
        found = await refund.ask()
        # One refund more, of the same amount: ours is told by its key alone.
        other = await _refund(way.origin, charge, "refund:2").send()
        alone = await refund.ask()
        requests = way.requests
        assert set(_paths(way)) == {b"/v1/refunds"}
    assert lost.outcome is Outcome.AMBIGUOUS
    assert found.verdict is Verdict.COMMITTED
    assert alone.external_ids == found.external_ids != (other.external_id,)
    assert sum(request.startswith(b"POST") for request in requests) == 2, "one for each attempt"


async def test_a_list_with_more_pages_denies_nothing(stripe_mock: StripeMock) -> None:
    charge = _charged(stripe_mock)
    for name in ("refund:1", "refund:2"):
        assert (await _refund(stripe_mock.origin, charge, name).send()).outcome is Outcome.COMMITTED
    page = {"url": f"{stripe_mock.origin}/v1/refunds?limit=1{{&charge}}"}
    never = _refund(stripe_mock.origin, charge, "refund:3", adapter={"probe": page})
    finding = await never.ask()
    assert (finding.verdict, finding.code) == (Verdict.UNKNOWN, "pages_unread")
    whole = await _refund(stripe_mock.origin, charge, "refund:3").ask()
    assert whole.verdict is Verdict.NOT_COMMITTED


async def test_a_charge_that_is_refunded_already_is_a_refusal(stripe_mock: StripeMock) -> None:
    charge = _charged(stripe_mock)
    stripe_mock.http.post("/v1/refunds", data={"charge": charge}).raise_for_status()
    refused = await _refund(stripe_mock.origin, charge).send()
    assert (refused.outcome, refused.code) == (Outcome.REJECTED, "refused")
