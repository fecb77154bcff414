"""The edges of operation keys and key formats: the longest, the first and last sign, every bit."""

from __future__ import annotations

import hashlib
from uuid import UUID

import pytest

from effect_contracts.errors import InvalidOperationKey, OperationKeyReason
from effect_contracts.keys import (
    OPERATION_KEY_CHARS_MAX,
    SECRET_BYTES_MIN,
    KeyFormat,
    check_operation_key,
    downstream_key,
    effect_id,
    key_format_problem,
    key_length,
)

_TENANT = UUID("018f4c1e-7a2b-7c3d-8e4f-5a6b7c8d9e0f")


def test_the_longest_operation_key_has_255_characters() -> None:
    assert OPERATION_KEY_CHARS_MAX == 255
    assert check_operation_key("k" * 255) == "k" * 255
    with pytest.raises(InvalidOperationKey) as caught:
        check_operation_key("k" * 256)
    assert caught.value.reason is OperationKeyReason.TOO_LONG


def test_the_first_and_the_last_printable_sign_are_part_of_a_name() -> None:
    assert check_operation_key("!~") == "!~"
    assert key_format_problem(KeyFormat(prefix="!~")) is None
    assert key_format_problem(KeyFormat("alphabet", alphabet="!~")) is None
    for outside in (" ", "\x7f"):
        assert key_format_problem(KeyFormat(prefix=outside)) is not None


def test_a_secret_may_be_longer_than_the_least() -> None:
    least, longer = bytes(SECRET_BYTES_MIN), bytes(SECRET_BYTES_MIN * 2 + 1)
    assert downstream_key(least, _TENANT, "k", KeyFormat("hex"))
    # RFC 2104 pads a short key with zeros: only one of another content is another key.
    assert downstream_key(longer + b"1", _TENANT, "k", KeyFormat("hex"))


@pytest.mark.parametrize("length_max", [26, 30, 45])
def test_the_prefix_is_part_of_the_length_that_the_target_takes(length_max: int) -> None:
    key_format = KeyFormat(prefix="eb_", length_max=length_max)
    key = downstream_key(bytes(32), _TENANT, "order:1", key_format)
    assert len(key) == length_max == key_length(key_format)
    # What is left out is the end, never other signs: a longer bound continues the same key.
    assert downstream_key(bytes(32), _TENANT, "order:1", KeyFormat(prefix="eb_")).startswith(key)


def test_an_id_keeps_every_bit_of_the_hash_but_the_six_of_version_and_variant() -> None:
    version_and_variant = 0xF << 76 | 0x3 << 62
    for number in range(64):
        key = f"order:{number}"
        framed = (b"effect-broker/effect-id/1", _TENANT.bytes, key.encode())
        encoded = b"".join(len(field).to_bytes(2, "big") + field for field in framed)
        hashed = int.from_bytes(hashlib.sha256(encoded).digest()[:16], "big")
        assert effect_id(_TENANT, key).int & ~version_and_variant == hashed & ~version_and_variant


def test_a_key_that_is_a_uuid_has_the_length_of_one() -> None:
    assert key_length(KeyFormat("uuid")) == 36
    assert key_format_problem(KeyFormat("uuid", length_max=36)) is None
    assert key_format_problem(KeyFormat("uuid", length_max=35)) is not None


def test_a_key_carries_the_whole_hash_and_a_secret_is_as_long_as_it() -> None:
    assert key_length(KeyFormat("alphabet", alphabet="01")) == 256
    assert SECRET_BYTES_MIN == 32
    with pytest.raises(AssertionError):
        downstream_key(bytes(31), _TENANT, "k", KeyFormat())
