"""What a load needs, worked out from the figures of this machine; docs/sizing.md reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import Any

from bench.parts import Table
from effect_broker.config import API_POOL_SIZE, WORKER_SESSIONS

RATES = (50, 1_000, 10_000)
# A process is one core, and one that is always busy has no room for a burst.
_BUSY_SHARE = 0.7
_DAY_SECONDS = 86_400
# By the stages of pruning: what is gone after the first day, and what stays for good.
_ENGINE = "dbos."
_KEPT = ("effect_broker.effect_intents", "effect_broker.effect_receipt")


def table(parts: Mapping[str, Any]) -> Table | None:
    """Return the table of what the rates need; None while there is nothing to work it out from.

    Args:
        parts: results by name, as they are kept.
    """
    if "scale_out" not in parts or "growth" not in parts:
        return None
    one = parts["scale_out"]["figures"]["workers_1"]
    sizes = parts["growth"]["figures"]["bytes_each"]
    needs: list[tuple[str, Callable[[int], str]]] = [
        ("cores of workers", lambda r: _cores(r * one["worker_ms"])),
        ("worker processes, 70 % busy", lambda r: _processes(r * one["worker_ms"])),
        ("cores of the API", lambda r: _cores(r * one["submit_api_ms"])),
        ("API processes, 70 % busy", lambda r: _processes(r * one["submit_api_ms"])),
        (
            "cores of Postgres",
            lambda r: _cores(r * (one["postgres_ms"] + one["submit_postgres_ms"])),
        ),
        ("transactions/s", lambda r: f"{r * one['commits']:,.0f}"),
        ("flushes of the WAL/s, shared as measured", lambda r: f"{r * one['wal_syncs']:,.0f}"),
        ("database sessions", lambda r: f"{_sessions(r, one):,}"),
        ("WAL, MB/s", lambda r: f"{r * one['wal_kb'] / 1000:,.1f}"),
        ("WAL a day, GB", lambda r: _gigabytes(r * one["wal_kb"] * 1000)),
        ("stored a day, GB", lambda r: _gigabytes(r * sum(sizes.values()))),
        ("of these the engine's rows, gone after a day", lambda r: _share(r, sizes, (_ENGINE,))),
        ("of these kept for good, GB a day", lambda r: _share(r, sizes, _KEPT)),
    ]
    rows = [[what, *(shown(rate) for rate in RATES)] for what, shown in needs]
    on = parts["scale_out"]["machine"]
    return Table(
        "Effects per second, and what they need",
        ("what", *(f"{rate:,}/s" for rate in RATES)),
        rows,
        f"Multiplied from one worker on {on['cores']} cores of {on['cpu']}, the target on the same"
        " machine: a rate that was run is what scale_out shows, all else is arithmetic. Effects of"
        " one attempt, small arguments and answers.",
    )


def _cores(milliseconds: float) -> str:
    return f"{milliseconds / 1000:,.1f}"


def _processes(milliseconds: float) -> str:
    return f"{_count(milliseconds):,}"


def _count(milliseconds: float) -> int:
    return max(1, ceil(milliseconds / 1000 / _BUSY_SHARE))


def _sessions(rate: int, one: Mapping[str, float]) -> int:
    workers = _count(rate * one["worker_ms"])
    return workers * WORKER_SESSIONS + _count(rate * one["submit_api_ms"]) * API_POOL_SIZE


def _gigabytes(bytes_per_second: float) -> str:
    return f"{bytes_per_second * _DAY_SECONDS / 1e9:,.0f}"


def _share(rate: int, sizes: Mapping[str, float], names: tuple[str, ...]) -> str:
    return _gigabytes(rate * sum(size for name, size in sizes.items() if name.startswith(names)))
