"""FC-07: the head says created, and the body is cut."""

from __future__ import annotations

import pytest

from field_cases.cases import Case

CUTS = {
    "length": "truncated_body",
    "chunked": "truncated_body",
    # No exception anywhere: HTTP takes the end of the connection for the end of the document.
    "close": "success_body_invalid",
}
EXPECTED = {
    "idempotent": ("succeeded", 2),
    "reconcilable": ("succeeded", 1),
    "unsafe": ("outcome_unknown", 1),
}


@pytest.mark.parametrize("safety", EXPECTED)
def test_fc_07_half_a_document_is_no_success(case: Case, safety: str) -> None:
    begun = {}
    for cut in CUTS:
        offer = case.offer(safety)
        offer.script(f"commit;trunc({cut})")
        begun[cut] = (offer, offer.submit())
    state, requests = EXPECTED[safety]
    for cut, (offer, effect_id) in begun.items():
        offer.judge(effect_id, state=state, requests=requests, effects=1)
        first = offer.attempts(effect_id)[0]
        assert (first["outcome"], first["code"]) == ("ambiguous", CUTS[cut])
        assert first["bytes_may_have_left"] is True
        assert first["status"] == 201
        assert "outcome_unknown" in offer.states(effect_id)
        if safety == "idempotent":
            receipt = offer.receipt(effect_id)
            assert receipt["external_id"] == offer.effect_ids(effect_id)[0]


def test_fc_07_a_success_rule_over_the_status_alone_does_not_take_half_a_document(
    case: Case,
) -> None:
    def trusts_the_status(document: dict) -> None:  # type: ignore[type-arg]
        document["adapter"]["answers"]["success"] = [{"statuses": [200, 201]}]
        document["adapter"]["extraction"] = {}

    offer = case.offer("unsafe", amend=trusts_the_status)
    offer.script("commit;trunc(close)")
    effect_id = offer.submit()
    offer.judge(effect_id, state="outcome_unknown", requests=1, effects=1)
    assert offer.codes(effect_id) == [("ambiguous", "success_body_invalid")]
