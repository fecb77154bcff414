"""FC-25: a key that is too long, empty or illegal for the target overflows an index or a header."""

from __future__ import annotations

import json
import re
from typing import Any
from uuid import UUID

import pytest

from effect_contracts.errors import ContractInvalid
from field_cases.cases import Case
from field_cases.raw import post_raw, refused, rows_of

LIMIT = 255  # the longest operation key
ILLEGAL = {
    "3000 characters": "x" * 3000,
    "one too many": "x" * (LIMIT + 1),
    "emoji": "order-\U0001f600",
    "NUL": "a\x00b",
    "lone surrogate": "a\ud800b",
    "é composed": "caf\u00e9",
    "é decomposed": "cafe\u0301",
    "header injection": "a\r\nX: 1",
    "leading space": " a",
    "trailing space": "a ",
    "inner space": "a b",
    "tab": "a\tb",
    "DEL": "a\x7fb",
    "empty": "",
}
FORMATS: dict[str, tuple[dict[str, Any], str]] = {
    "uuid": ({"format": "uuid"}, r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    "at most 36": ({"format": "base64url", "length_max": 36}, r"[A-Za-z0-9_-]{22,36}"),
    "at most 64": ({"format": "base64url", "length_max": 64}, r"[A-Za-z0-9_-]{22,64}"),
    "letters and digits only": (
        {
            "format": "alphabet",
            "alphabet": "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
            "length_max": 64,
        },
        r"[0-9A-Za-z]{21,64}",
    ),
    "hex with a prefix": ({"format": "hex", "prefix": "pay_", "length_max": 36}, r"pay_[0-9a-f]+"),
}


def test_fc_25_an_illegal_operation_key_is_refused_at_submit_and_stores_nothing(case: Case) -> None:
    offer = case.offer("idempotent")
    for name, key in ILLEGAL.items():
        body = {"operation_key": key, "tool": offer.tool, "arguments": {}}
        # Escaped by hand, so that also half a surrogate pair gets there.
        problem = refused(post_raw(case, json.dumps(body).encode()), _code(key))
        shown = json.dumps(problem)
        assert key == "" or key[:20] not in shown, name
    no_keys: tuple[Any, ...] = (None, 7, ["a"], {"a": 1})
    for no_key in no_keys:
        body = {"operation_key": no_key, "tool": offer.tool, "arguments": {}}
        refused(post_raw(case, json.dumps(body).encode()), "invalid_operation_key")
    refused(
        post_raw(case, json.dumps({"tool": offer.tool, "arguments": {}}).encode()),
        "invalid_operation_key",
    )
    assert rows_of(case, offer.tool) == 0
    assert offer.ledger().arrivals == 0


def _code(key: str) -> str:
    # NUL and half a pair are no text at all, and are refused as payload before a key is looked for.
    return "invalid_payload" if re.search("[\x00\ud800-\udfff]", key) else "invalid_operation_key"


def test_fc_25_the_longest_key_is_taken_whole_and_case_counts(case: Case) -> None:
    offer = case.offer("idempotent")
    longest = [f"{offer.kind}:".ljust(LIMIT - 1, "x") + last for last in "aA"]
    ids = []
    for key in longest:
        assert len(key) == LIMIT
        answer = case.broker.submit(key, offer.tool, {"order": "1", "amount": 5, "currency": "eur"})
        assert answer.status_code == 202, answer.text
        assert answer.json()["operation_key"] == key
        ids.append(answer.json()["effect_id"])
    assert len(set(ids)) == 2
    for effect_id in ids:
        offer.judge(effect_id, state="succeeded", requests=1, effects=1)
    assert len(offer.ledger().keys) == 2


@pytest.mark.parametrize("name", FORMATS)
def test_fc_25_the_derived_key_has_the_targets_format_and_no_text_of_the_caller(
    case: Case, name: str
) -> None:
    key, wanted = FORMATS[name]
    offer = case.offer("idempotent", key=key)
    effect_id = offer.submit("secret-word")
    offer.judge(effect_id, state="succeeded", requests=1, effects=1)
    (request,) = offer.requests()
    sent = request.header("idempotency-key")
    assert sent is not None
    assert re.fullmatch(wanted, sent), sent
    assert len(sent) <= key.get("length_max", 36 if name == "uuid" else 255)
    if name == "uuid":
        assert UUID(sent).version == 8
    for header, value in request.headers:
        assert "secret-word" not in value, header


def test_fc_25_a_format_that_cannot_carry_the_key_makes_no_contract(case: Case) -> None:
    for key in (
        {"format": "uuid", "length_max": 35},
        {"format": "hex", "length_max": 30},
        {"format": "base64url", "length_max": 20},
        {"format": "alphabet", "alphabet": "0123456789", "length_max": 36},
    ):
        with pytest.raises(ContractInvalid, match="cannot carry"):
            case.offer("idempotent", key=key)
