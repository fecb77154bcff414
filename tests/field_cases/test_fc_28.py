"""FC-28: a body that means two things, NaN, and values without a JSON form."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pytest

from effect_contracts.canonical import check_value, request_hash
from effect_contracts.errors import InvalidPayload, PayloadReason
from field_cases.cases import Case, Offer
from field_cases.raw import post_raw, refused, rows_of

ORDER = '"order":"1","currency":"eur"'


def bodies(offer: Offer) -> dict[str, tuple[bytes, str]]:
    """Raw bodies, each with the reason of its refusal."""
    head = f'"operation_key":"{offer.key()}","tool":"{offer.tool}"'

    def body(amounts: str) -> bytes:
        return f'{{{head},"arguments":{{{ORDER},{amounts}}}}}'.encode()

    plain = body('"amount":1')
    return {
        "a member twice": (body('"amount":1,"amount":100'), "duplicate_member"),
        "twice by an escape": (body('"amount":1,"\\u0061mount":100'), "duplicate_member"),
        "the same value twice": (body('"amount":1,"amount":1'), "duplicate_member"),
        "the key twice": (
            plain.replace(b"{", b'{"operation_key":"other",', 1),
            "duplicate_member",
        ),
        "NaN": (body('"amount":NaN'), "number_not_finite"),
        "Infinity": (body('"amount":Infinity'), "number_not_finite"),
        "-Infinity": (body('"amount":-Infinity'), "number_not_finite"),
        "a byte order mark": (b"\xef\xbb\xbf" + plain, "byte_order_mark"),
        "trailing data": (plain + b"{}", "trailing_text"),
        "a comma too many": (plain.replace(b"}}", b",}}"), "syntax"),
        "single quotes": (plain.replace(b'"', b"'"), "syntax"),
        "a comment": (plain.replace(b"{", b"{/* x */", 1), "syntax"),
        "half a body": (plain[:-3], "syntax"),
        "latin-1": (plain.replace(b'"1"', b'"\xe9"'), "not_utf8"),
        "half a pair": (plain.replace(b'"1"', b'"\\ud800"'), "lone_surrogate"),
        "NUL": (plain.replace(b'"1"', b'"\\u0000"'), "nul_character"),
        "nothing": (b"", "empty"),
        "no object": (b"[1]", "not_an_object"),
    }


def test_fc_28_a_body_with_two_meanings_is_refused_before_anything_is_stored(case: Case) -> None:
    offer = case.offer("idempotent")
    for name, (body, reason) in bodies(offer).items():
        problem = refused(post_raw(case, body), "invalid_payload")
        assert problem["reason"] == reason, name
    assert rows_of(case, offer.tool) == 0
    assert offer.ledger().arrivals == 0
    # The same in one meaning goes through, so it was the meaning that was refused.
    effect_id = offer.submit()
    offer.judge(effect_id, state="succeeded", requests=1, effects=1)


PYTHON_VALUES: dict[str, tuple[Any, PayloadReason]] = {
    "a number as a name": ({1: "a", "1": "b"}, PayloadReason.NAME_NOT_TEXT),
    "a truth as a name": ({True: "a"}, PayloadReason.NAME_NOT_TEXT),
    "no name": ({None: "a"}, PayloadReason.NAME_NOT_TEXT),
    "a decimal": ({"a": decimal.Decimal("1.10")}, PayloadReason.TYPE_UNSUPPORTED),
    "a time": (
        {"a": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)},
        PayloadReason.TYPE_UNSUPPORTED,
    ),
    "bytes": ({"a": b"x"}, PayloadReason.TYPE_UNSUPPORTED),
    "a tuple": ({"a": (1, 2)}, PayloadReason.TYPE_UNSUPPORTED),
    "a set": ({"a": {1}}, PayloadReason.TYPE_UNSUPPORTED),
    "nan": ({"a": float("nan")}, PayloadReason.NUMBER_NOT_FINITE),
    "inf": ({"a": float("inf")}, PayloadReason.NUMBER_NOT_FINITE),
}


@pytest.mark.parametrize("name", PYTHON_VALUES)
def test_fc_28_a_python_value_without_a_json_form_has_no_identity(name: str) -> None:
    value, reason = PYTHON_VALUES[name]
    for judged in (check_value, lambda v: request_hash("proof.tool", v, "proof", "1")):
        with pytest.raises(InvalidPayload) as refusal:
            judged(value)
        assert refusal.value.extras["reason"] == reason
