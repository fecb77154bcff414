"""Receipts: the content of the immutable record of a settled effect, and its digest.

A receipt is written for every settled effect, of failure as well as of success. Its content is
canonical JSON and holds identities, codes, times and digests only; the target's answer itself is
stored encrypted beside it. Signatures are added to a receipt, never into it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime

from effect_contracts.canonical import JsonValue, canonical_bytes

RECEIPT_FORMAT = "effect-broker/receipt/1"


def receipt_time(at: datetime) -> str:
    """Return the one spelling of a moment in receipts: UTC with microseconds."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def receipt_content(fields: Mapping[str, JsonValue]) -> bytes:
    """Return the canonical bytes of a receipt's content, with the format's name in it.

    Raises:
        effect_contracts.errors.EffectError: a value has no canonical form.
    """
    return canonical_bytes({"format": RECEIPT_FORMAT, **fields})


def receipt_digest(content: bytes) -> bytes:
    """Return SHA-256 of the content; events and the intent's row hold it."""
    return hashlib.sha256(content).digest()
