"""A thousand targets that take their time: what one worker holds, and what that costs it."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

from bench.counting_target import Seen
from bench.machine import Memory, cpu_seconds, greatest_memory, memory
from bench.parts import Findings, Ground, Table
from bench.report import Ratio
from bench.stage import Stage
from effect_broker.config import WORKER_CONCURRENCY
from effect_broker.hosting import TENANT_SHARE
from effect_broker.proof.broker import wait_until

# What a worker may take with so many in its hands.
MEMORY_MB_MAX = 250.0
_IN_FLIGHT = 1_000
_HELD_SECONDS = 20.0
_RAMP_SECONDS = 300.0
_FILES = 1024
# No attempt may end by its deadline while the others are still on their way to the target.
_DEADLINE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Held:
    """One worker with so many dispatches at a target that is silent.

    Attributes:
        count: how many.
        idle: its memory before the first.
        full: its memory while it held all for a while.
        sessions: of the worker at the database, while it held all.
        ramp_seconds: from the first request at the target until all were there.
        held_cpu: the worker's processor time while it held all, of one core.
        settle_seconds: from the answers until all had a receipt.
        peak: the greatest memory in its whole life, answers and receipts included (RSS).
        target: what the target has counted.
    """

    count: int
    idle: Memory
    full: Memory
    sessions: int
    ramp_seconds: float
    held_cpu: float
    settle_seconds: float
    peak: float
    target: Seen


@contextmanager
def _usual_files() -> Iterator[None]:
    """Let processes start under the soft limit of open files that many systems have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(_FILES, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _sessions(stage: Stage) -> int:
    return int(
        stage.value(
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
            " AND usename = 'effect_broker_worker'"
        )
    )


def _hold(ground: Ground) -> Held:
    count = ground.count(_IN_FLIGHT, 50)
    settings = {
        "EFFECT_BROKER_WORKER_CONCURRENCY": str(count),
        "EFFECT_BROKER_TENANT_CONCURRENCY": str(count),
    }
    with Stage(ground, "bench_in_flight", settings) as stage:
        tool = stage.offer(
            "slow", attempt_deadline_seconds=_DEADLINE_SECONDS, key_retention_seconds=86_400
        )
        stage.target.behave("slow", held=True)
        with _usual_files():
            (worker,) = stage.start_workers(1)
        idle = memory(worker.pid)
        worker.pause()
        stage.submits(tool, "slow", count)
        worker.resume()
        wait_until(lambda: stage.target.seen("slow").now or None, "the first is at the target")
        began = perf_counter()
        wait_until(
            lambda: stage.target.seen("slow").now == count or None,
            f"{count} are at the target",
            _RAMP_SECONDS,
        )
        ramp = perf_counter() - began
        used, began = cpu_seconds(worker.pid), perf_counter()
        threading.Event().wait(_HELD_SECONDS * min(1.0, max(0.2, ground.scale)))
        held_cpu = (cpu_seconds(worker.pid) - used) / (perf_counter() - began)
        full, sessions = memory(worker.pid), _sessions(stage)
        began = perf_counter()
        stage.target.behave("slow")
        stage.wait_idle()
        settle = perf_counter() - began
        assert stage.settled("slow") == count, "not all are final"
        peak = greatest_memory(worker.pid)
        seen = stage.target.seen("slow")
        assert (seen.requests, seen.keys) == (count, count), f"the target has seen {seen}"
        return Held(count, idle, full, sessions, ramp, held_cpu, settle, peak, seen)


def _shown(held: Memory) -> str:
    return f"{held.rss:.0f} and {held.pss:.0f} MB"


def measure(ground: Ground) -> Findings:
    """Let one worker hold them all; once, since nothing in it is a race.

    Raises:
        AssertionError: it takes more memory than it may, or an effect was sent twice.
    """
    held = _hold(ground)
    each = (held.full.pss - held.idle.pss) * 1000 / held.count
    assert held.peak < MEMORY_MB_MAX, f"the worker has taken {held.peak:.0f} MB"
    share = int(WORKER_CONCURRENCY * TENANT_SHARE)
    rows = [
        ["held at once, as the target counts", f"{held.target.greatest_at_once}"],
        ["requests at the target, distinct keys", f"{held.target.requests}, {held.target.keys}"],
        ["memory of the idle worker, RSS and PSS", _shown(held.idle)],
        ["memory while it holds all, RSS and PSS", _shown(held.full)],
        ["greatest memory until all are settled, RSS", f"{held.peak:.0f} MB"],
        ["one held effect", f"{each:.0f} kB"],
        ["database sessions of the worker", f"{held.sessions}"],
        ["processor while it holds all, of one core", f"{held.held_cpu * 100:.1f} %"],
        ["from the first request to the last", f"{held.ramp_seconds:.1f} s"],
        ["from the answers to the last receipt", f"{held.settle_seconds:.1f} s"],
    ]  # fmt: skip
    note = (
        f"`EFFECT_BROKER_WORKER_CONCURRENCY={held.count}` and"
        f" `EFFECT_BROKER_TENANT_CONCURRENCY={held.count}`, all of one tenant. By default a worker"
        f" holds {WORKER_CONCURRENCY}, of one tenant {share}. The bar is {MEMORY_MB_MAX:.0f} MB."
        f" It is started under a soft limit of {_FILES:,} open files, which it raises."
    )
    figures = {
        "held": held.count,
        "idle_pss_mb": round(held.idle.pss, 1),
        "full_rss_mb": round(held.full.rss, 1),
        "full_pss_mb": round(held.full.pss, 1),
        "peak_rss_mb": round(held.peak, 1),
        "kb_each": round(each, 1),
        "sessions": held.sessions,
        "ramp_seconds": round(held.ramp_seconds, 2),
        "settle_seconds": round(held.settle_seconds, 2),
    }
    ratio = Ratio(
        "in_flight_memory_to_bar",
        f"memory of a worker that holds {_IN_FLIGHT:,}, to {MEMORY_MB_MAX:.0f} MB",
        held.peak / MEMORY_MB_MAX,
        more_is_better=False,
    )
    table = Table("Slow targets, one worker", ("what", "measured"), rows, note)
    return Findings((ratio,) if ground.scale >= 1 else (), figures, (table,))
