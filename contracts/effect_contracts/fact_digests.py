"""Digests of facts: what the event of a fact holds of it, so that its row cannot be changed alone.

An event is chained to the one before it; a row is not. The event that tells of an outcome or of
evidence holds the SHA-256 of what the row says, as JSON in ASCII with sorted members and without
spaces, and `events verify` computes it again from the row. Nothing of an answer is in it that is
not in the row: codes, ids and digests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

from effect_contracts.canonical import JsonValue
from effect_contracts.facts import EvidenceSource, Outcome, Verdict
from effect_contracts.receipts import receipt_time

_OUTCOME_FORMAT = "effect-broker/outcome/1"
_EVIDENCE_FORMAT = "effect-broker/evidence/1"


def outcome_digest(
    *,
    attempt_id: UUID,
    ordinal: int,
    outcome: Outcome,
    code: str | None,
    recorded_at: datetime,
    external_id: str | None,
    retry_after_seconds: float | None,
    operation: bool,
    result_digest: str | None,
) -> str:
    """Return the digest of what an attempt showed, as hex; `result_digest` is hex as well."""
    return _digest(
        {
            "format": _OUTCOME_FORMAT,
            "attempt_id": str(attempt_id),
            "ordinal": ordinal,
            "outcome": outcome.value,
            "code": code,
            "recorded_at": receipt_time(recorded_at),
            "external_id": external_id,
            # As text, so that every double has one spelling.
            "retry_after_seconds": (
                None if retry_after_seconds is None else repr(float(retry_after_seconds))
            ),
            "operation": operation,
            "result_digest": result_digest,
        }
    )


def evidence_digest(
    *,
    evidence_id: UUID,
    source: EvidenceSource,
    verdict: Verdict,
    code: str,
    began_at: datetime,
    covers_through: int,
    external_ids: tuple[str, ...],
    target_identity: str | None,
    result_digest: str | None,
) -> str:
    """Return the digest of a piece of evidence, as hex; `result_digest` is hex as well."""
    return _digest(
        {
            "format": _EVIDENCE_FORMAT,
            "evidence_id": str(evidence_id),
            "source": source.value,
            "verdict": verdict.value,
            "code": code,
            "began_at": receipt_time(began_at),
            "covers_through": covers_through,
            "external_ids": list(external_ids),
            "target_identity": target_identity,
            "result_digest": result_digest,
        }
    )


def _digest(members: Mapping[str, JsonValue]) -> str:
    # Not RFC 8785, which refuses some texts: what was seen has to be stored whatever it is. There
    # are no numbers in it but whole ones, so that this has one spelling too.
    text = json.dumps(members, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
