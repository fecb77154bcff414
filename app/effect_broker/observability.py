"""What a process tells of itself: its numbers, its spans, and the listener for the former."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from effect_broker.config import Settings
from effect_broker.metrics import Metrics
from effect_broker.metrics_ledger import FreshLedger
from effect_broker.store.observing import Observers, StoreObserver
from effect_broker.tracing import Spans, TraceparentReads, exported


@dataclass(frozen=True, slots=True)
class Observed:
    """The parts that watch one process; `observer` is for its stores."""

    metrics: Metrics
    spans: Spans
    observer: Observers

    def reading(self, reads: TraceparentReads) -> Spans:
        """Return the spans of a process that runs steps."""
        return self.spans.reading(reads)

    async def own_page(self, accept: str) -> tuple[bytes, str]:
        """Return the numbers of this process alone."""
        return self.metrics.render(accept)

    async def page(self, ledger: FreshLedger, accept: str) -> tuple[bytes, str]:
        """Return the numbers of this process and those of the ledger."""
        return self.metrics.render(accept, await ledger.numbers())


@asynccontextmanager
async def observed(settings: Settings, process: str, instance: str) -> AsyncIterator[Observed]:
    """Give the parts of a process: `api`, `worker`, `reconciler` or `drill`.

    Raises:
        ConfigurationProblem: tracing is on and cannot be.
    """
    metrics = Metrics(process)
    async with exported(process, instance, on=settings.tracing) as spans:
        watching: list[StoreObserver] = [metrics, spans] if spans.tracing else [metrics]
        yield Observed(metrics, spans, Observers(watching))


@asynccontextmanager
async def served_alone(settings: Settings, seen: Observed) -> AsyncIterator[None]:
    """Serve the numbers of a process without an API, if a port is set.

    Raises:
        ConfigurationProblem: nothing can listen there.
    """
    if settings.metrics_port is None:
        yield
        return
    from effect_broker.metrics_listener import listening

    async with listening(settings.metrics_host, settings.metrics_port, seen.own_page):
        yield


@asynccontextmanager
async def served_beside(
    settings: Settings, seen: Observed, ledger: FreshLedger
) -> AsyncIterator[bool]:
    """Serve the numbers of an API on a port of their own, if one is set; true if they belong on
    the API's own port.

    Raises:
        ConfigurationProblem: nothing can listen there.
    """
    if settings.metrics_port is None:
        yield settings.metrics
        return
    from effect_broker.metrics_listener import listening

    page = partial(seen.page, ledger)
    async with listening(settings.metrics_host, settings.metrics_port, page):
        yield False
