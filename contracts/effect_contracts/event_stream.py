"""The stream of events as callers see it: what an event tells, and the cursor of a place in it.

Pure. A cursor is text that only the broker reads: the place after which to go on, and a seal over
it and its tenant. The seal's key belongs to one copy of the database (its epoch), so that a cursor
of another copy, whose places mean something else, is told from one that somebody has made up.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from effect_contracts.facts import EffectState
from effect_contracts.life import is_final

_FORMAT: Final = 1
_TAG_BYTES: Final = 4
_SEAL_BYTES: Final = 12
_NUMBERS: Final = (8, 8, 16, 4)  # era, place, effect id, sequence
_RAW_BYTES: Final = 1 + _TAG_BYTES + sum(_NUMBERS) + _SEAL_BYTES
CURSOR_CHARS_MAX: Final = 88

_EPOCH_SHIFT: Final = 32
# Of events with the same effect and number, which a restore can bring about, no two share an id.
_DIGEST_CHARS: Final = 8


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A place in the stream; the order of places is the order of the stream.

    Attributes:
        era: epoch of the database in the upper half, timeline of the server in the lower one.
        transaction: the transaction that has written the event, or a later one of its effect.
    """

    era: int
    transaction: int
    effect_id: UUID
    sequence: int

    @property
    def epoch(self) -> int:
        """The epoch; what was there before there were places is read with those of the first."""
        return max(self.era >> _EPOCH_SHIFT, 1)


BEGINNING: Final = Place(0, 0, UUID(int=0), 0)


def beginning_of(epoch: int) -> Place:
    """Return the place before everything of an epoch."""
    return Place(epoch << _EPOCH_SHIFT, 0, UUID(int=0), 0)


class CursorForged(ValueError):
    """No broker has given this cursor to this tenant."""


class CursorForeign(ValueError):
    """The cursor is of another copy of the database; `epoch` is what it says of its own."""

    def __init__(self, epoch: int) -> None:
        super().__init__("the cursor was given out by another copy of this database")
        self.epoch = epoch


def cursor_of(place: Place, tenant_id: UUID, epoch_id: UUID) -> str:
    """Return the cursor of a place; `epoch_id` is that of the place's epoch."""
    told = (
        bytes([_FORMAT])
        + _tag(epoch_id)
        + place.era.to_bytes(8)
        + place.transaction.to_bytes(8)
        + place.effect_id.bytes
        + place.sequence.to_bytes(4)
    )
    return urlsafe_b64encode(told + _seal(told, tenant_id, epoch_id)).decode().rstrip("=")


def place_of(cursor: str, tenant_id: UUID, epochs: Mapping[int, UUID]) -> Place:
    """Return the place of a cursor; `epochs` are the ids of all epochs of this database.

    Raises:
        CursorForged: it is no cursor, or not one of this tenant.
        CursorForeign: it is of an epoch that this database has not had.
    """
    try:
        # Padding that is not needed is passed over.
        raw = urlsafe_b64decode(cursor + "==")
    except ValueError:
        raise CursorForged("this is no cursor") from None
    if len(raw) != _RAW_BYTES or raw[0] != _FORMAT:
        raise CursorForged("this is no cursor")
    told, seal = raw[:-_SEAL_BYTES], raw[-_SEAL_BYTES:]
    place = _read(told[1 + _TAG_BYTES :])
    epoch_id = epochs.get(place.epoch)
    if epoch_id is None or told[1 : 1 + _TAG_BYTES] != _tag(epoch_id):
        raise CursorForeign(place.epoch)
    if not hmac.compare_digest(seal, _seal(told, tenant_id, epoch_id)):
        raise CursorForged("this cursor was not given to this tenant")
    return place


def _read(raw: bytes) -> Place:
    era, transaction = int.from_bytes(raw[:8]), int.from_bytes(raw[8:16])
    return Place(era, transaction, UUID(bytes=raw[16:32]), int.from_bytes(raw[32:]))


def _tag(epoch_id: UUID) -> bytes:
    return hashlib.sha256(epoch_id.bytes).digest()[:_TAG_BYTES]


def _seal(told: bytes, tenant_id: UUID, epoch_id: UUID) -> bytes:
    return hmac.digest(epoch_id.bytes, told + tenant_id.bytes, "sha256")[:_SEAL_BYTES]


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """An event as it is told outside: names, states and codes; no arguments, no results."""

    place: Place
    kind: str
    from_state: str | None
    to_state: str
    reason: str
    at: datetime
    digest: bytes
    operation_key: str
    tool: str

    @property
    def id(self) -> str:
        """The event's own name, the same at every delivery."""
        return event_id(self.place.effect_id, self.place.sequence, self.digest)

    def to_json(self) -> dict[str, Any]:
        """Return the members of the event."""
        effect_id, sequence = self.place.effect_id, self.place.sequence
        return {
            "id": self.id,
            "type": self.kind,
            "at": self.at.isoformat(),
            "effect_id": str(effect_id),
            "sequence": sequence,
            "version": sequence,
            "operation_key": self.operation_key,
            "tool": self.tool,
            "state": self.to_state,
            "previous_state": self.from_state,
            "final": is_final(EffectState(self.to_state)),
            "reason": self.reason,
        }


def event_id(effect_id: UUID, sequence: int, digest: bytes) -> str:
    """Return the name of an event."""
    return f"{effect_id}.{sequence}.{digest.hex()[:_DIGEST_CHARS]}"


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events; each part that is not empty must hold."""

    types: frozenset[str] = frozenset()
    states: frozenset[str] = frozenset()

    @property
    def takes_all(self) -> bool:
        """Whether nothing is left out."""
        return not self.types and not self.states

    def takes(self, event: StreamEvent) -> bool:
        """Whether an event is wanted."""
        return (not self.types or event.kind in self.types) and (
            not self.states or event.to_state in self.states
        )
