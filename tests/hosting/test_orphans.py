"""How often one orphan is handed back, over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from effect_broker.repair import ORPHAN_AFTER_SECONDS, Orphans, RunHost, RunStore


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


async def ticks(queue: Queue, orphans: Orphans, count: int) -> None:
    """Let the loop look `count` times."""
    for _ in range(count):
        await orphans.resume(cast(RunStore, queue), cast(RunHost, queue), "own")


async def test_an_orphan_is_handed_back_at_once_and_a_running_run_never() -> None:
    queue = Queue("lost.1", "busy.1")
    queue.running = frozenset({"busy.1"})
    await ticks(queue, Orphans(lambda: 0.0), 1)
    assert queue.resumed == ["lost.1"]


async def test_a_run_that_stays_an_orphan_is_handed_back_less_and_less_often() -> None:
    now = 0.0
    queue = Queue("broken.1")
    orphans = Orphans(lambda: now)
    for _ in range(3600):
        await ticks(queue, orphans, 1)
        now += 1.0
    # 3, 6, 12, … seconds apart, at most ten minutes.
    assert 8 <= len(queue.resumed) <= 16


async def test_a_run_that_becomes_an_orphan_again_much_later_is_handed_back_at_once() -> None:
    now = 0.0
    queue = Queue("lost.1")
    orphans = Orphans(lambda: now)
    await ticks(queue, orphans, 5)
    assert queue.resumed == ["lost.1"]
    now = ORPHAN_AFTER_SECONDS
    await ticks(queue, orphans, 5)
    assert queue.resumed == ["lost.1"] * 2
    now = 10_000.0
    await ticks(queue, orphans, 1)
    now += ORPHAN_AFTER_SECONDS
    await ticks(queue, orphans, 1)
    assert queue.resumed == ["lost.1"] * 4
