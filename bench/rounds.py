"""How a figure is taken: closed loops of so many clients, several rounds, medians."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter


@dataclass(frozen=True, slots=True)
class Timed:
    """One measurement.

    Attributes:
        per_second: how many were done in a second.
        median_ms: how long one took.
    """

    per_second: float
    median_ms: float


@dataclass(frozen=True, slots=True)
class Load:
    """So many clients, each with one request at a time, until `count` are done."""

    clients: int
    count: int

    async def run(self, works: Sequence[Callable[[], Awaitable[None]]]) -> Timed:
        """Run the load; each client has its own work."""
        left = iter(range(self.count))
        took: list[float] = []

        async def client(work: Callable[[], Awaitable[None]]) -> None:
            for _ in left:
                began = perf_counter()
                await work()
                took.append(perf_counter() - began)

        began = perf_counter()
        await asyncio.gather(*(client(work) for work in works))
        return Timed(self.count / (perf_counter() - began), median(took) * 1000)


def off_beat(number: int, poll_seconds: float) -> float:
    """Return how long to rest before the next of single effects, so that they come at every moment
    of a poll alike: each golden share of an interval lies farthest from those before it."""
    return poll_seconds * (number * 0.618034 % 1.0)


def middle(rounds: Sequence[Timed]) -> Timed:
    """The median round, of rate and of time each."""
    return Timed(median(r.per_second for r in rounds), median(r.median_ms for r in rounds))
