"""Delivering events to subscriptions: at least once, and of each effect in order.

This file owns what one worker does in a turn. A subscription that has something to deliver is
leased (`effect_broker.store.event_delivery`), and its events are read by its place in the stream.
What is refused is noted, tried again with growing waits, and is a dead letter after so many tries
(`effect_broker.event_sending` sends). The place moves on in the same commit that notes what was
refused, so that a worker which dies leaves its whole batch to the next one: a receiver may see an
event twice, with the same id, and misses none.

A subscription whose receiver accepts nothing gets one try at a time, more and more seldom, and is
paused after some hours until a person resumes it. Each is served by a task of its own under one
deadline, so that a receiver which hangs holds up nobody else's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol
from uuid import UUID

from effect_broker.event_sending import Batch, BatchSender, Leased, Means, Note, Results
from effect_broker.log_events import event
from effect_broker.protocol.ports import Vault, VaultError
from effect_broker.subscriptions import SEALED_COLUMN
from effect_contracts.event_stream import EventFilter, Place
from effect_contracts.webhook_sending import SendingPolicy
from effect_contracts.webhook_urls import Networks, Receiver, UrlRefused, receiver_of

_log = logging.getLogger(__name__)

# How many batches one lease serves before the others have their turn.
_BATCHES_PER_LEASE: Final = 20
# A drain waits for what is under way: a try, and a commit.
_DRAIN_SECONDS: Final = 12.0


@dataclass(frozen=True, slots=True)
class Served:
    """What a batch has come to, to be written.

    Attributes:
        place: everything up to here is delivered, left out or noted.
        accepted: noted events that need no note any more.
        look_after_seconds: the subscription is left alone for so long.
        release: whether the lease ends with it.
    """

    place: Place
    accepted: Sequence[tuple[UUID, int]] = ()
    notes: Sequence[Note] = ()
    delivered: bool = False
    failing_since: datetime | None = None
    failures: int = 0
    last_code: str | None = None
    look_after_seconds: float = 0.0
    pause_code: str | None = None
    release: bool = True


class DeliveryStore(Protocol):
    """What delivering asks of the store. All raise StoreError."""

    async def lease(self, executor_id: str, limit: int) -> Sequence[Leased]:
        """Take subscriptions that have something to deliver, and that nobody else delivers for."""

    async def holds(self, leased: Leased) -> bool:
        """Whether the subscription still is there, goes on, and is leased to us."""

    async def batch(self, leased: Leased, place: Place, waiting: int) -> Batch:
        """Read what is to be delivered; of what is noted, so many at most."""

    async def served(self, leased: Leased, served: Served) -> bool:
        """Write what a batch has come to; False where the lease was lost, and nothing written."""

    async def follow(self) -> None:
        """Write down that the database is another one, or has another timeline."""


class Deliveries:
    """Delivers for one worker.

    Args:
        networks: that may be reached although they are not public.
        plain_http: whether http:// will do.
        may_go_on: false while the process must not begin anything.
        counts: is told of each try `accepted` or `refused`, and of each end `dead` or `paused`.
    """

    def __init__(
        self,
        store: DeliveryStore,
        vault: Vault,
        executor_id: str,
        boot_seconds: Callable[[], float],
        networks: Networks,
        *,
        plain_http: bool,
        may_go_on: Callable[[], bool],
        counts: Callable[[str], None] = lambda outcome: None,
        policy: SendingPolicy | None = None,
    ) -> None:
        self._store = store
        self._vault = vault
        self._executor_id = executor_id
        self._plain_http = plain_http
        self._counts = counts
        self._policy = policy or SendingPolicy()
        self._means = Means(store.holds, boot_seconds, may_go_on, networks, self._policy)
        self._tasks: set[asyncio.Task[None]] = set()

    async def turn(self) -> int:
        """Begin to deliver for subscriptions that have something; return for how many.

        Raises:
            StoreError.
        """
        free = self._policy.subscriptions - len(self._tasks)
        if free <= 0 or not self._means.may_go_on():
            return 0
        taken = await self._store.lease(self._executor_id, free)
        for leased in taken:
            task = asyncio.create_task(self._serve(leased))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return len(taken)

    async def follow(self) -> None:
        """See whether the database has become another one.

        Raises:
            StoreError.
        """
        await self._store.follow()

    async def ended(self) -> None:
        """Wait until all that is under way has ended; a try takes some seconds at most."""
        tasks = set(self._tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_DRAIN_SECONDS)
            for task in late:
                task.cancel()  # its lease ends with this worker's heartbeat

    async def _serve(self, leased: Leased) -> None:
        try:
            receiver = receiver_of(leased.url, self._means.networks, plain_http=self._plain_http)
            await self._batches(leased, receiver, self._secrets(leased))
        except UrlRefused:
            await self._hindered(leased, "url_refused")
        except VaultError:
            await self._hindered(leased, "secret_cannot_be_opened")
        except Exception as problem:
            # Of the store, mostly. The lease runs out, and somebody goes on; the text may hold SQL.
            _failed(leased, problem)

    def _secrets(self, leased: Leased) -> list[str]:
        """Return the secret, and those before it that still sign.

        Raises:
            VaultError: one of them cannot be opened.
        """
        names = (leased.tenant_id, leased.subscription_id, SEALED_COLUMN)
        sealed = (leased.sealed, *leased.retiring)
        return [self._vault.unseal(*names, one).decode() for one in sealed]

    async def _batches(self, leased: Leased, receiver: Receiver, secrets: list[str]) -> None:
        state = Served(leased.place, failing_since=leased.failing_since, failures=leased.failures)
        for turn in range(_BATCHES_PER_LEASE):
            size = 1 if state.failures else self._policy.batch
            batch = await self._store.batch(leased, state.place, size)
            if state.failures:
                batch = _one_at_a_time(batch, leased.wanted)
            idle = not batch.waiting and not batch.fresh
            results = await BatchSender(self._means, leased, receiver, secrets, batch).run()
            if results.lost:
                return
            last = idle or turn == _BATCHES_PER_LEASE - 1 or not self._means.may_go_on()
            state = self._came_to(leased, state, batch, results, last)
            if not await self._store.served(leased, state):
                return
            self._tell(leased, state, results)
            if state.release:
                return

    def _came_to(
        self, leased: Leased, before: Served, batch: Batch, results: Results, last: bool
    ) -> Served:
        policy = self._policy
        failing_since, failures = before.failing_since, before.failures
        pause_code, look_after = None, 0.0
        if results.delivered:
            failing_since, failures = None, 0
        elif results.tried:
            failing_since, failures = failing_since or batch.now, failures + 1
            look_after = policy.look_after(failures, leased.subscription_id.int)
            if results.retry_after is not None:
                asked = min(results.retry_after, policy.retry_after_seconds_max)
                look_after = max(look_after, asked)
            if (batch.now - failing_since).total_seconds() >= policy.pause_after_seconds:
                pause_code = "failing_for_long"
        if results.gone:
            pause_code = "receiver_gone"
        return Served(
            place=batch.fresh[-1].place if batch.fresh else before.place,
            accepted=results.accepted,
            notes=results.notes,
            delivered=results.delivered > 0,
            failing_since=failing_since,
            failures=failures,
            last_code=results.code,
            look_after_seconds=look_after,
            pause_code=pause_code,
            release=last or look_after > 0 or pause_code is not None,
        )

    async def _hindered(self, leased: Leased, code: str) -> None:
        """What this worker cannot do is no fault of the receiver: look again later, and say so."""
        served = Served(
            leased.place,
            failing_since=leased.failing_since or leased.now,
            failures=leased.failures,
            last_code=code,
            look_after_seconds=self._policy.look_seconds_max,
        )
        subscription = str(leased.subscription_id)
        _log.warning(
            "nothing can be delivered for subscription %s by this worker: %s",
            subscription,
            code,
            extra=event(
                "subscription_hindered", subscription_id=subscription, code=code, seldom=code
            ),
        )
        try:
            await self._store.served(leased, served)
        except Exception as problem:
            _failed(leased, problem)

    def _tell(self, leased: Leased, served: Served, results: Results) -> None:
        subscription = str(leased.subscription_id)
        for outcome, count in (
            ("accepted", results.delivered),
            ("refused", results.tried - results.delivered),
        ):
            for _ in range(count):
                self._counts(outcome)
        for note in results.notes:
            if note.dead_at is not None:
                self._counts("dead")
                _log.warning(
                    "event %d of effect %s is a dead letter of subscription %s (%s)",
                    note.sequence,
                    note.effect_id,
                    subscription,
                    note.code,
                    extra=event(
                        "event_given_up",
                        subscription_id=subscription,
                        effect_id=str(note.effect_id),
                        sequence=note.sequence,
                        code=note.code,
                    ),
                )
        if served.pause_code is not None:
            self._counts("paused")
            _log.error(
                "subscription %s is paused (%s); `effect-broker subscriptions resume` ends it",
                subscription,
                served.pause_code,
                extra=event(
                    "subscription_paused", subscription_id=subscription, code=served.pause_code
                ),
            )


def _failed(leased: Leased, problem: Exception) -> None:
    subscription, kind = str(leased.subscription_id), type(problem).__name__
    _log.warning(
        "deliveries of subscription %s have stopped: %s",
        subscription,
        kind,
        extra=event("deliveries_failed", subscription_id=subscription, problem=kind, seldom=kind),
    )


def _one_at_a_time(batch: Batch, wanted: EventFilter) -> Batch:
    """Leave one event to be tried; what the filter leaves out before it costs the receiver nothing.

    What is behind something noted is noted too and not tried, so that may be taken along.
    """
    if batch.waiting:
        return Batch(batch.waiting[:1], batch.blocked, (), batch.now)
    fresh = []
    for found in batch.fresh:
        fresh.append(found)
        if wanted.takes(found) and found.place.effect_id not in batch.blocked:
            break
    return Batch((), batch.blocked, fresh, batch.now)
