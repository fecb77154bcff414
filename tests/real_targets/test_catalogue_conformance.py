"""What `contracts conformance` shows of shipped contracts at the targets that nobody here wrote.

`webhook-post` and `ticket-create` have no such target; `adapters.test_receivers` has theirs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from effect_adapters.http import HttpAdapter
from effect_broker.clock import SystemClock, new_id
from effect_broker.conformance import Trial, conforms, drifted_arguments, examine
from effect_broker.secretrefs import SecretReferences
from effect_contracts.document import ContractDocument
from real_targets.contracts import contract_text, stripe_contract_text
from real_targets.programs import Radicale, StripeMock

KEY_AND_LOOK_UP = {
    "accepts_the_request",
    "same_key_same_effect",
    "drift_is_refused",
    "found_once_by_key",
    "absence_is_shown",
}
CHARGE: dict[str, Any] = {"amount": 4200, "currency": "eur", "source": "tok_visa"}


async def _shown(
    text: str, arguments: Any, arrivals: Callable[[], Awaitable[int]] | None = None
) -> set[str]:
    """Return the checks that were made; every one has shown that its promise is kept."""
    document = ContractDocument.parse_yaml(text)
    adapter = HttpAdapter(SecretReferences("EFFECT_BROKER_SECRET_", None))
    drifted = drifted_arguments(document, adapter, arguments)
    trial = Trial(document, adapter, arguments, drifted, SystemClock(), new_id, arrivals)
    results = await examine(trial)
    assert conforms(results), results
    return {result.check for result in results}


async def test_a_charge_keeps_its_key_and_is_found_in_the_list(stripe_mock: StripeMock) -> None:
    shown = await _shown(stripe_contract_text(stripe_mock.origin), CHARGE)
    assert shown == KEY_AND_LOOK_UP
    assert len(stripe_mock.charges()) == 1


async def test_a_refund_keeps_its_key_and_is_found_in_the_list(stripe_mock: StripeMock) -> None:
    charge = stripe_mock.http.post("/v1/charges", data=CHARGE).json()["id"]
    text = stripe_contract_text(stripe_mock.origin, "stripe-refund")
    assert await _shown(text, {"charge": charge, "amount": 1000}) == KEY_AND_LOOK_UP
    [refund] = stripe_mock.http.get("/v1/refunds", params={"charge": charge}).json()["data"]
    assert refund["amount"] == 1000


async def test_an_event_arrives_once_and_is_found_by_its_name(radicale: Radicale) -> None:
    event = {"calendar": Radicale.CALENDAR, "title": "Stand-up"}
    event |= {"starts_at": "20261005T080000Z", "ends_at": "20261005T081500Z"}

    async def puts() -> int:
        return radicale.puts()

    text = contract_text("caldav-event", radicale.origin, transit_seconds=0.2)
    shown = await _shown(text, event, puts)
    looked = {"found_once_by_key", "absence_is_shown"}
    assert shown == {"accepts_the_request", "one_attempt_one_arrival", *looked}
    assert len(radicale.events()) == 1
