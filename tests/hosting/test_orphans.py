"""How often one orphan is handed back, over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from effect_broker.repair import (
    ORPHAN_AFTER_SECONDS,
    ORPHAN_MISSING_SECONDS,
    Orphans,
    RunHost,
    RunStore,
)


class Queue:
    """A store and a host at once, whose runs break whenever they are claimed."""

    def __init__(self, *run_ids: str) -> None:
        self.pending = list(run_ids)
        self.running = frozenset[str]()
        self.resumed: list[str] = []

    async def pending_runs(self, executor_id: str, older_than_seconds: float) -> Sequence[str]:
        return self.pending

    async def resume(self, run_ids: list[str]) -> None:
        self.resumed += run_ids


class Clock:
    """The boot clock, moved by the loop that looks once a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def ticks(queue: Queue, orphans: Orphans, clock: Clock, count: int) -> None:
    """Let the loop look `count` times, a second apart."""
    for _ in range(count):
        await orphans.resume(cast(RunStore, queue), cast(RunHost, queue), "own")
        clock.now += 1.0


LOOKS = int(ORPHAN_MISSING_SECONDS) + 1


async def test_an_orphan_is_handed_back_soon_and_a_running_run_never() -> None:
    queue, clock = Queue("lost.1", "busy.1"), Clock()
    queue.running = frozenset({"busy.1"})
    await ticks(queue, Orphans(clock), clock, LOOKS)
    assert queue.resumed == ["lost.1"]


async def test_a_run_that_is_just_being_written_down_as_ended_is_left_alone() -> None:
    """Of a backlog there is one at every look, and never the same."""
    queue, clock = Queue(), Clock()
    orphans = Orphans(clock)
    for number in range(60):
        queue.pending = [f"ending-{number}.1", f"ending-{number + 1}.1"]
        await ticks(queue, orphans, clock, 1)
    assert queue.resumed == []


async def test_a_run_that_was_seen_running_in_between_is_not_missing() -> None:
    queue, clock = Queue("busy.1"), Clock()
    orphans = Orphans(clock)
    for _ in range(10):
        queue.running = frozenset()
        await ticks(queue, orphans, clock, LOOKS - 1)
        queue.running = frozenset({"busy.1"})
        await ticks(queue, orphans, clock, 1)
    assert queue.resumed == []


async def test_a_run_that_stays_an_orphan_is_handed_back_less_and_less_often() -> None:
    queue, clock = Queue("broken.1"), Clock()
    await ticks(queue, Orphans(clock), clock, 3600)
    # 3, 6, 12, … seconds apart, at most ten minutes.
    assert 8 <= len(queue.resumed) <= 16


async def test_a_run_that_becomes_an_orphan_again_much_later_is_handed_back_soon() -> None:
    queue, clock = Queue("lost.1"), Clock()
    orphans = Orphans(clock)
    await ticks(queue, orphans, clock, LOOKS)
    assert queue.resumed == ["lost.1"]
    await ticks(queue, orphans, clock, int(ORPHAN_AFTER_SECONDS))
    assert queue.resumed == ["lost.1"] * 2
    clock.now = 10_000.0
    queue.pending = []
    await ticks(queue, orphans, clock, 1)
    queue.pending = ["lost.1"]
    await ticks(queue, orphans, clock, LOOKS + int(ORPHAN_AFTER_SECONDS))
    assert queue.resumed == ["lost.1"] * 4
