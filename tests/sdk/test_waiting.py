"""Waiting follows what the effect says of its next action, by hours as by seconds.

Time is virtual here, since some of these brokers look again in a day. What a real one does with a
wait is in `test_outcomes` and `test_repeating`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from effect_broker import AsyncBroker, Effect, NotYet, RateLimited, RequestRefused, Unavailable
from effect_broker.sdk.errors import Body
from effect_broker.sdk.patience import POLL_SECONDS
from effect_broker.sdk.transport import Deed, Home, Wish

EFFECT_ID = UUID("0c0e3a1f-7a64-8e0c-9b3f-2d5a4d1c8e77")
BEGIN = datetime(2026, 11, 29, 12, tzinfo=UTC)
HOUR = 3600.0


class VirtualClock:
    """Time that passes when somebody sleeps or is held."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def boot_seconds(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


class ScriptedBroker:
    """Answers looks from what `standing` says of the moment; holds a poll unless it drains."""

    def __init__(
        self, clock: VirtualClock, due: float | None, settles_at: float, *, drains: bool = False
    ) -> None:
        self.clock = clock
        self.due = due
        self.settles_at = settles_at
        self.drains = drains
        self.looks: list[tuple[float, float]] = []
        self.refusal: Callable[[int, float], Exception | None] = lambda look, wait: None

    async def effect(self, effect_id: UUID, wait_seconds: float) -> Body:
        self.looks.append((self.clock.now, wait_seconds))
        refusal = self.refusal(len(self.looks), wait_seconds)
        if refusal is not None:
            raise refusal
        if not self.drains and self.clock.now < self.settles_at:
            self.clock.now = min(self.clock.now + wait_seconds, self.settles_at)
        return self._body()

    def _body(self) -> dict[str, Any]:
        settled = self.clock.now >= self.settles_at
        due = None if self.due is None else (BEGIN + timedelta(seconds=self.due)).isoformat()
        return {
            "effect_id": str(EFFECT_ID),
            "operation_key": "order:1",
            "tool": "acme.charge",
            "contract": {"name": "acme", "version": "1"},
            "request_hash": "5d" * 32,
            "safety": "unsafe",
            "guarantee": "none",
            "state": "manual_review" if settled else "retryable",
            "final": False,
            "reason": "backoff",
            "version": 1,
            "next_action_at": due,
            "created_at": BEGIN.isoformat(),
            "updated_at": BEGIN.isoformat(),
            "waits_for_person": settled,
            "alert": None,
            "now": (BEGIN + timedelta(seconds=self.clock.now)).isoformat(),
        }

    async def tool(self, name: str) -> Body:
        raise AssertionError(name)

    async def submit(self, body: bytes) -> Body:
        self.looks.append((self.clock.now, 0.0))
        refusal = self.refusal(len(self.looks), 0.0)
        if refusal is not None:
            raise refusal
        return self._body()

    async def receipt(self, effect_id: UUID) -> Body:
        raise NotImplementedError

    async def resolve(self, effect_id: UUID, body: bytes) -> Body:
        raise NotImplementedError

    async def wish(self, effect_id: UUID, wish: Wish) -> Body:
        raise NotImplementedError

    async def unresolved(self, query: Mapping[str, str]) -> Body:
        raise NotImplementedError

    async def home(self) -> Home | None:
        return None

    async def elect(self, body: bytes) -> Body:
        raise NotImplementedError

    async def attempt(self, effect_id: UUID, ordinal: int, deed: Deed, body: bytes) -> Body:
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing is held."""


def scripted(
    due: float | None, settles_at: float, *, drains: bool = False
) -> tuple[AsyncBroker, ScriptedBroker, VirtualClock]:
    clock = VirtualClock()
    transport = ScriptedBroker(clock, due, settles_at, drains=drains)
    patience = timedelta(seconds=60)
    return AsyncBroker.over(transport, patience=patience, clock=clock), transport, clock


async def test_what_is_due_soon_is_polled_without_a_pause() -> None:
    broker, transport, clock = scripted(due=30.0, settles_at=100.0)
    assert (await broker.wait(EFFECT_ID)).waits_for_person
    assert transport.looks == [(0.0, POLL_SECONDS), (60.0, POLL_SECONDS)]
    assert sum(clock.slept) == 0
    assert clock.now == 100.0


async def test_what_is_due_in_a_day_is_not_polled_for_a_day() -> None:
    broker, transport, _ = scripted(due=24 * HOUR, settles_at=24 * HOUR + 5)
    await broker.wait(EFFECT_ID)
    pauses = [after - before for (before, _), (after, _) in _pairs(transport.looks)]
    # Once in a quarter of an hour at least, and no faster than half of that until it comes near.
    assert max(pauses) <= 900 + POLL_SECONDS
    assert len(transport.looks) < 24 * 8 + 20
    # Those who wait for the same moment do not come at the same moment.
    assert len({round(pause, 3) for pause in pauses[:20]}) == 20


async def test_news_before_the_next_action_is_heard_in_time() -> None:
    """A webhook or a person ends the wait long before the broker itself would act."""
    broker, _, clock = scripted(due=24 * HOUR, settles_at=2 * HOUR)
    await broker.wait(EFFECT_ID)
    assert clock.now <= 2 * HOUR + 900


async def test_a_broker_that_answers_at_once_is_not_asked_without_a_pause() -> None:
    broker, transport, clock = scripted(due=10.0, settles_at=300.0, drains=True)
    await broker.wait(EFFECT_ID)
    assert 300.0 <= clock.now <= 306.0
    assert len(transport.looks) < 300 / 2.5 + 10


async def test_a_crowd_of_waits_ends_no_wait_and_is_asked_again_without_holding() -> None:
    broker, transport, clock = scripted(due=10.0, settles_at=400.0)
    busy = RateLimited("busy", {"code": "rate_limited", "retry_after_seconds": 5})
    transport.refusal = lambda look, wait: busy if wait > 0 and transport.clock.now < 300 else None
    await broker.wait(EFFECT_ID)
    assert clock.now == 400.0
    refused = [(at, wait) for at, wait in transport.looks if wait > 0 and at < 300]
    for (before, _), (after, wait) in _pairs(transport.looks):
        if (before, POLL_SECONDS) in refused:
            assert wait == 0
            assert after - before == pytest.approx(5)


async def test_the_deadline_ends_the_wait_with_what_was_seen_last() -> None:
    broker, transport, clock = scripted(due=24 * HOUR, settles_at=24 * HOUR)
    outcome = await broker.result(EFFECT_ID, deadline=timedelta(hours=1))
    assert isinstance(outcome, NotYet)
    assert clock.now == pytest.approx(HOUR, abs=1.0)
    assert transport.looks[-1][1] == 0


@pytest.mark.parametrize("deadline", [datetime(2026, 1, 1), "soon", 5])
async def test_a_deadline_without_a_zone_or_a_unit_is_refused(deadline: Any) -> None:
    broker, transport, _ = scripted(due=None, settles_at=0.0)
    with pytest.raises(RequestRefused, match=r"a datetime with a time zone.*/deadline"):
        await broker.wait(EFFECT_ID, deadline=deadline)
    assert transport.looks == []


async def test_an_outage_ends_a_wait_by_patience_and_with_a_deadline_by_the_deadline() -> None:
    gone = Unavailable("gone")
    broker, transport, clock = scripted(due=10.0, settles_at=500.0)
    transport.refusal = lambda look, wait: gone if look > 1 else None
    with pytest.raises(Unavailable):
        await broker.wait(EFFECT_ID)
    assert 60 < clock.now <= 60 + 60
    broker, transport, clock = scripted(due=10.0, settles_at=500.0)
    transport.refusal = lambda look, wait: gone if 20 < clock.now < 400 else None
    effect = await broker.wait(EFFECT_ID, deadline=timedelta(seconds=1000))
    assert effect.waits_for_person
    assert clock.now == 500.0


async def test_a_submit_is_repeated_in_growing_pauses_and_as_the_broker_asks() -> None:
    broker, transport, clock = scripted(due=10.0, settles_at=500.0)
    asks = Unavailable("full", {"code": "storage_unavailable", "retry_after_seconds": 20})
    transport.refusal = lambda look, wait: asks if look == 7 else Unavailable("gone")
    with pytest.raises(Unavailable):
        await broker.submit("acme.charge", {}, operation_key="order:1")
    assert clock.now < 60
    assert clock.slept[6] == 20
    for step, pause in enumerate(clock.slept[:6]):
        whole = min(0.1 * 2**step, 5.0)
        assert whole / 2 <= pause <= whole


async def test_a_given_effect_is_returned_as_it_was_when_nothing_is_heard() -> None:
    broker, transport, _ = scripted(due=10.0, settles_at=500.0)
    effect: Effect = await broker.get(EFFECT_ID)
    transport.refusal = lambda look, wait: Unavailable("gone")
    assert await broker.result(effect, deadline=timedelta(0)) == NotYet(effect)
    with pytest.raises(Unavailable):
        await broker.result(EFFECT_ID, deadline=timedelta(0))


def _pairs(
    looks: list[tuple[float, float]],
) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    return list(pairwise(looks))
