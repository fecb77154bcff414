"""More workers: how many effects a second, and what each effect costs whom.

The backlog is there before the workers are; the figures are of its drain. What is written per
effect is counted by the server over submit and drain together.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from bench.machine import cpu_of, cpu_seconds
from bench.parts import Findings, Ground, Table
from bench.report import Ratio
from bench.stage import Stage

WORKERS = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class Drained:
    """One backlog. Processor times are milliseconds for each effect.

    Attributes:
        per_second: effects, from the first receipt to the last.
        worker_ms: of all workers.
        postgres_ms: of the server, all sessions included, while it drains.
        target_ms: of the target.
        busy_cores: all of these, over the time of the drain.
        submit_api_ms: of the API for each submit.
        submit_postgres_ms: of the server for each submit.
        submits_per_second: with eight callers, while no worker runs.
        commits: transactions for each effect, submit and drain, polls and heartbeats included.
        wal_kb: written ahead for each effect, in kB.
        wal_syncs: how often that was flushed to the disk for each effect.
    """

    per_second: float
    worker_ms: float
    postgres_ms: float
    target_ms: float
    busy_cores: float
    submit_api_ms: float
    submit_postgres_ms: float
    submits_per_second: float
    commits: float
    wal_kb: float
    wal_syncs: float


def _written(stage: Stage) -> tuple[float, float, float]:
    (row,) = stage.rows(
        "SELECT (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()),"
        " pg_current_wal_insert_lsn() - '0/0'::pg_lsn,"
        " (SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal')"
    )
    return float(row[0]), float(row[1]), float(row[2] or 0)


def _drained(stage: Stage, tool: str, workers: int, prefix: str, count: int) -> Drained:
    assert stage.api is not None
    before = _written(stage)
    # Ready and stopped: all begin at the same moment, and their start is in no figure.
    started = stage.start_workers(workers)
    for worker in started:
        worker.pause()
    api, postgres = cpu_seconds(stage.api.pid), stage.postgres_cpu()
    submits = stage.submits(tool, prefix, count)
    api = cpu_seconds(stage.api.pid) - api
    submitted = stage.postgres_cpu() - postgres
    pids = [worker.pid for worker in started]
    used = [cpu_of(pids), stage.postgres_cpu(), cpu_seconds(stage.target.pid)]
    for worker in started:
        worker.resume()
    stage.wait_idle()
    now = [cpu_of(pids), stage.postgres_cpu(), cpu_seconds(stage.target.pid)]
    used = [after - earlier for after, earlier in zip(now, used, strict=True)]
    stage.kill_workers()
    after = _written(stage)
    assert stage.settled(prefix) == count, "not all are final"
    at = stage.receipts_at(prefix)
    seconds = at[-1] - at[0]
    return Drained(
        per_second=(count - 1) / seconds,
        worker_ms=used[0] / count * 1000,
        postgres_ms=used[1] / count * 1000,
        target_ms=used[2] / count * 1000,
        busy_cores=sum(used) / seconds,
        submit_api_ms=api / count * 1000,
        submit_postgres_ms=submitted / count * 1000,
        submits_per_second=submits.per_second,
        commits=(after[0] - before[0]) / count,
        wal_kb=(after[1] - before[1]) / count / 1000,
        wal_syncs=(after[2] - before[2]) / count,
    )


def _middle(rounds: Sequence[Drained]) -> dict[str, float]:
    shown = [asdict(one) for one in rounds]
    return {name: median(one[name] for one in shown) for name in shown[0]}


def measure(ground: Ground) -> Findings:
    """Drain the same backlog with one, two and four workers."""
    found: dict[int, list[Drained]] = {workers: [] for workers in WORKERS}
    with Stage(ground, "bench_scale_out") as stage:
        tool = stage.offer("scale")
        for number in range(ground.rounds):
            for workers in WORKERS:
                print(f"  round {number + 1}, {workers} workers", file=sys.stderr, flush=True)
                # Not for each worker: the backlog is what is alike.
                count = ground.count(400, 40)
                found[workers].append(_drained(stage, tool, workers, f"r{number}w{workers}", count))
        seen = stage.target.seen("scale")
        total = ground.count(400, 40) * ground.rounds * len(WORKERS)
        assert (seen.requests, seen.keys) == (total, total), f"the target has seen {seen}"
    middles = {workers: _middle(rounds) for workers, rounds in found.items()}
    return Findings(_ratios(middles), _figures(middles), _tables(middles))


def _ratios(middles: dict[int, dict[str, float]]) -> list[Ratio]:
    one = middles[1]["per_second"]
    return [
        Ratio(
            f"workers_{workers}_to_1",
            f"effects/s of {workers} workers, to one",
            middles[workers]["per_second"] / one,
        )
        for workers in WORKERS[1:]
    ]


def _figures(middles: dict[int, dict[str, float]]) -> dict[str, Any]:
    return {
        f"workers_{workers}": {name: round(value, 2) for name, value in shown.items()}
        for workers, shown in middles.items()
    }


def _tables(middles: dict[int, dict[str, float]]) -> list[Table]:
    drained = [
        [
            str(workers),
            f"{m['per_second']:.0f}",
            f"{m['worker_ms']:.1f}",
            f"{m['postgres_ms']:.1f}",
            f"{m['target_ms']:.1f}",
            f"{m['busy_cores']:.2f}",
        ]
        for workers, m in middles.items()
    ]
    one = {
        name: median(m[name] for m in middles.values())
        for name in (
            "submits_per_second",
            "submit_api_ms",
            "submit_postgres_ms",
            "commits",
            "wal_kb",
            "wal_syncs",
        )
    }
    return [
        Table(
            "A backlog, by workers",
            (
                "workers",
                "effects/s",
                "ms of workers per effect",
                "ms of Postgres per effect",
                "ms of the target per effect",
                "cores busy with it",
            ),
            drained,
            "Processor time from /proc, all on one machine: where the cores that are busy come"
            " near those that there are, more workers cannot give more. The API rests meanwhile.",
        ),
        Table(
            "What one effect costs besides",
            ("what", "each"),
            [
                ["submits/s, eight callers, no worker", f"{one['submits_per_second']:.0f}"],
                ["API, for a submit", f"{one['submit_api_ms']:.1f} ms of processor"],
                ["Postgres, for a submit", f"{one['submit_postgres_ms']:.1f} ms of processor"],
                ["transactions, submit and run", f"{one['commits']:.1f}"],
                ["flushes of the WAL, submit and run", f"{one['wal_syncs']:.1f}"],
                ["WAL, submit and run", f"{one['wal_kb']:.1f} kB"],
            ],
            "Polls, heartbeats and repair of the workers are in it, full-page images after a"
            " checkpoint too. Flushes are shared by those who commit at the same moment.",
        ),
    ]
