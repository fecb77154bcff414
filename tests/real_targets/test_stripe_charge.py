"""The shipped contract `stripe-charge`: replays by key, and charges that are found in the list."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from effect_contracts.errors import InvalidArguments
from effect_contracts.facts import Outcome, Verdict
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
PAGING = {
    "kind": "cursor",
    "next": "data[-1].id",
    "parameter": "starting_after",
    "has_more": "has_more",
}


def _charge(origin: str, name: str = "order:1", **changes: Any) -> Effect:
    return Effect.of(stripe_contract_text(origin), name, {**CHARGE, **changes})


def _paged(origin: str, name: str, limit: int, pages_max: int) -> Effect:
    """A charge that is looked for in a list of so many pages of such a length."""
    probe = {
        "url": f"{origin}/v1/charges?limit={limit}",
        "paging": {**PAGING, "pages_max": pages_max},
    }
    return Effect.of(stripe_contract_text(origin, adapter={"probe": probe}), name, CHARGE)


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
    assert made["metadata"] == {"order": "o-1", "effect_key": charge.key}
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


# Found in the list -----------------------------------------------------------------------------


async def test_a_lost_charge_is_confirmed_from_the_list_and_never_by_search(
    stripe_mock: StripeMock,
) -> None:
    with relay(stripe_mock.port) as way:
        charge = _charge(way.origin)
        before = await charge.ask()
        way.losing = True
        lost = await charge.send()
        way.losing = False
        found = await charge.ask()
        # Another charge of the same amount: ours is told by its key alone.
        other = await _charge(way.origin, "order:2").send()
        alone = await charge.ask()
        requests = way.requests
    assert before.verdict is Verdict.NOT_COMMITTED
    assert lost.outcome is Outcome.AMBIGUOUS
    assert found.verdict is Verdict.COMMITTED
    assert alone.external_ids == found.external_ids != (other.external_id,)
    assert found.receipt_fields["charge_status"] == "succeeded"
    asked = [request for request in requests if request.startswith(b"GET")]
    assert {request.split(b" ", 2)[1] for request in asked} == {b"/v1/charges?limit=100"}
    assert not any(b"idempotency-key" in request.lower() for request in asked)
    assert len(requests) - len(asked) == 2, "one for each attempt"


@pytest.mark.parametrize("change", [{"amount": 4201}, {"currency": "usd"}])
async def test_a_charge_of_another_amount_or_currency_is_for_a_person(
    stripe_mock: StripeMock, change: dict[str, Any]
) -> None:
    charge = _charge(stripe_mock.origin)
    made = await charge.send()
    other = await replace(charge, arguments={**CHARGE, **change}).ask()
    assert (other.verdict, other.code) == (Verdict.MISMATCH, "fields_disagree")
    assert other.external_ids == (made.external_id,)


async def test_a_declined_charge_in_the_list_is_none(stripe_mock: StripeMock) -> None:
    declined = _charge(stripe_mock.origin, source="tok_chargeDeclined")
    assert (await declined.send()).outcome is Outcome.REJECTED
    [listed] = stripe_mock.http.get("/v1/charges").json()["data"]
    assert (listed["status"], listed["metadata"]["effect_key"]) == ("failed", declined.key)
    assert (await declined.ask()).verdict is Verdict.NOT_COMMITTED


async def test_a_list_that_is_not_read_to_its_end_denies_nothing(stripe_mock: StripeMock) -> None:
    names = ("order:1", "order:2", "order:3")
    made = [await _charge(stripe_mock.origin, name).send() for name in names]
    assert {answer.outcome for answer in made} == {Outcome.COMMITTED}
    cut = await _paged(stripe_mock.origin, "order:4", 1, 2).ask()
    assert (cut.verdict, cut.code) == (Verdict.UNKNOWN, "pages_unread")
    whole = await _paged(stripe_mock.origin, "order:4", 1, 3).ask()
    assert whole.verdict is Verdict.NOT_COMMITTED
    # Whichever page it stands on, each is found alone.
    for name, answer in zip(names, made, strict=True):
        found = await _paged(stripe_mock.origin, name, 1, 3).ask()
        assert (found.verdict, found.external_ids) == (Verdict.COMMITTED, (answer.external_id,))


def test_no_caller_names_the_key_in_the_metadata() -> None:
    with pytest.raises(InvalidArguments):
        _charge("https://api.stripe.com", metadata={"effect_key": "mine"})
