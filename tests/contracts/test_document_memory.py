"""A stored document is read once: workers meet the same few at every effect."""

from __future__ import annotations

from effect_contracts.document import ContractDocument

from .documents import IDEMPOTENT, UNSAFE, document


def test_a_stored_document_is_read_once() -> None:
    stored = document(IDEMPOTENT).canonical()
    first = ContractDocument.from_canonical(stored)
    assert ContractDocument.from_canonical(bytes(bytearray(stored))) is first
    other = ContractDocument.from_canonical(document(UNSAFE).canonical())
    assert other is not first
    assert other.safety != first.safety
