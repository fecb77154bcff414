"""Sending one batch of events to one receiver: effects beside each other, of each in order.

This file owns the order. Events of one effect go out one after the other, and none before the
earlier ones were accepted or given up; what may not go out yet is noted behind them. A receiver
that has accepted nothing of a batch after a few tries is not tried with the rest of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from effect_adapters.base import Budget
from effect_adapters.event_webhook import Posted, post
from effect_broker.protocol.ports import Sealed
from effect_contracts.event_stream import EventFilter, Place, StreamEvent
from effect_contracts.webhook_sending import SendingPolicy, webhook_body, webhook_headers
from effect_contracts.webhook_urls import Networks, Receiver

BEHIND: Final = "behind_an_earlier_event"
NOT_TRIED: Final = "not_tried_yet"
PRUNED: Final = "pruned"
GONE: Final = "gone"


@dataclass(frozen=True, slots=True)
class Leased:
    """A subscription that this worker delivers for, for as long as the lease holds.

    Attributes:
        sealed: the secret that signs.
        retiring: those before it, which sign too for a time.
        failures: batches in a row of which nothing was accepted.
        now: the database clock when it was leased.
    """

    subscription_id: UUID
    tenant_id: UUID
    lease_id: UUID
    url: str = field(repr=False)
    wanted: EventFilter
    sealed: Sealed = field(repr=False)
    place: Place
    failing_since: datetime | None
    failures: int
    now: datetime
    retiring: Sequence[Sealed] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Waiting:
    """An event to be tried; `event` is None once retention has removed it."""

    effect_id: UUID
    sequence: int
    tries: int
    first_tried_at: datetime | None
    event: StreamEvent | None


@dataclass(frozen=True, slots=True)
class Batch:
    """What is to be delivered now.

    Attributes:
        waiting: noted events of effects whose earliest one is due, in the order of each effect.
        blocked: effects of which something is noted, whether it is due or not.
        fresh: what follows the place in the stream.
        now: the database clock.
    """

    waiting: Sequence[Waiting]
    blocked: frozenset[UUID]
    fresh: Sequence[StreamEvent]
    now: datetime


@dataclass(frozen=True, slots=True)
class Note:
    """What is written of an event that was not accepted; `dead_at` where it was given up."""

    effect_id: UUID
    sequence: int
    tries: int
    first_tried_at: datetime | None
    next_try_at: datetime | None
    dead_at: datetime | None
    code: str
    status: int | None


@dataclass(slots=True)
class Results:
    """What a batch has come to.

    Attributes:
        accepted: events that need no note, or none any more.
        tried, delivered: how many went out, and how many of these were taken.
        code: of the latest refusal.
        gone: the receiver says that it will not come back.
        lost: the lease is not ours any more; nothing of this counts.
    """

    accepted: list[tuple[UUID, int]] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    tried: int = 0
    delivered: int = 0
    code: str | None = None
    gone: bool = False
    lost: bool = False
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Means:
    """What sending stands on.

    Attributes:
        holds: whether a subscription still is there, goes on, and is leased to us.
        may_go_on: false while the process must not begin anything.
        networks: that may be reached although they are not public.
    """

    holds: Callable[[Leased], Awaitable[bool]]
    boot_seconds: Callable[[], float]
    may_go_on: Callable[[], bool]
    networks: Networks
    policy: SendingPolicy


class BatchSender:
    """Sends one batch."""

    def __init__(
        self,
        means: Means,
        leased: Leased,
        receiver: Receiver,
        secrets: Sequence[str],
        batch: Batch,
    ) -> None:
        self._means = means
        self._policy = means.policy
        self._leased = leased
        self._receiver = receiver
        self._secrets = secrets
        self._batch = batch
        self._began = means.boot_seconds()
        self._results = Results()
        self._begun = 0
        self._free = asyncio.Semaphore(means.policy.lanes)

    async def run(self) -> Results:
        """Send what may be sent, and return what has come of it.

        Raises:
            ExceptionGroup: of StoreError; then nothing is known of the batch.
        """
        async with asyncio.TaskGroup() as group:
            for lane in self._lanes().values():
                group.create_task(self._lane(lane))
        return self._results

    def _lanes(self) -> dict[UUID, list[Waiting]]:
        lanes: dict[UUID, list[Waiting]] = {}
        for waiting in self._batch.waiting:
            lanes.setdefault(waiting.effect_id, []).append(waiting)
        for event in self._batch.fresh:
            if not self._leased.wanted.takes(event):
                continue
            effect_id = event.place.effect_id
            item = Waiting(effect_id, event.place.sequence, 0, None, event)
            # Behind what is noted of this effect, also where it is due: only the first part of that
            # may have been read.
            if effect_id in self._batch.blocked:
                self._note(item, BEHIND)
            else:
                lanes.setdefault(effect_id, []).append(item)
        return lanes

    async def _lane(self, items: Sequence[Waiting]) -> None:
        async with self._free:
            for index, item in enumerate(items):
                if self._over() or not await self._still_ours():
                    self._put_off(items[index:], NOT_TRIED)
                    return
                if not await self._tried(item):
                    self._put_off(items[index + 1 :], BEHIND)
                    return

    async def _still_ours(self) -> bool:
        if self._results.lost or self._results.gone:
            return False
        if not await self._means.holds(self._leased):
            self._results.lost = True
        return not self._results.lost

    def _over(self) -> bool:
        results = self._results
        in_vain = not results.delivered and self._begun >= 2 * self._policy.lanes
        spent = self._means.boot_seconds() - self._began
        return in_vain or spent >= self._policy.batch_seconds or not self._means.may_go_on()

    def _now(self) -> datetime:
        passed = self._means.boot_seconds() - self._began
        return self._batch.now + timedelta(seconds=passed)

    async def _tried(self, item: Waiting) -> bool:
        """Try an event; return whether the next one of its effect may follow."""
        results, event = self._results, item.event
        if event is None:
            self._dead(item, PRUNED, None)
            return True
        body, now = webhook_body(event), self._now()
        headers = webhook_headers(self._secrets, event.id, int(now.timestamp()), body)
        self._begun += 1
        read = self._means.boot_seconds
        budget = Budget(read() + self._policy.try_seconds, read)
        posted = await post(self._receiver, headers, body, budget, self._means.networks)
        results.tried += 1
        if posted.accepted:
            results.delivered += 1
            results.accepted.append((item.effect_id, item.sequence))
            return True
        results.code = posted.code
        results.gone = results.gone or posted.code == GONE
        if posted.retry_after_seconds is not None:
            results.retry_after = max(results.retry_after or 0.0, posted.retry_after_seconds)
        return self._refused(item, posted, now)

    def _refused(self, item: Waiting, posted: Posted, began_at: datetime) -> bool:
        tries, first = item.tries + 1, item.first_tried_at or began_at
        now = self._now()
        age = (now - first).total_seconds()
        tried = Waiting(item.effect_id, item.sequence, tries, first, item.event)
        given_up = tries >= self._policy.tries_max or age >= self._policy.dead_after_seconds
        if given_up and posted.code != GONE:
            self._dead(tried, posted.code, posted.status)
            return True
        wait = self._policy.wait_after(tries, posted.retry_after_seconds, item.effect_id.int)
        self._note(tried, posted.code, posted.status, now + timedelta(seconds=wait))
        return False

    def _put_off(self, items: Sequence[Waiting], code: str) -> None:
        for item in items:
            self._note(item, code)

    def _dead(self, item: Waiting, code: str, status: int | None) -> None:
        self._results.notes.append(
            Note(item.effect_id, item.sequence, item.tries, item.first_tried_at, None, self._now(),
                 code, status)
        )  # fmt: skip

    def _note(
        self,
        item: Waiting,
        code: str,
        status: int | None = None,
        next_try_at: datetime | None = None,
    ) -> None:
        # What stands behind another one is due as soon as that is gone.
        self._results.notes.append(
            Note(item.effect_id, item.sequence, item.tries, item.first_tried_at,
                 next_try_at or self._now(), None, code, status)
        )  # fmt: skip
