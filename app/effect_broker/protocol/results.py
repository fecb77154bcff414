"""What of a target's answer is kept for the caller: one form, whoever brought the answer."""

from __future__ import annotations

from typing import Final

from effect_adapters.base import Answer, Finding
from effect_contracts.canonical import canonical_bytes
from effect_contracts.errors import InvalidPayload

# The contract bounds the response on the wire; its canonical text may be a little longer.
_RESULT_BYTES_MAX: Final = 64 * 1024 * 1024


def result_bytes(fact: Answer | Finding) -> bytes:
    """Return the canonical form of what the caller gets back: the result and the receipt fields.

    A commit is a fact whatever its answer looks like, so an answer without a canonical form
    (beyond the limits, or with a NUL) is left out and said to be.
    """
    try:
        return canonical_bytes(
            {"result": fact.result, "fields": dict(fact.receipt_fields)},
            bytes_max=_RESULT_BYTES_MAX,
        )
    except InvalidPayload as problem:
        return canonical_bytes({"result": None, "fields": {}, "left_out": problem.reason.value})
