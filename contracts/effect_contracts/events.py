"""Events: what happened to an effect, in order, each chained to the one before by a digest.

This module owns the canonical text of an event and its digest. The database computes the same in
a trigger (`effect_broker.event_digest`); whoever verifies a history computes it here. The text is
a fixed sequence of fields, each as its length in bytes, a colon, itself and a semicolon, so that
no two events have the same text; a field that is missing is `-;`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

EVENT_FORMAT: Final = "effect-event-1"

# The digest "before" the first event of an effect.
FIRST_PREVIOUS_DIGEST: Final = b""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Event:
    """One event of an effect.

    Attributes:
        sequence: from 1; the version of the intent after the write.
        kind: what happened (`attempt_started`, `outcome_recorded`, …).
        event: the move of `effect_contracts.life` that was made; `submitted` for the first.
        from_state: None for the first event.
        metadata: canonical JSON of an object of ids, ordinals, states and codes.
    """

    tenant_id: UUID
    effect_id: UUID
    sequence: int
    kind: str
    event: str
    from_state: str | None
    to_state: str
    reason: str
    actor: str
    at: datetime
    metadata: str


class EventChainBroken(Exception):
    """A history does not fit its digests; the text names the sequence and nothing else."""


def event_digest(previous_digest: bytes, event: Event) -> bytes:
    """Return SHA-256 of the previous event's digest and this event's canonical text."""
    fields = (
        EVENT_FORMAT,
        str(event.tenant_id),
        str(event.effect_id),
        str(event.sequence),
        event.kind,
        event.event,
        event.from_state,
        event.to_state,
        event.reason,
        event.actor,
        str((event.at - _EPOCH) // timedelta(microseconds=1)),
        event.metadata,
    )
    text = b"".join(_canonical_field(field) for field in fields)
    return hashlib.sha256(previous_digest + text).digest()


def verify_events(
    events: Iterable[tuple[Event, bytes]], previous_digest: bytes = FIRST_PREVIOUS_DIGEST
) -> bytes:
    """Check events with their stored digests, in order of sequence; return the last digest.

    Raises:
        EventChainBroken: a digest does not fit, or a sequence is missing.
    """
    expected_sequence: int | None = None
    for event, digest in events:
        if expected_sequence is not None and event.sequence != expected_sequence:
            raise EventChainBroken(f"event {expected_sequence} is missing")
        if event_digest(previous_digest, event) != digest:
            raise EventChainBroken(f"the digest of event {event.sequence} does not fit")
        previous_digest = digest
        expected_sequence = event.sequence + 1
    return previous_digest


def _canonical_field(field: str | None) -> bytes:
    if field is None:
        return b"-;"
    raw = field.encode()
    return b"%d:%s;" % (len(raw), raw)
