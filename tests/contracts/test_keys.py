"""Operation keys, effect ids and downstream keys: what is a name, and that names never meet."""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import urlsafe_b64encode
from uuid import RFC_4122, UUID

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from effect_contracts.errors import (
    ContractInvalid,
    InvalidOperationKey,
    OperationKeyReason,
    problem,
)
from effect_contracts.keys import (
    KEY_BITS_MIN,
    KeyFormat,
    check_operation_key,
    downstream_key,
    effect_id,
    key_format_problem,
    key_length,
)

_SECRET = bytes(range(32))
_A = UUID("018f4c1e-7a2b-7c3d-8e4f-5a6b7c8d9e0f")
_B = UUID("018f4c1e-7a2b-7c3d-8e4f-5a6b7c8d9e10")
_ALNUM = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

_operation_keys = st.text(
    st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=255
)
_formats = st.builds(
    KeyFormat,
    kind=st.sampled_from(["base64url", "hex", "uuid", "alphabet"]),
    length_max=st.none() | st.integers(0, 300),
    alphabet=st.none() | st.sampled_from([_ALNUM, "01", "01234567", _ALNUM[:36], "aab", "a", ""]),
    prefix=st.sampled_from(["", "eb_", "x" * 30]),
)


# --- operation keys --------------------------------------------------------------------------


@given(_operation_keys)
def test_printable_ascii_up_to_255_is_an_operation_key_and_is_kept_as_it_is(key: str) -> None:
    assert check_operation_key(key) == key


@pytest.mark.parametrize(
    ("text", "reason", "offset"),
    [
        ("", OperationKeyReason.EMPTY, None),
        ("k" * 256, OperationKeyReason.TOO_LONG, None),
        ("k" * 3000, OperationKeyReason.TOO_LONG, None),
        ("order:\U0001f600", OperationKeyReason.ILLEGAL_CHARACTER, 6),
        ("a\u0000b", OperationKeyReason.ILLEGAL_CHARACTER, 1),
        ("caf\u00e9", OperationKeyReason.ILLEGAL_CHARACTER, 3),
        ("cafe\u0301", OperationKeyReason.ILLEGAL_CHARACTER, 4),
        ("a\r\nX: 1", OperationKeyReason.ILLEGAL_CHARACTER, 1),
        (" a", OperationKeyReason.ILLEGAL_CHARACTER, 0),
        ("a ", OperationKeyReason.ILLEGAL_CHARACTER, 1),
        ("a\x7f", OperationKeyReason.ILLEGAL_CHARACTER, 1),
        ("\ud800", OperationKeyReason.ILLEGAL_CHARACTER, 0),
        (None, OperationKeyReason.NOT_TEXT, None),
        (7, OperationKeyReason.NOT_TEXT, None),
        (b"key", OperationKeyReason.NOT_TEXT, None),
        (OperationKeyReason.EMPTY, OperationKeyReason.NOT_TEXT, None),
    ],
)
def test_an_illegal_operation_key_is_refused_and_not_repeated(
    text: object, reason: OperationKeyReason, offset: int | None
) -> None:
    with pytest.raises(InvalidOperationKey) as caught:
        check_operation_key(text)
    body = problem(caught.value)
    assert body["status"] == 422
    assert caught.value.reason is reason
    assert body.get("offset") == offset
    if isinstance(text, str) and len(text) > 2:
        assert text not in str(body)


def test_nothing_is_derived_from_an_illegal_operation_key() -> None:
    with pytest.raises(InvalidOperationKey):
        effect_id(_A, "a b")
    with pytest.raises(InvalidOperationKey):
        downstream_key(_SECRET, _A, "a\0b", KeyFormat())


# --- effect ids ------------------------------------------------------------------------------


def test_an_effect_id_is_a_uuid_of_version_8() -> None:
    made = effect_id(_A, "order:1")
    assert made.version == 8
    assert made.variant == RFC_4122


@given(st.uuids(), st.uuids(), _operation_keys, _operation_keys)
def test_other_tenant_or_other_key_is_another_effect(
    tenant: UUID, other_tenant: UUID, key: str, other_key: str
) -> None:
    assume((tenant, key) != (other_tenant, other_key))
    assert effect_id(tenant, key) != effect_id(other_tenant, other_key)
    assert downstream_key(_SECRET, tenant, key, KeyFormat()) != downstream_key(
        _SECRET, other_tenant, other_key, KeyFormat()
    )


@given(st.uuids(), _operation_keys)
def test_the_same_tenant_and_key_are_the_same_effect(tenant: UUID, key: str) -> None:
    twin = UUID(bytes=tenant.bytes)
    assert effect_id(tenant, key) == effect_id(twin, str(key.encode(), "ascii"))


def test_case_is_part_of_the_name() -> None:
    assert effect_id(_A, "A") != effect_id(_A, "a")


def test_one_key_in_two_tenants_is_two_effects_and_two_downstream_keys() -> None:
    assert effect_id(_A, "order:1") != effect_id(_B, "order:1")
    for key_format in (KeyFormat(), KeyFormat("uuid"), KeyFormat("alphabet", alphabet=_ALNUM)):
        first = downstream_key(_SECRET, _A, "order:1", key_format)
        assert first != downstream_key(_SECRET, _B, "order:1", key_format)


def test_a_delimiter_in_the_key_cannot_move_into_the_tenant() -> None:
    """The fields are framed by length: no text of the key can look like another framing."""
    framed = [b"effect-broker/effect-id/1", _A.bytes, b"a:b"]
    by_hand = hashlib.sha256(b"".join(len(f).to_bytes(2, "big") + f for f in framed)).digest()
    made = effect_id(_A, "a:b")
    assert made.bytes[:6] == by_hand[:6]
    assert made.bytes[9:] == by_hand[9:16]


# --- downstream keys -------------------------------------------------------------------------


def test_the_downstream_key_is_the_hmac_of_tenant_nul_key() -> None:
    """The specification's sentence, written out a second time."""
    mac = hmac.new(_SECRET, str(_A).encode() + b"\0" + b"order:1", hashlib.sha256).digest()
    expected = urlsafe_b64encode(mac).decode().rstrip("=")
    assert downstream_key(_SECRET, _A, "order:1", KeyFormat()) == expected
    assert len(expected) == 43


def test_another_secret_is_another_key() -> None:
    other = bytes(32)
    for kind in ("base64url", "hex", "uuid"):
        key_format = KeyFormat(kind)
        assert downstream_key(_SECRET, _A, "k", key_format) != downstream_key(
            other, _A, "k", key_format
        )


def test_a_short_secret_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError):
        downstream_key(b"short", _A, "k", KeyFormat())


_SHAPES = {
    "base64url": r"[A-Za-z0-9_-]+",
    "hex": r"[0-9a-f]+",
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}",
}


@given(_formats, _operation_keys)
def test_a_derived_key_satisfies_its_format_or_the_format_is_refused(
    key_format: KeyFormat, operation_key: str
) -> None:
    if key_format_problem(key_format) is not None:
        with pytest.raises(ContractInvalid) as caught:
            downstream_key(_SECRET, _A, operation_key, key_format)
        assert problem(caught.value)["status"] == 422
        return
    key = downstream_key(_SECRET, _A, operation_key, key_format)
    assert len(key) == key_length(key_format)
    if key_format.length_max is not None:
        assert len(key) <= key_format.length_max
    assert key.isascii()
    assert key.isprintable()
    assert key.startswith(key_format.prefix)
    symbols = key[len(key_format.prefix) :]
    if key_format.kind == "alphabet":
        assert key_format.alphabet is not None
        assert set(symbols) <= set(key_format.alphabet)
        assert len(key_format.alphabet) ** len(symbols) >= 2**KEY_BITS_MIN
    else:
        assert re.fullmatch(_SHAPES[key_format.kind], symbols)


@pytest.mark.parametrize(
    ("key_format", "shortest"),
    [
        (KeyFormat("base64url"), 21),
        (KeyFormat("hex"), 31),
        (KeyFormat("uuid"), 36),
        (KeyFormat("alphabet", alphabet="01"), 122),
        (KeyFormat("alphabet", alphabet=_ALNUM[:36]), 24),
        (KeyFormat("alphabet", alphabet=_ALNUM), 21),
    ],
)
def test_a_format_is_refused_below_122_bits_and_not_above(
    key_format: KeyFormat, shortest: int
) -> None:
    def bounded(length_max: int, prefix: str = "") -> str | None:
        return key_format_problem(
            KeyFormat(key_format.kind, length_max, key_format.alphabet, prefix)
        )

    assert bounded(shortest) is None
    complaint = bounded(shortest - 1)
    assert complaint is not None
    assert str(shortest) in complaint
    if key_format.kind != "uuid":
        assert bounded(shortest + 3, "eb_") is None
        assert bounded(shortest + 2, "eb_") is not None


@pytest.mark.parametrize(
    ("key_format", "word"),
    [
        (KeyFormat("alphabet"), "two symbols"),
        (KeyFormat("alphabet", alphabet="a"), "two symbols"),
        (KeyFormat("alphabet", alphabet="aba"), "only once"),
        (KeyFormat("alphabet", alphabet="ab c"), "printable"),
        (KeyFormat("alphabet", alphabet="ab\u00e9"), "printable"),
        (KeyFormat("hex", alphabet="abc"), "own alphabet"),
        (KeyFormat("uuid", prefix="eb_"), "prefix"),
        (KeyFormat(prefix="e b"), "prefix"),
        (KeyFormat(prefix="eb\r\n"), "prefix"),
        (KeyFormat(length_max=10), "cannot carry"),
        (KeyFormat(length_max=-1), "cannot carry"),
        (KeyFormat("base32"), "must be one of"),  # type: ignore[arg-type]
    ],
)
def test_a_format_that_cannot_carry_the_key_says_why(key_format: KeyFormat, word: str) -> None:
    assert word in (key_format_problem(key_format) or "")


def test_symbols_of_an_alphabet_are_evenly_used() -> None:
    """Ten symbols, 2,000 keys of 50 symbols: each symbol within 3 % of its share."""
    key_format = KeyFormat("alphabet", 50, "0123456789")
    text = "".join(downstream_key(_SECRET, _A, f"k{i}", key_format) for i in range(2000))
    for symbol in "0123456789":
        assert abs(text.count(symbol) / len(text) - 0.1) < 0.003
