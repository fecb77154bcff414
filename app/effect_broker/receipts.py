"""How a receipt leaves the broker: the document that anybody can verify, and who has signed it."""

from __future__ import annotations

import base64
from typing import Any

from effect_broker.reading import ReceiptRecord
from effect_contracts.canonical import JsonValue
from effect_contracts.signed_receipts import signed_receipt


def receipt_document(record: ReceiptRecord) -> dict[str, JsonValue]:
    """Return the receipt with its signatures, complete in itself
    (`effect_contracts.signed_receipts`)."""
    signatures = [(one.key_id, one.signature) for one in record.signatures]
    return signed_receipt(record.content, record.digest, signatures)


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
