"""FC-05: a gateway gives up while the origin behind it goes on and finishes."""

from __future__ import annotations

import pytest

from field_cases.cases import Case

STATUSES = (504, 502, 500, 408, 499)
CLOSED = "trunc(head)"  # what a client sees of a proxy that closes as nginx does for its 499
EXPECTED = {
    # In the end: state, requests.
    "idempotent": ("succeeded", 2),
    "reconcilable": ("succeeded", 1),
    "unsafe": ("outcome_unknown", 1),
}


@pytest.mark.parametrize("safety", EXPECTED)
def test_fc_05_a_gateways_word_is_no_proof(case: Case, safety: str) -> None:
    plans = {f"status({status})": f"unmatched_status_{status}" for status in STATUSES}
    plans[CLOSED] = "truncated_head"
    begun = {}
    for plan in plans:
        offer = case.offer(safety)
        offer.script(f"commit;{plan}")
        begun[plan] = (offer, offer.submit())
    state, requests = EXPECTED[safety]
    for plan, (offer, effect_id) in begun.items():
        offer.judge(effect_id, state=state, requests=requests, effects=1)
        assert offer.codes(effect_id)[0] == ("ambiguous", plans[plan])
        assert "outcome_unknown" in offer.states(effect_id)
        assert "retryable" not in offer.states(effect_id)
