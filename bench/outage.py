"""A backlog after an outage of its target: how it drains, what the target sees, who waits for it.

The target is judged by its own counters. The other tenant is judged by the database's clock.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter, time
from typing import Any

from bench.counting_target import CountingTarget, Seen
from bench.parts import Ground
from bench.stage import Stage
from effect_broker.proof.contracts import tuned

BACKLOG = 10_000
_SINGLES = 60
_SINGLE_EVERY_SECONDS = 2.0
_WORKERS = 2
# What the target takes for one charge: then it holds several at once, as targets do.
_TARGET_SECONDS = 0.25
# What the contract permits: below what two workers can do, so that it is what bounds the drain.
_AT_ONCE_MAX = 20
_PER_SECOND_MAX = 50
_BURST_MAX = 5
_LIMITS = {
    "concurrency_max": _AT_ONCE_MAX,
    "per_second_max": _PER_SECOND_MAX,
    "burst_max": _BURST_MAX,
}
# As often as a contract may try, and not so often that the outage is all that there is to do.
_RETRY = {"attempts_max": 100, "backoff_initial_seconds": 2.0, "backoff_cap_seconds": 60.0}


@dataclass(frozen=True, slots=True)
class Drain:
    """The backlog and the other tenant's effects.

    Attributes:
        backlog: effects that waited when the target came back.
        outage_seconds: how long it was away.
        seconds: from its return until the last receipt.
        per_second: the backlog over these.
        seen: what the target has counted since it came back.
        at_once_max: requests that the contract permits at the target at once.
        in_a_second_max: attempts that it permits to begin within a second.
        limits: the same in words.
        idle_ms: the other tenant's effects while there is nothing else.
        beside_ms: the same while the backlog drains.
    """

    backlog: int
    outage_seconds: float
    seconds: float
    per_second: float
    seen: Seen
    at_once_max: int
    in_a_second_max: int
    limits: str
    idle_ms: Sequence[float]
    beside_ms: Sequence[float]


class _Other:
    """Another tenant, with one effect after the other at a target that nothing is wrong with."""

    def __init__(self, stage: Stage, tool: str) -> None:
        self._stage, self._tool = stage, tool
        self._api_key = stage.broker.add_tenant("the-other")
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._count = 0

    def take(self, prefix: str, count: int) -> list[float]:
        """Take so many on an idle broker."""
        for _ in range(count):
            self._submit(prefix)
            self._ended.wait(0.25)
        self._stage.wait_idle()
        return self._stage.milliseconds(prefix)

    def begin(self, prefix: str, every_seconds: float) -> None:
        """Submit until `end`."""

        def run() -> None:
            while not self._ended.wait(every_seconds):
                self._submit(prefix)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        assert self._thread is not None
        self._ended.set()
        self._thread.join()

    def _submit(self, prefix: str) -> None:
        self._count += 1
        self._stage.submits(
            self._tool, f"{prefix}:{self._count}", 1, callers=1, api_key=self._api_key
        )


def drain(ground: Ground) -> Drain:
    """Let a target be away while a backlog is submitted, and come back.

    Raises:
        AssertionError: an effect was lost or sent under two keys, or the target was overloaded.
    """
    count = ground.count(BACKLOG, 200)
    with Stage(ground, "bench_outage") as stage, CountingTarget() as away:
        quick = stage.offer("quick")
        other = _Other(stage, quick)
        stage.start_workers(_WORKERS)
        singles = ground.count(_SINGLES, 10)
        idle = other.take("idle", singles)
        tool = stage.apply(
            tuned("demo-charge-idempotent", away.url, "away", retry=_RETRY, **_SETTINGS)
        )
        away.stop()
        began = perf_counter()
        stage.submits(tool, "away", count)
        away.start()
        away.behave("away", seconds=_TARGET_SECONDS)
        outage, came_back = perf_counter() - began, time()
        backlog = count - stage.settled("away")
        other.begin("beside", _SINGLE_EVERY_SECONDS * min(1.0, max(0.1, ground.scale)))
        _wait_settled(stage, "away", count)
        other.end()
        stage.wait_idle()
        seen = away.seen("away")
        assert seen.greatest_at_once <= _AT_ONCE_MAX, f"overloaded: {seen}"
        assert seen.keys == count == stage.settled("away"), f"{count} submitted, seen: {seen}"
        seconds = stage.receipts_at("away")[-1] - came_back
        return Drain(
            backlog=backlog,
            outage_seconds=outage,
            seconds=seconds,
            per_second=backlog / seconds,
            seen=seen,
            at_once_max=_AT_ONCE_MAX,
            in_a_second_max=_PER_SECOND_MAX + _BURST_MAX,
            limits=(
                f"The contract permits {_AT_ONCE_MAX} attempts at once and {_PER_SECOND_MAX} a"
                f" second with a burst of {_BURST_MAX}. They are counted when they are granted;"
                " the target counts what arrives, and the way there is not always as long."
            ),
            idle_ms=idle,
            beside_ms=stage.milliseconds("beside"),
        )


# The key has to outlive all attempts, and an attempt a busy machine.
_SETTINGS: dict[str, Any] = {
    "key_retention_seconds": 86_400,
    "attempt_deadline_seconds": 20,
    "limits": _LIMITS,
}


def _wait_settled(stage: Stage, prefix: str, count: int) -> None:
    """As `Stage.wait_idle`, while another tenant's effects come and go."""
    pause = threading.Event()
    while stage.settled(prefix) < count:
        pause.wait(2.0)
