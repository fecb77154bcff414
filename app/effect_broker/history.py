"""The history of an effect: its events a page at a time, and how it stood after any of them.

Everything here repeats what is stored. No adapter can be reached from this module or from what it
stands on, and it has no port that writes (both are tested).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol
from uuid import UUID

from effect_contracts.history import (
    ChainCheck,
    ChainReport,
    EffectThen,
    Fold,
    compare,
    deeds_between,
)
from effect_contracts.trace.log import EventRecord

PAGE_LIMIT_DEFAULT: Final = 100
PAGE_LIMIT_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class HistoryHead:
    """What an effect's own rows say of its history.

    Attributes:
        version: the number of its last event.
        event_digest: of that event.
        lost: by ordinal, when an attempt was presumed lost.
    """

    version: int
    event_digest: bytes
    lost: Mapping[int, datetime]


class HistoryReads(Protocol):
    """Tenant-scoped reads of events."""

    async def head(self, tenant_id: UUID, effect_id: UUID) -> HistoryHead:
        """Return the head.

        Raises:
            EffectMissing, StoreError.
        """

    async def events_from(
        self, tenant_id: UUID, effect_id: UUID, sequence: int, limit: int
    ) -> Sequence[EventRecord]:
        """Return events in order, from this number on.

        Raises:
            StoreError.
        """


class SequenceMissing(Exception):
    """The effect has no event of this number, or it was pruned."""


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events in order.

    Attributes:
        following: the number after which the next page begins; None on the last.
        complete: no event was pruned between the number after which the page begins and its end.
        chain: of this page, linked to the event before it.
    """

    version: int
    events: tuple[EventRecord, ...]
    following: int | None
    complete: bool
    chain: ChainReport


@dataclass(frozen=True, slots=True)
class PointInTime:
    """An effect as it stood after one event, and at another to compare with.

    Attributes:
        chain: from the first kept event to the later of the two moments.
    """

    version: int
    then: EffectThen
    other: EffectThen | None
    chain: ChainReport

    def to_json(self) -> dict[str, Any]:
        """Return it as the API and the command line show it."""
        body: dict[str, Any] = {
            "version": self.version,
            "then": self.then.to_json(),
            "chain": self.chain.to_json(),
        }
        if self.other is not None:
            body["compared_to"] = self.other.to_json()
            body["changes"] = [one.to_json() for one in compare(self.then, self.other)]
            body["between"] = deeds_between(self.then, self.other)
        return body


async def event_page(
    reads: HistoryReads, tenant_id: UUID, effect_id: UUID, after: int, limit: int
) -> EventPage:
    """Return the events after a number, with their chain checked.

    Raises:
        EffectMissing, StoreError.
    """
    head = await reads.head(tenant_id, effect_id)
    # The one before is read too, so that the page is linked to it; one more tells of another page.
    rows = list(await reads.events_from(tenant_id, effect_id, after, limit + 2))
    before = None
    if rows and rows[0].sequence == after:
        first = rows.pop(0)
        before = (first.sequence, bytes.fromhex(first.digest))
    page = tuple(rows[:limit])
    check = ChainCheck(tenant_id, effect_id, before)
    for record in page:
        check.add(record)
    last = len(rows) <= limit
    # Events that were added since the head was read are no fault.
    if last and page and page[-1].sequence <= head.version:
        check.end(head.version, head.event_digest)
    complete = page[0].sequence == after + 1 if page else after >= head.version
    following = None if last else page[-1].sequence
    return EventPage(head.version, page, following, complete, check.report())


async def point_in_time(
    reads: HistoryReads,
    tenant_id: UUID,
    effect_id: UUID,
    sequence: int,
    compare_to: int | None = None,
) -> PointInTime:
    """Return the effect as it stood after one event, compared with another moment if asked.

    Raises:
        SequenceMissing: one of the two is not there.
        EffectMissing, StoreError.
    """
    head = await reads.head(tenant_id, effect_id)
    wanted = {sequence} if compare_to is None else {sequence, compare_to}
    fold, check = Fold(head.lost), ChainCheck(tenant_id, effect_id)
    found: dict[int, EffectThen] = {}
    at = 0
    while len(found) < len(wanted):
        rows = await reads.events_from(tenant_id, effect_id, at + 1, PAGE_LIMIT_MAX)
        if not rows:
            raise SequenceMissing
        for record in rows:
            if record.sequence > max(wanted):
                break
            fold.add(record)
            check.add(record)
            if record.sequence in wanted:
                found[record.sequence] = fold.then()
        at = rows[-1].sequence
        if at >= max(wanted) and len(found) < len(wanted):
            raise SequenceMissing
    if max(wanted) == head.version:
        check.end(head.version, head.event_digest)
    other = None if compare_to is None else found[compare_to]
    return PointInTime(head.version, found[sequence], other, check.report())
