"""What the stores do alike, whatever they keep their keys in."""

from __future__ import annotations

import json
import warnings
from typing import Any

from effect_broker.receiving.terms import KeptResult


def check_ways(*, shares_transaction: bool, repeatable: bool) -> None:
    """Refuse a store that is of both kinds.

    Raises:
        ValueError: what is rolled back needs no repeating.
    """
    if shares_transaction and repeatable:
        raise ValueError("work in a shared transaction is rolled back, and needs no repeating")


def columns_of(result: KeptResult) -> dict[str, Any]:
    """Return the columns of a result; headers are a JSON list of pairs, since names may repeat."""
    return {
        "status": result.status,
        "headers": json.dumps([list(pair) for pair in result.headers]),
        "body": result.body,
        "refused": result.refused,
    }


def warn_of_unused_connection() -> None:
    """Warn of a success under an atomic key that cannot have been in the key's transaction."""
    warnings.warn(
        "work under an idempotency key has not used current_claim().connection: a crash "
        "would open the key again though the work may be done; use a separate store",
        RuntimeWarning,
        stacklevel=3,  # of who has completed the claim
    )
