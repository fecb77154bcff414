"""A signed receipt is good for whoever holds the public keys, and no part of it can be changed."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from effect_contracts.receipts import receipt_content, receipt_digest
from effect_contracts.signed_receipts import (
    Check,
    DocumentUnreadable,
    Verdict,
    public_keys,
    read_public_keys,
    read_signed_receipt,
    signed_bytes,
    signed_receipt,
    verify_signed_receipt,
)

# RFC 8032 7.1, test 1: a seed and its public key that the standard itself has printed.
SEED = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
PUBLIC = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))

CONTENT = receipt_content({"effect_id": "e-1", "state": "succeeded", "settled_at": "2026-11-29"})
GOLDEN_SIGNATURE = (
    "341282780b136f47ce0465eb30aedf462972c2855e46811757eb8a8d7c76f17a"
    "e90eb43732e7a2033b26c9c79f63ed3f274b5d2d8b2712ced802ebd79bdeea04"
)


def signature(content: bytes, key: Ed25519PrivateKey | None = None) -> bytes:
    return (key or Ed25519PrivateKey.from_private_bytes(SEED)).sign(signed_bytes(content))


def document(of: bytes = CONTENT, **changes: Any) -> dict[str, Any]:
    made = signed_receipt(of, receipt_digest(of), [("k1", signature(of))])
    return {**made, **changes}


def verdict(value: object, keys: dict[str, bytes] | None = None) -> Verdict:
    read = read_signed_receipt(json.dumps(value).encode())
    return verify_signed_receipt(read, {"k1": PUBLIC} if keys is None else keys)


def test_a_receipt_is_good_for_whoever_holds_the_public_key() -> None:
    found = verdict(document())
    assert found.good
    assert found.verified_by == ("k1",)


def test_what_is_signed_never_changes() -> None:
    """A signature made today has to be good for a verifier of any later day."""
    assert signed_bytes(CONTENT) == b"effect-broker receipt v1\n" + CONTENT
    assert signature(CONTENT).hex() == GOLDEN_SIGNATURE


def test_a_signature_of_the_content_alone_is_none_of_a_receipt() -> None:
    bare = Ed25519PrivateKey.from_private_bytes(SEED).sign(CONTENT)
    value = signed_receipt(CONTENT, receipt_digest(CONTENT), [("k1", bare)])
    assert verdict(value).failed is Check.SIGNATURE


def test_no_bit_of_a_document_can_be_changed() -> None:
    raw = json.dumps(document(), separators=(",", ":")).encode()
    for place in range(len(raw)):
        for bit in range(8):
            changed = bytearray(raw)
            changed[place] ^= 1 << bit
            try:
                read = read_signed_receipt(bytes(changed))
            except DocumentUnreadable:
                continue
            found = verify_signed_receipt(read, {"k1": PUBLIC})
            assert not found.good, (place, bit, bytes(changed))


def test_each_failure_names_its_check() -> None:
    altered = CONTENT.replace(b"succeeded", b"succeedex")
    signed = document()["signatures"]
    cases = {
        Check.DIGEST: document(content=altered.decode()),
        Check.SIGNATURE: document(content=altered.decode(), digest=receipt_digest(altered).hex()),
        Check.KEY: document(signatures=[{**signed[0], "key_id": "k2"}]),
        Check.CONTENT: document(content="{}"),
    }
    for check, value in cases.items():
        assert verdict(value).failed is check


@pytest.mark.parametrize(
    "content",
    [
        '{"format": "effect-broker/receipt/1"}',
        '{"format":"effect-broker/receipt/1"}\n',
        '{"format":"effect-broker/receipt/2"}',
        "[]",
        "",
        "\x7f",
    ],
)
def test_a_signature_makes_no_receipt_of_something_else(content: str) -> None:
    raw = content.encode()
    assert verdict(document(raw)).failed is Check.CONTENT


def test_without_a_signature_nothing_is_good() -> None:
    assert verdict(document(signatures=[])).failed is Check.SIGNATURE


def test_two_signatures_of_one_key_are_refused() -> None:
    one = document()["signatures"][0]
    assert verdict(document(signatures=[one, one])).failed is Check.SIGNATURE


def test_after_a_rotation_the_old_or_the_new_key_will_do() -> None:
    both = [("k1", signature(CONTENT)), ("k2", signature(CONTENT, OTHER))]
    value = signed_receipt(CONTENT, receipt_digest(CONTENT), both)
    new = OTHER.public_key().public_bytes_raw()
    assert verdict(value, {"k1": PUBLIC}).unknown == ("k2",)
    assert verdict(value, {"k2": new}).verified_by == ("k2",)
    assert verdict(value, {"k1": PUBLIC, "k2": new}).verified_by == ("k1", "k2")
    assert verdict(value, {}).failed is Check.KEY


def test_a_bad_signature_by_a_known_key_spoils_a_good_one() -> None:
    both = [("k1", signature(CONTENT)), ("k2", signature(CONTENT + b" ", OTHER))]
    value = signed_receipt(CONTENT, receipt_digest(CONTENT), both)
    keys = {"k1": PUBLIC, "k2": OTHER.public_key().public_bytes_raw()}
    assert verdict(value, keys).failed is Check.SIGNATURE


def test_public_keys_are_read_back_as_they_were_printed() -> None:
    printed = public_keys({"k1": PUBLIC}, "k1")
    assert read_public_keys(json.dumps(printed).encode()) == {"k1": PUBLIC}
    assert printed["keys"]["k1"]["jwk"]["x"] == (  # type: ignore[index,call-overload]
        base64.urlsafe_b64encode(PUBLIC).decode().rstrip("=")
    )


@pytest.mark.parametrize(
    "change",
    [
        {"public_key": base64.b64encode(PUBLIC[:31]).decode()},
        {"public_key": "no base64"},
        {"public_key": base64.b64encode(bytes(32)).decode()},
        {"algorithm": "rsa"},
        {"jwk": {}},
        {"private_key": "x"},
    ],
)
def test_public_keys_that_contradict_themselves_are_refused(change: dict[str, Any]) -> None:
    printed: Any = public_keys({"k1": PUBLIC}, "k1")
    printed["keys"]["k1"] |= change
    with pytest.raises(DocumentUnreadable):
        read_public_keys(json.dumps(printed).encode())


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[]", b"null", b"\xff\xfe", b"{", b'{"format":1}', b"[" * 5000, b"x" * 400_000,
        b'{"a":1,"a":1}', b'{"format":"effect-broker/signed-receipt/1"}', b'{"\xc2\x9b":1}',
    ],
)  # fmt: skip
def test_what_is_no_document_is_refused_in_words(text: bytes) -> None:
    for read in (read_signed_receipt, read_public_keys):
        with pytest.raises(DocumentUnreadable) as caught:
            read(text)
        said = str(caught.value)
        assert said
        assert said.isprintable()
        assert len(said) < 300


def test_an_answer_of_the_api_is_told_from_a_document() -> None:
    with pytest.raises(DocumentUnreadable, match="document"):
        read_signed_receipt(json.dumps({"receipt": {}, "document": document()}).encode())


def test_no_more_than_five_unknown_keys_are_spelled_out() -> None:
    signed = [(f"k{number}", signature(CONTENT)) for number in range(1, 8)]
    found = verdict(signed_receipt(CONTENT, receipt_digest(CONTENT), signed), {})
    assert found.what == "signed by keys that are not among the public keys: k1, k2, k3, k4, k5"
    assert found.unknown == ("k1", "k2", "k3", "k4", "k5", "k6", "k7")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"public_key": "AAAA"}, "key 2: public_key is not base64 of 32 bytes"),
        ({"jwk": {}}, "key 2: its JWK is not that of its public_key and id"),
    ],
)
def test_a_key_that_cannot_be_read_is_named_by_its_place_from_one(
    change: dict[str, Any], words: str
) -> None:
    printed: Any = public_keys({"k1": PUBLIC, "k2": OTHER.public_key().public_bytes_raw()}, None)
    printed["keys"]["k2"] |= change
    with pytest.raises(DocumentUnreadable) as caught:
        read_public_keys(json.dumps(printed).encode())
    assert str(caught.value) == words


@pytest.mark.parametrize("raw", [PUBLIC[:31], PUBLIC + b"x", b""])
def test_a_public_key_of_another_length_is_refused_though_its_jwk_agrees(raw: bytes) -> None:
    with pytest.raises(DocumentUnreadable, match="not base64 of 32 bytes"):
        read_public_keys(json.dumps(public_keys({"k1": raw}, "k1")).encode())


@pytest.mark.parametrize("last_byte", range(16))
def test_a_public_key_has_one_spelling(last_byte: int) -> None:
    """The last digit of 32 bytes has two bits that no byte uses, and a decoder passes over."""
    raw = bytes([7] * 31 + [last_byte])
    printed: Any = public_keys({"k1": raw}, "k1")
    written = printed["keys"]["k1"]["public_key"]
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    others = [f"{written[:-2]}{digit}=" for digit in digits]
    same = [text for text in others if base64.b64decode(text) == raw]
    assert len(same) == 4
    for text in same:
        printed["keys"]["k1"]["public_key"] = text
        document = json.dumps(printed).encode()
        if text == written:
            assert read_public_keys(document) == {"k1": raw}
        else:
            with pytest.raises(DocumentUnreadable, match="not base64 of 32 bytes"):
                read_public_keys(document)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], "the document: model_type"),
        (document(digest="x", signatures=1), "digest: string_pattern_mismatch"),
        (document() | {"x" * 100: 1}, "x" * 80 + ": extra_forbidden"),
        (document(signatures=[{}]), "signatures.0.key_id: missing"),
    ],
)
def test_the_first_fault_of_a_document_is_named_by_its_place(value: object, said: str) -> None:
    with pytest.raises(DocumentUnreadable) as caught:
        read_signed_receipt(json.dumps(value).encode())
    assert str(caught.value) == said
