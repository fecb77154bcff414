"""A document of a signed receipt, at its edges: its length, and what its parts are made of."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from effect_contracts.signed_receipts import (
    DocumentUnreadable,
    SignaturePart,
    read_signed_receipt,
)

from .test_signed_receipts import document


def test_a_document_has_256_kib_at_most() -> None:
    raw = json.dumps(document()).encode()
    longest = raw + b" " * (256 * 1024 - len(raw))
    assert read_signed_receipt(longest).signatures
    with pytest.raises(DocumentUnreadable):
        read_signed_receipt(longest + b" ")


def test_a_part_is_made_of_texts_and_does_not_change() -> None:
    part = SignaturePart(key_id="k1", algorithm="ed25519", signature="c2ln")
    with pytest.raises(ValidationError, match="frozen"):
        part.signature = "b3RoZXI="  # type: ignore[misc]
    with pytest.raises(ValidationError, match="key_id"):
        SignaturePart.model_validate({"key_id": b"k1", "algorithm": "ed25519", "signature": "c2ln"})


def test_what_is_wrong_with_a_part_is_said_without_its_words() -> None:
    with pytest.raises(ValidationError) as refused:
        SignaturePart.model_validate({"key_id": "k1", "algorithm": "hush", "signature": "c2ln"})
    assert "hush" not in str(refused.value)
