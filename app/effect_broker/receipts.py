"""How a receipt leaves the broker: the document that anybody can verify, and who has signed it."""

from __future__ import annotations

import base64
from typing import Any
from uuid import UUID

from effect_broker.protocol.ports import Vault
from effect_broker.reading import ReceiptRecord
from effect_contracts.canonical import JsonValue, parse_strict
from effect_contracts.signed_receipts import signed_receipt


def receipt_document(record: ReceiptRecord) -> dict[str, JsonValue]:
    """Return the receipt with its signatures, complete in itself
    (`effect_contracts.signed_receipts`)."""
    signatures = [(one.key_id, one.signature) for one in record.signatures]
    return signed_receipt(record.content, record.digest, signatures)


def receipt_body(record: ReceiptRecord) -> dict[str, Any]:
    """Return a receipt for the API and the command line, without the target's result, which is
    sealed: `opened_result` has the members that take the place of these."""
    return {
        "receipt": parse_strict(record.content),
        "digest": record.digest.hex(),
        "signatures": signature_bodies(record),
        "document": receipt_document(record),
        "result": None,
        "fields": {},
    }


def opened_result(
    record: ReceiptRecord, tenant_id: UUID, effect_id: UUID, vault: Vault
) -> dict[str, JsonValue]:
    """Return the target's `result` and the receipt's `fields`; nothing where none is stored.

    Raises:
        VaultError: the vault has not the key, or it was sealed for another effect.
    """
    if record.result is None:
        return {}
    text = vault.unseal(tenant_id, effect_id, "result", record.result)
    stored = parse_strict(text, bytes_max=len(text))
    assert isinstance(stored, dict), "a result is stored with its fields"
    return stored


def signature_bodies(record: ReceiptRecord) -> list[dict[str, Any]]:
    """Return the signatures with the moments at which they were added, which are not signed."""
    return [
        {
            "key_id": one.key_id,
            "algorithm": one.algorithm,
            "signature": base64.b64encode(one.signature).decode(),
            "signed_at": one.signed_at.isoformat(),
        }
        for one in record.signatures
    ]
