"""The demand for a certificate in a contract: what it may ask, and that others stay as they are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from effect_contracts.certificate_settings import CERTIFICATE_AGE_SECONDS_MAX, trials_of
from effect_contracts.facts import CertificateDemand

from .documents import (
    IDEMPOTENT,
    RECONCILABLE,
    TRANSACTIONAL,
    UNSAFE,
    document,
    problems_in,
)

HERE = "/oversight/certificate"
BOTH = {"approval_valid_seconds": 60.0, "second_person": True}
CALLER: dict[str, Any] = {**IDEMPOTENT, "adapter": {"kind": "caller", "target": "api.example.com"}}

# As they were before certificates could be demanded.
PUBLISHED: tuple[tuple[dict[str, Any], dict[str, Any] | None, str], ...] = (
    (IDEMPOTENT, None, "5a95fb7510c93ae08ef23c3b985601b8a1004607271d44946e94c95c631bf4f1"),
    (IDEMPOTENT, {}, "161922035af3a617848c9ae8939a4954144a7134ad7b55f3cf9cee533b7f37ca"),
    (IDEMPOTENT, BOTH, "bc22fbb77ad152d3bbbfa44170e8c91f68c960694741dbd16fa4b59329aac114"),
    (RECONCILABLE, None, "4a4a46318d2d55c944bbcb8cd27535126ce035c0ebe61749de17711bd6d661f9"),
    (UNSAFE, BOTH, "a94263244111e1dd289f5325c638efa886929617fb1fd674cb70136876453309"),
    (TRANSACTIONAL, None, "a6646ce7984890a735bbdc31280f0a56b3fb8fd5db62d1b7cec5960ca0757265"),
    (TRANSACTIONAL, BOTH, "56d412fbbd644f1ea776e0fd9a9df9f9e1da70f1be7266c90b96eadaa9d7910b"),
)


@pytest.mark.parametrize(("base", "oversight", "digest"), PUBLISHED)
def test_a_contract_without_the_demand_has_the_digest_that_it_always_had(
    base: dict[str, Any], oversight: dict[str, Any] | None, digest: str
) -> None:
    changes = () if oversight is None else (("/oversight", oversight),)
    read = document(base, *changes)
    assert read.digest().hex() == digest
    assert b"certificate" not in read.canonical()
    assert read.policy().certificate is None


@pytest.mark.parametrize(
    ("section", "demand"),
    [
        ({}, CertificateDemand()),
        (
            {
                "age_seconds_max": 86_400,
                "trials": ["key_is_kept", "ten_at_once"],
                "sandbox": "https://sandbox.example.com:8443",
            },
            CertificateDemand(
                86_400.0,
                frozenset({"key_is_kept", "ten_at_once"}),
                "https://sandbox.example.com:8443#acct_1",
            ),
        ),
    ],
)
def test_a_demand_is_part_of_the_contract_and_of_its_digest(
    section: dict[str, Any], demand: CertificateDemand
) -> None:
    read = document(IDEMPOTENT, (HERE, section))
    assert read.policy().certificate == demand
    assert type(read).from_canonical(read.canonical()) == read
    stored = json.loads(read.canonical())["oversight"]["certificate"]
    assert stored == section
    assert read.digest() != document(IDEMPOTENT, ("/oversight", {})).digest()


def test_trials_are_those_that_the_contract_goes_through() -> None:
    idempotent = trials_of(document(IDEMPOTENT))
    assert idempotent >= {"accepts_the_request", "ten_at_once", "key_is_kept", "drift_is_refused"}
    assert "settlement_lag" not in idempotent
    looked_up = trials_of(document(RECONCILABLE))
    assert looked_up == {
        "accepts_the_request", "found_once_by_key", "absence_is_shown",
        "lost_answer_is_settled", "settlement_lag",
    }  # fmt: skip
    assert trials_of(document(UNSAFE)) == {"accepts_the_request", "one_attempt_one_arrival"}
    assert trials_of(document(TRANSACTIONAL)) == frozenset()


@pytest.mark.parametrize(
    ("base", "section", "place", "words", "neighbour"),
    [
        (IDEMPOTENT, {"trials": ["ten_at_once", "settlement_lag"]}, f"{HERE}/trials/1",
         "do not show settlement_lag", {"trials": ["ten_at_once", "key_is_kept"]}),
        (UNSAFE, {"trials": ["ten_at_once"]}, f"{HERE}/trials/0", "do not show ten_at_once",
         {"trials": ["one_attempt_one_arrival"]}),
        (IDEMPOTENT, {"sandbox": "https://sandbox.example.com/"}, f"{HERE}/sandbox",
         "scheme, host and port only", {"sandbox": "https://sandbox.example.com"}),
        (IDEMPOTENT, {"sandbox": "sandbox.example.com"}, f"{HERE}/sandbox",
         "scheme, host and port only", {"sandbox": "http://127.0.0.1:8090"}),
        (IDEMPOTENT, {"age_seconds_max": 0.9}, f"{HERE}/age_seconds_max", "greater than or equal",
         {"age_seconds_max": 1}),
        (IDEMPOTENT, {"age_seconds_max": CERTIFICATE_AGE_SECONDS_MAX + 1},
         f"{HERE}/age_seconds_max", "less than or equal",
         {"age_seconds_max": CERTIFICATE_AGE_SECONDS_MAX}),
        (IDEMPOTENT, {"sandboxes": []}, f"{HERE}/sandboxes", "unknown field", {}),
    ],
)  # fmt: skip
def test_what_a_demand_may_not_ask_is_refused_and_its_neighbour_is_not(
    base: dict[str, Any],
    section: dict[str, Any],
    place: str,
    words: str,
    neighbour: dict[str, Any],
) -> None:
    problems = problems_in(base, (HERE, section))
    assert list(problems) == [place]
    assert words in problems[place]
    document(base, (HERE, neighbour))


@pytest.mark.parametrize("base", [TRANSACTIONAL, CALLER])
def test_nothing_is_demanded_that_nobody_could_make(base: dict[str, Any]) -> None:
    assert "for ever" in problems_in(base, (HERE, {}))[HERE]
    document(base, ("/oversight", BOTH))


def test_only_http_is_tried_elsewhere() -> None:
    queue = {**UNSAFE, "adapter": {"kind": "simulated", "target": "ledger"}}
    problems = problems_in(queue, (HERE, {"sandbox": "https://sandbox.example.com"}))
    assert "only contracts with the adapter http" in problems[f"{HERE}/sandbox"]
    document(queue, (HERE, {}))
