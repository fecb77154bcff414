"""FC-08: a 2xx with nothing in it."""

from __future__ import annotations

import pytest

from field_cases.cases import Case, Document

EMPTY = ("empty(204)", "empty(200)")


def needs_no_body(document: Document) -> None:
    """Contract A: the status says it all."""
    document["adapter"]["answers"]["success"] = [{"statuses": [200, 201, 204]}]
    document["adapter"]["extraction"] = {}


def needs_an_id(document: Document) -> None:
    """Contract B: 204 is one of its statuses, and the id is required all the same."""
    document["adapter"]["answers"]["success"][0]["statuses"] = [200, 201, 204]


@pytest.mark.parametrize("safety", ["idempotent", "reconcilable", "unsafe"])
def test_fc_08_an_empty_answer_is_a_success_where_the_contract_says_so(
    case: Case, safety: str
) -> None:
    begun = []
    for plan in EMPTY:
        offer = case.offer(safety, amend=needs_no_body)
        offer.script(f"commit;{plan}")
        begun.append((offer, offer.submit()))
    for offer, effect_id in begun:
        offer.judge(effect_id, state="succeeded", requests=1, effects=1)
        assert offer.receipt(effect_id)["external_id"] is None


@pytest.mark.parametrize(
    ("safety", "state", "requests"),
    [
        ("idempotent", "succeeded", 2),  # the same key again, and the target repeats its answer
        ("reconcilable", "succeeded", 1),
        ("unsafe", "outcome_unknown", 1),
    ],
)
def test_fc_08_a_missing_body_is_doubt_where_the_contract_needs_one(
    case: Case, safety: str, state: str, requests: int
) -> None:
    begun = []
    for plan in EMPTY:
        offer = case.offer(safety, amend=needs_an_id)
        offer.script(f"commit;{plan}")
        begun.append((offer, offer.submit()))
    for offer, effect_id in begun:
        offer.judge(effect_id, state=state, requests=requests, effects=1)
        assert offer.codes(effect_id)[0] == ("ambiguous", "success_body_missing")
        if state == "succeeded":
            assert offer.receipt(effect_id)["external_id"] == offer.effect_ids(effect_id)[0]
