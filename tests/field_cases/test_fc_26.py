"""FC-26: 1, 1.0 and 2^53+1: numbers that a gateway rewrites, or that two values share."""

from __future__ import annotations

import pytest

from field_cases.amendments import any_value
from field_cases.cases import Case, Offer
from field_cases.raw import post_arguments, refused, rows_of

EQUAL = [("1", "1.0"), ("1", "1e0"), ("0", "-0"), ("0", "-0.0"), ("100", "1e2"), ("0.1", "0.10")]
DIFFERENT = [
    ("1", "2"),
    ("true", "1"),
    ('"1"', "1"),
    ("false", "0"),
    ("null", "0"),
    ("0.1", "0.2"),
    ("9007199254740991", "9007199254740990"),
]
NO_NUMBER = {
    "9007199254740993": "number_range",
    "9007199254740992": "number_range",
    "-9007199254740992": "number_range",
    "1e400": "number_range",
    "-1e400": "number_range",
    "1e20": "number_range",
    "9" * 5000: "number_range",
    "0.10000000000000001": "number_precision",
    "1e-400": "number_precision",
    "NaN": "number_not_finite",
}


def written(value: str, order: str = "1") -> str:
    return f'{{"order":"{order}","amount":5,"currency":"eur","value":{value}}}'


@pytest.fixture
def offer(case: Case) -> Offer:
    """A tool that takes any value."""
    return case.offer("idempotent", amend=any_value)


def test_fc_26_equal_numbers_are_one_request_however_they_are_written(offer: Offer) -> None:
    for first, second in EQUAL:
        order = f"{first}={second}"
        new = post_arguments(offer, order, written(first, order))
        assert new.status_code == 202, new.text
        effect_id = new.json()["effect_id"]
        offer.judge(effect_id, state="succeeded", requests=1, effects=1)
        again = post_arguments(offer, order, written(second, order))
        assert (again.status_code, again.json()["effect_id"]) == (200, effect_id), again.text
        offer.judge(effect_id, state="succeeded", requests=1, effects=1)


def test_fc_26_different_values_or_types_conflict_and_send_nothing(offer: Offer) -> None:
    hashes = set()
    for n, (first, second) in enumerate(DIFFERENT):
        order = f"o{n}"
        new = post_arguments(offer, order, written(first, order))
        assert new.status_code == 202, new.text
        effect_id = new.json()["effect_id"]
        problem = refused(
            post_arguments(offer, order, written(second, order)), "payload_conflict", 409
        )
        assert problem["field"] == "/arguments/value"
        assert problem["effect_id"] == effect_id
        offer.judge(effect_id, state="succeeded", requests=1, effects=1)
        hashes.add(bytes(offer.case.scene.intent(effect_id)["request_hash"]))
    assert len(hashes) == len(DIFFERENT)


def test_fc_26_a_number_that_no_double_holds_is_refused_before_anything_is_stored(
    case: Case, offer: Offer
) -> None:
    for literal, reason in NO_NUMBER.items():
        problem = refused(post_arguments(offer, "1", written(literal)), "invalid_payload")
        assert problem["reason"] == reason, literal[:20]
        assert problem["field"] == "/arguments/value"
    assert rows_of(case, offer.tool) == 0
    assert offer.ledger().arrivals == 0
