"""The numbers that only the database knows: what is in doubt, what is due, who beats.

They are read at a scrape, at most once in `FRESH_SECONDS` for all scrapes of a process together,
and are the same from every process. What a read costs has a bound (`ledger_numbers` in SQL). Where
the database does not answer they are left out and `effect_broker_ledger_up` is 0: an old number
that looks like a new one would be worse than none.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from prometheus_client.core import GaugeMetricFamily

from effect_broker.log_events import event
from effect_broker.protocol.ports import StoreError

_log = logging.getLogger(__name__)

FRESH_SECONDS: Final = 5.0
# A scraper waits ten seconds by default, and wants the rest of the numbers in any case.
ANSWER_SECONDS: Final = 3.0
# Counting ends here; more than that is a catastrophe whatever its size.
COUNT_MAX: Final = 10_000
# Tools that are told apart: those with the oldest doubts.
TOOLS_MAX: Final = 50
OTHER: Final = "other"

_PREFIX: Final = "effect_broker_ledger_"
# Measure in SQL: name, what it means, and the label of the column `state`.
_PLAIN: Final = {
    "alerts": (
        "alerted_effects",
        "Final effects whose target says something else; they stay until it is acknowledged.",
        "alert",
    ),
    "due": ("due_effects", "Effects whose next action is due now.", ""),
    "due_oldest_seconds": (
        "due_oldest_seconds",
        "How long the next action of the longest due effect is overdue.",
        "",
    ),
    "queue_depth": (
        "queue_depth",
        "Runs that wait for a worker; missing while the engine's schema is away.",
        "",
    ),
    "workers": ("workers", "Workers that have not ended; a dead one stays for a day.", "state"),
    "heartbeat_age_seconds": (
        "heartbeat_age_seconds",
        "Age of the latest heartbeat of any worker; missing where there is none.",
        "",
    ),
    "holds": ("holds", "Holds in force; they stop dispatches.", "kind"),
    "subscriptions": ("subscriptions", "Subscriptions to events.", "state"),
    "event_deliveries": (
        "event_deliveries",
        "Events that a subscription has not accepted: waiting for another try, or dead letters.",
        "state",
    ),
    "event_backlog": (
        "event_backlog",
        "Events that subscriptions have still to read, a thousand of each at most.",
        "",
    ),
    "event_oldest_seconds": (
        "event_oldest_seconds",
        "Age of the oldest event that a subscription in force has not accepted.",
        "",
    ),
    "dispatch_halted": (
        "dispatch_halted",
        "1 after a restore or a failover, until the lost interval is recorded.",
        "",
    ),
}
_IN_DOUBT: Final = {
    "in_doubt": (
        "in_doubt_effects",
        "Effects whose outcome is not known, or that a person has to look at.",
    ),
    "in_doubt_oldest_seconds": (
        "in_doubt_oldest_seconds",
        "Time since the submit of the oldest of them.",
    ),
}
# Those that are 0 where there is no row.
_ZERO: Final = {"alerts": ("late_contradiction", "duplicate_detected"), "workers": ("live",),
                "holds": ("paused", "frozen"), "due_oldest_seconds": ("",),
                "subscriptions": ("active", "failing", "paused"),
                "event_deliveries": ("waiting", "dead"), "event_oldest_seconds": ("",)}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LedgerNumber:
    """One row of `ledger_numbers`."""

    measure: str
    tool: str | None
    safety: str | None
    state: str | None
    value: float


@dataclass(frozen=True, slots=True)
class LedgerNumbers:
    """What one read has found; `numbers` is None where the database did not answer."""

    numbers: tuple[LedgerNumber, ...] | None


class LedgerReads(Protocol):
    """What is asked of the store."""

    async def ledger_numbers(self, count_max: int) -> Sequence[LedgerNumber]:
        """Read the numbers over all tenants.

        Raises:
            StoreError.
        """


class FreshLedger:
    """The numbers of a moment ago, read once for all that ask meanwhile.

    Args:
        boot_seconds: the process's clock.
    """

    def __init__(self, reads: LedgerReads, boot_seconds: Callable[[], float]) -> None:
        self._reads = reads
        self._boot_seconds = boot_seconds
        self._reading = asyncio.Lock()
        self._read: tuple[float, LedgerNumbers] | None = None

    async def numbers(self) -> LedgerNumbers:
        """Return numbers that are `FRESH_SECONDS` old at most; raises nothing."""
        async with self._reading:
            now = self._boot_seconds()
            if self._read is None or now - self._read[0] >= FRESH_SECONDS:
                self._read = (now, await self._asked())
            return self._read[1]

    async def _asked(self) -> LedgerNumbers:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return LedgerNumbers(tuple(await self._reads.ledger_numbers(COUNT_MAX)))
        except (StoreError, TimeoutError) as problem:
            kind = type(problem).__name__
            _log.warning(
                "the numbers of the ledger: %s",
                kind,
                extra=event("ledger_unread", problem=kind, seldom=kind),
            )
            return LedgerNumbers(None)


class LedgerCollector:
    """Writes the latest numbers as Prometheus wants them."""

    def __init__(self) -> None:
        self.numbers = LedgerNumbers(None)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the families."""
        known = self.numbers.numbers
        yield GaugeMetricFamily(
            f"{_PREFIX}up",
            "Whether the database has answered this scrape.",
            float(known is not None),
        )
        if known is None:
            return
        yield GaugeMetricFamily(
            f"{_PREFIX}count_max", "Where counting ends; more is shown as this.", float(COUNT_MAX)
        )
        by_measure: defaultdict[str, list[LedgerNumber]] = defaultdict(list)
        for number in known:
            by_measure[number.measure].append(number)
        yield from _doubts(by_measure)
        for measure, (name, text, label) in _PLAIN.items():
            family = GaugeMetricFamily(_PREFIX + name, text, labels=[label] if label else [])
            values = dict.fromkeys(_ZERO.get(measure, ()), 0.0)
            values |= {number.state or "": number.value for number in by_measure[measure]}
            for state, value in values.items():
                family.add_metric([state] if label else [], value)
            yield family


def _doubts(by_measure: dict[str, list[LedgerNumber]]) -> Iterator[GaugeMetricFamily]:
    """The numbers by tool: those of the tools with the oldest doubts, and all others as one."""
    oldest: defaultdict[str, float] = defaultdict(float)
    for number in by_measure["in_doubt_oldest_seconds"]:
        tool = number.tool or OTHER
        oldest[tool] = max(oldest[tool], number.value)
    named = set(sorted(oldest, key=lambda tool: (-oldest[tool], tool))[:TOOLS_MAX])
    for measure, (name, text) in _IN_DOUBT.items():
        values: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
        for number in by_measure[measure]:
            tool = number.tool if number.tool and number.tool in named else OTHER
            key = (tool, number.safety or "", number.state or "")
            values[key].append(number.value)
        family = GaugeMetricFamily(_PREFIX + name, text, labels=["tool", "safety", "state"])
        fold = sum if measure == "in_doubt" else max
        for labels, found in sorted(values.items()):
            family.add_metric(labels, fold(found))
        yield family
