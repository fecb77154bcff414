"""The events of a tenant, read in one order that never passes over any.

This file owns what a page of the stream is, and when a cursor is refused. The order is that of
`effect_contracts.event_stream.Place`: of one effect by sequence, and between effects as their
transactions began. Only what can no longer get a neighbour before it is shown (see the migration
`event_stream`), so that whoever goes on from a cursor has missed nothing and sees nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol
from uuid import UUID

from effect_contracts.errors import CursorSuperseded, RequestMalformed
from effect_contracts.event_stream import (
    BEGINNING,
    CursorForeign,
    CursorForged,
    EventFilter,
    Place,
    StreamEvent,
    beginning_of,
    cursor_of,
    place_of,
)

PAGE_LIMIT_DEFAULT: Final = 100
PAGE_LIMIT_MAX: Final = 500
# Of events that a filter leaves out, so many are passed over in one page; the page then ends, and
# its cursor is behind them.
SCANNED_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class StreamHead:
    """Where the stream stands.

    Attributes:
        epochs: the ids of all epochs.
        era: that of what is written now.
        next_transaction: no transaction has had this id, or a greater one, in this era.
        pruned_through: era and transaction of the last place that pruning has removed events of.
    """

    epochs: Mapping[int, UUID]
    era: int
    next_transaction: int
    pruned_through: tuple[int, int] | None

    @property
    def epoch(self) -> int:
        """The present epoch."""
        return self.era >> 32


class StreamReads(Protocol):
    """Where the stream of a tenant is read."""

    async def head(self, tenant_id: UUID) -> StreamHead:
        """Return where it stands.

        Raises:
            StoreError.
        """

    async def end(self, tenant_id: UUID) -> Place | None:
        """Return the last place that can be read; None where there is no event.

        Raises:
            StoreError.
        """

    async def events_after(
        self, tenant_id: UUID, place: Place, limit: int
    ) -> Sequence[StreamEvent]:
        """Return what follows a place, as far as nothing can come in between any more.

        Raises:
            StoreError.
        """


@dataclass(frozen=True, slots=True)
class StreamPage:
    """A page; `cursor` is where to go on, also from an empty one.

    Attributes:
        more: whether the next page has something to read already.
        pruned: events may be missing here: retention has removed some from behind the cursor on.
    """

    events: tuple[StreamEvent, ...]
    place: Place
    cursor: str
    more: bool
    pruned: bool

    def to_json(self) -> dict[str, Any]:
        """Return the members of the page."""
        return {
            "events": [event.to_json() for event in self.events],
            "cursor": self.cursor,
            "more": self.more,
            "pruned": self.pruned,
        }


def place_after(cursor: str | None, tenant_id: UUID, head: StreamHead) -> Place:
    """Return the place of a cursor, the beginning without one.

    Raises:
        RequestMalformed: the cursor is none of this tenant.
        CursorSuperseded: it is of another copy of the database, or of a future that was lost.
    """
    if cursor is None:
        return BEGINNING
    try:
        place = place_of(cursor, tenant_id, head.epochs)
    except CursorForged:
        raise RequestMalformed(parameter="after") from None
    except CursorForeign as foreign:
        epoch = min(foreign.epoch, head.epoch)
    else:
        ahead = place.era == head.era and place.transaction > head.next_transaction
        if not ahead:
            return place
        epoch = head.epoch
    resume = beginning_of(epoch) if epoch > 1 else BEGINNING
    raise CursorSuperseded(resume=cursor_of(resume, tenant_id, head.epochs[resume.epoch]))


async def stream_page(
    reads: StreamReads, tenant_id: UUID, cursor: str | None, wanted: EventFilter, limit: int
) -> StreamPage:
    """Return the events that follow a cursor.

    Raises:
        RequestMalformed, CursorSuperseded: see `place_after`. StoreError.
    """
    head = await reads.head(tenant_id)
    after = place_after(cursor, tenant_id, head)
    scanned = limit + 1 if wanted.takes_all else SCANNED_MAX
    rows = await reads.events_after(tenant_id, after, scanned)
    taken: list[StreamEvent] = []
    place, read = after, 0
    for event in rows:
        if len(taken) == limit:
            break
        place, read = event.place, read + 1
        if wanted.takes(event):
            taken.append(event)
    pruned = head.pruned_through is not None and (after.era, after.transaction) <= (
        head.pruned_through
    )
    epoch_id = head.epochs[place.epoch]
    more = read < len(rows) or len(rows) == scanned
    return StreamPage(tuple(taken), place, cursor_of(place, tenant_id, epoch_id), more, pruned)
