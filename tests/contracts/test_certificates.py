"""A certificate counts only as it was signed, for the contract it names, and until its day."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from effect_contracts.canonical import canonical_bytes
from effect_contracts.certificates import (
    CertificateVerdict,
    Flaw,
    TrialVerdict,
    certificate_content,
    certificate_of,
    certified,
    certified_bytes,
    read_signed_certificate,
    signed_certificate,
    trial_body,
    verify_certificate,
)
from effect_contracts.facts import Certified
from effect_contracts.signed_receipts import Check, DocumentUnreadable, signed_bytes

BEGUN_AT = datetime(2026, 11, 29, 9, tzinfo=UTC)
ENDED_AT = BEGUN_AT + timedelta(minutes=5)
EXPIRES_AT = BEGUN_AT + timedelta(days=30)
CONTRACT = sha256(b"the contract").digest()
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
KEYS = {"k1": KEY.public_key().public_bytes_raw()}
CONTENT = certificate_content(
    certificate_id="c-1",
    contract={"name": "n", "version": "1", "digest": CONTRACT.hex(), "safety": "idempotent"},
    target={"identity": "https://api.example.com#acct_1", "account": "acct_1"},
    trials=[
        trial_body("ten_at_once", 10, 0, {"200": 10}, TrialVerdict.HOLDS, "one effect"),
        trial_body("key_is_kept", 0, 0, {}, TrialVerdict.NOT_SHOWN, "not waited for"),
        trial_body("drift_is_refused", 1, 0, {}, TrialVerdict.BROKEN, "another effect"),
    ],
    figures={"answer_p50": 0.25, "arrivals": 11},
    begun_at=BEGUN_AT,
    ended_at=ENDED_AT,
    expires_at=EXPIRES_AT,
)


def signature(content: bytes = CONTENT) -> bytes:
    return KEY.sign(certified_bytes(content))


def verdict(
    content: bytes = CONTENT,
    *,
    now: datetime = ENDED_AT,
    contract: bytes | None = None,
    keys: dict[str, bytes] = KEYS,
    **changes: Any,
) -> CertificateVerdict:
    """What is found of that content, signed, with some members of the document changed."""
    made = {**signed_certificate(content, "k1", signature(content)), **changes}
    read = read_signed_certificate(json.dumps(made).encode())
    return verify_certificate(read, keys, now, contract)


def with_content(**changes: Any) -> bytes:
    return canonical_bytes({**json.loads(CONTENT), **changes})


def test_a_certificate_is_good_for_whoever_holds_the_public_key() -> None:
    found = verdict(contract=CONTRACT)
    assert found.good
    assert (found.flaw, found.verified_by, found.unknown) == (None, ("k1",), ())
    assert found.what == "signed by key k1, good until 2026-12-29T09:00:00.000000Z"


def test_a_certificate_says_what_was_seen_and_when() -> None:
    assert json.loads(CONTENT) == {
        "format": "effect-broker/certificate/1",
        "certificate_id": "c-1",
        "contract": {
            "name": "n", "version": "1", "digest": CONTRACT.hex(), "safety": "idempotent",
        },
        "target": {"identity": "https://api.example.com#acct_1", "account": "acct_1"},
        "trials": [
            {"trial": "ten_at_once", "requests": 10, "look_ups": 0, "answers": {"200": 10},
             "verdict": "holds", "seen": "one effect"},
            {"trial": "key_is_kept", "requests": 0, "look_ups": 0, "answers": {},
             "verdict": "not_shown", "seen": "not waited for"},
            {"trial": "drift_is_refused", "requests": 1, "look_ups": 0, "answers": {},
             "verdict": "broken", "seen": "another effect"},
        ],
        "figures": {"answer_p50": 0.25, "arrivals": 11},
        "begun_at": "2026-11-29T09:00:00.000000Z",
        "ended_at": "2026-11-29T09:05:00.000000Z",
        "expires_at": "2026-12-29T09:00:00.000000Z",
    }  # fmt: skip
    assert canonical_bytes(json.loads(CONTENT)) == CONTENT


def test_what_is_signed_never_changes() -> None:
    """A certificate of today has to be good for a verifier of any later day."""
    assert certified_bytes(CONTENT) == b"effect-broker certificate v1\n" + CONTENT


def test_it_counts_until_the_moment_on_which_it_ends() -> None:
    assert verdict(now=EXPIRES_AT - timedelta(microseconds=1)).good
    for late in (EXPIRES_AT, EXPIRES_AT + timedelta(microseconds=1), EXPIRES_AT.replace(year=2027)):
        found = verdict(now=late)
        assert (found.flaw, found.good) == (Flaw.EXPIRY, False)
        assert "2026-12-29T09:00:00.000000Z" in found.what
        assert found.verified_by == ("k1",)


@pytest.mark.parametrize("other", [sha256(b"another").digest(), bytes(32), b"\xff" * 32])
def test_it_speaks_of_its_own_contract_only(other: bytes) -> None:
    found = verdict(contract=other)
    assert (found.flaw, found.verified_by) == (Flaw.CONTRACT, ("k1",))
    # That is said before its time is looked at.
    assert verdict(contract=other, now=EXPIRES_AT).flaw is Flaw.CONTRACT


def test_each_flaw_of_a_document_has_its_name() -> None:
    for content in (b"{}", b"[]", b"", CONTENT + b"\n", with_content(format="x")):
        assert verdict(content).flaw is Flaw.CONTENT
    assert verdict(digest="0" * 64).flaw is Flaw.DIGEST
    assert verdict(signatures=[]).flaw is Flaw.SIGNATURE
    found = verdict(keys={"k2": KEYS["k1"]})
    assert (found.flaw, found.unknown, found.verified_by) == (Flaw.KEY, ("k1",), ())
    assert {flaw.value for flaw in Flaw} > {check.value for check in Check}


def test_a_signature_of_a_receipt_is_none_of_a_certificate() -> None:
    made = signed_certificate(CONTENT, "k1", KEY.sign(signed_bytes(CONTENT)))
    read = read_signed_certificate(json.dumps(made).encode())
    assert verify_certificate(read, KEYS, ENDED_AT).flaw is Flaw.SIGNATURE


_TRIAL = json.loads(CONTENT)["trials"][0]
_CONTRACT = json.loads(CONTENT)["contract"]


@pytest.mark.parametrize(
    "changes",
    [
        {"added": 1},
        {"certificate_id": 1},
        {"trials": []},
        {"trials": [{**_TRIAL, "verdict": "perhaps"}]},
        {"trials": [{**_TRIAL, "requests": -1}]},
        {"trials": [{**_TRIAL, "look_ups": -1}]},
        {"trials": [{**_TRIAL, "requests": "1"}]},
        {"contract": {**_CONTRACT, "digest": "0" * 63}},
        {"contract": {**_CONTRACT, "digest": "A" * 64}},
        {"begun_at": "2026-11-29T09:00:00Z"},
        {"ended_at": "2026-11-29T09:05:00.000000+00:00"},
        {"expires_at": "9"},
    ],
    ids=str,
)
def test_a_signature_makes_no_certificate_of_something_else(changes: dict[str, Any]) -> None:
    content = with_content(**changes)
    found = verdict(content)
    assert found.flaw is Flaw.CONTENT
    assert "lacks what a certificate says" in found.what
    assert certified(content, "k1", signature(content), KEYS, CONTRACT) is None


def test_a_trial_without_a_request_is_one() -> None:
    assert verdict(with_content(trials=[{**_TRIAL, "requests": 0, "look_ups": 0}])).good


def test_what_a_document_says_is_read_whether_it_is_signed_or_not() -> None:
    made = {**signed_certificate(CONTENT, "k1", signature()), "signatures": []}
    read = certificate_of(read_signed_certificate(json.dumps(made).encode()))
    assert read is not None
    assert (read.certificate_id, read.target.account) == ("c-1", "acct_1")
    assert read.trials[0].answers == {"200": 10}
    with pytest.raises(ValueError, match="frozen"):
        read.certificate_id = "c-2"  # type: ignore[misc]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"x": 1}',
        json.dumps({**signed_certificate(CONTENT, "k1", b"s"), "format": "other"}).encode(),
        json.dumps({**signed_certificate(CONTENT, "k1", b"s"), "more": 1}).encode(),
    ],
)
def test_a_foreign_document_is_no_certificate(text: bytes) -> None:
    with pytest.raises(DocumentUnreadable):
        read_signed_certificate(text)


def test_a_decision_is_told_the_trials_that_held_and_the_times() -> None:
    assert certified(CONTENT, "k1", signature(), KEYS, CONTRACT) == Certified(
        certificate_id="c-1",
        target_identity="https://api.example.com#acct_1",
        trials=frozenset({"ten_at_once"}),
        ended_at=ENDED_AT,
        expires_at=EXPIRES_AT,
    )


def test_a_decision_is_told_nothing_that_is_not_to_be_believed() -> None:
    good = signature()
    assert certified(CONTENT, "k1", good, KEYS, sha256(b"another").digest()) is None
    assert certified(CONTENT, "k1", b"\0" * 64, KEYS, CONTRACT) is None
    assert certified(CONTENT, "k2", good, KEYS, CONTRACT) is None
    assert certified(CONTENT, "k 1", good, KEYS, CONTRACT) is None  # no id of a key
    assert certified(b"\xff", "k1", good, KEYS, CONTRACT) is None
    assert certified(b"{}", "k1", signature(b"{}"), KEYS, CONTRACT) is None


def test_one_that_ended_with_its_trials_never_counts() -> None:
    content = with_content(expires_at="2026-11-29T09:05:00.000000Z")
    assert certified(content, "k1", signature(content), KEYS, CONTRACT) is None
