"""What one effect costs, counted: statements, commits, WAL and processor time, beside bare DBOS.

Counts hold on a machine that does much else at the same time, which times do not. They are the
server's own: statements that processes have sent (what a function runs inside is none), and the
commits and bytes that stand in the write-ahead log. What a worker does anyway, its polls and
heartbeats, is measured while it has nothing to do, and is left out of what an effect costs.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from statistics import median
from time import monotonic
from typing import Any

import psycopg

from bench.bare_dbos import BareDbos
from bench.machine import cpu_of_family, cpu_seconds, parent_of
from bench.parts import Findings, Ground, Table
from bench.report import Ratio
from bench.stage import FINAL, Stage
from effect_broker.faultpoints import ENV_FAULT_DIR
from effect_broker.proof.broker import wait_until

_KIND = "hot"
_IDLE_SECONDS = 6.0
_SETTLE_SECONDS = 600.0
_CALLERS = 4
# The first effects of a worker open sessions and prepare statements.
_WARM = 40

# The comment keeps our own looks out of what is counted.
_COUNTED = """
SELECT /* bench */
       (SELECT coalesce(sum(s.calls), 0) FROM pg_stat_statements AS s
        WHERE s.toplevel AND s.query NOT LIKE '%bench%'
          AND s.dbid = (SELECT oid FROM pg_database WHERE datname = current_database())),
       pg_current_wal_flush_lsn()::text
"""
_WRITTEN = """
SELECT /* bench */ %s::pg_lsn - %s::pg_lsn,
       (SELECT coalesce(sum(w.count), 0) FROM pg_get_wal_stats(%s, %s, true) AS w
        WHERE w."resource_manager/record_type" = 'Transaction/COMMIT')
"""
_BROKER_LEFT = (
    f"SELECT /* bench */ count(*) FROM effect_broker.effect_intents WHERE state NOT IN {FINAL}"
)
_DBOS_LEFT = "SELECT /* bench */ count(*) FROM dbos.workflow_status WHERE status <> 'SUCCESS'"


@dataclass(frozen=True, slots=True)
class Cost:
    """What some work costs, or a second without work. Processor times are milliseconds.

    Attributes:
        statements: that processes have sent, BEGIN and COMMIT among them.
        commits: transactions that have written something.
        wal_bytes: written ahead.
        process_ms: of the process that does the work: the API or the worker, or who enqueues.
        server_ms: of the database server, all sessions included.
    """

    statements: float
    commits: float
    wal_bytes: float
    process_ms: float
    server_ms: float

    def less(self, other: Cost, times: float = 1.0) -> Cost:
        """Return it without so many times another."""
        return Cost(*(getattr(self, f.name) - getattr(other, f.name) * times for f in fields(self)))

    def by(self, count: float) -> Cost:
        """Return the share of one of `count`."""
        return Cost(*(getattr(self, f.name) / count for f in fields(self)))


class _Meter:
    """Reads what has been used so far in one database, and by one process."""

    def __init__(self, url: str, left: str) -> None:
        self._left = left
        self._connection = psycopg.connect(url, autocommit=True)
        for extension in (b"pg_stat_statements", b"pg_walinspect"):
            self._connection.execute(b"CREATE EXTENSION IF NOT EXISTS " + extension)
        self._server = parent_of(self._connection.info.backend_pid)

    def _row(self, query: str, *values: object) -> tuple[Any, ...]:
        row = self._connection.execute(query.encode(), values or None).fetchone()
        assert row is not None
        return row

    def _used(self, pid: int) -> tuple[Cost, str]:
        """Return the totals, without what the log tells, and where the log is now."""
        statements, at = self._row(_COUNTED)
        process, server = cpu_seconds(pid), cpu_of_family(self._server)
        return Cost(float(statements), 0.0, 0.0, process * 1000, server * 1000), at

    def wait_done(self) -> None:
        """Wait until nothing is left to do; a look at a time, so as not to take part."""
        wait_until(lambda: True if self._row(self._left)[0] == 0 else None, "done", _SETTLE_SECONDS)

    def over(self, pid: int, work: Callable[[], object]) -> tuple[Cost, float]:
        """Return what the work costs, and its seconds."""
        (before, start), began = self._used(pid), monotonic()
        work()
        (after, end), seconds = self._used(pid), monotonic() - began
        written, commits = self._row(_WRITTEN, end, start, start, end) if start != end else (0, 0)
        used = after.less(before)
        return replace(used, wal_bytes=float(written), commits=float(commits)), seconds

    def idle_second(self, pid: int) -> Cost:
        """Return what a second without work costs."""
        cost, seconds = self.over(pid, lambda: threading.Event().wait(_IDLE_SECONDS))
        return cost.by(seconds)

    def drained(self, pid: int, idle: Cost, count: int) -> Cost:
        """Let a stopped worker go on; return what each of its `count` effects costs."""

        def work() -> None:
            os.kill(pid, signal.SIGCONT)
            self.wait_done()

        cost, seconds = self.over(pid, work)
        return cost.less(idle, seconds).by(count)

    def close(self) -> None:
        """End the session."""
        self._connection.close()


class _Shown:
    """The costs of one side by name, round by round."""

    def __init__(self) -> None:
        self._costs: dict[str, list[Cost]] = {}

    def note(self, name: str, cost: Cost) -> None:
        self._costs.setdefault(name, []).append(cost)

    def middle(self, name: str) -> Cost:
        """Return the median of each figure."""
        costs = self._costs[name]
        return Cost(*(median(getattr(cost, f.name) for cost in costs) for f in fields(Cost)))


def _broker_round(stage: Stage, meter: _Meter, tool: str, name: str, count: int) -> _Shown:
    """Take the broker's side of one round."""
    assert stage.api is not None
    shown = _Shown()
    (worker,) = stage.start_workers(1)
    stage.submits(tool, f"{name}w", _WARM)
    meter.wait_done()
    idle = meter.idle_second(worker.pid)
    shown.note("idle", idle)
    worker.pause()
    for kind, again in (("submit", False), ("replay", True)):
        cost, _ = meter.over(
            stage.api.pid,
            lambda again=again: stage.submits(  # type: ignore[misc]
                tool, name, count, callers=_CALLERS, again=again
            ),
        )
        shown.note(kind, cost.by(count))
    shown.note("work", meter.drained(worker.pid, idle, count))
    stage.kill_workers()
    return shown


def _dbos_round(bare: BareDbos, meter: _Meter, name: str, count: int) -> _Shown:
    """Take bare DBOS's side of one round; its callers enqueue by themselves."""

    def enqueue(prefix: str, count: int) -> None:
        for number in range(count):
            bare.enqueue(f"{prefix}-{number}")

    shown = _Shown()
    bare.start()
    enqueue(f"{name}w", _WARM)
    meter.wait_done()
    idle = meter.idle_second(bare.pid)
    shown.note("idle", idle)
    os.kill(bare.pid, signal.SIGSTOP)
    cost, _ = meter.over(os.getpid(), lambda: enqueue(name, count))
    shown.note("submit", cost.by(count))
    shown.note("work", meter.drained(bare.pid, idle, count))
    bare.stop()
    return shown


@contextmanager
def _sides(ground: Ground) -> Iterator[tuple[Stage, str, BareDbos, str]]:
    bare_url = ground.database("bench_hot_bare")
    with Stage(ground, "bench_hot") as stage:
        # Its fault points look for files at every turn; in production none is armed.
        stage.broker.stack.environment.pop(ENV_FAULT_DIR, None)
        stage.restart_api()
        tool = stage.offer(_KIND)
        target_url = f"{stage.target.url}/objects/{_KIND}"
        with BareDbos(bare_url, target_url, ground.poll_seconds) as bare:
            yield stage, tool, bare, bare_url


def measure(ground: Ground) -> Findings:
    """Count what an effect costs on either side."""
    count = ground.count(300, 20)
    broker, dbos = _Shown(), _Shown()
    with _sides(ground) as (stage, tool, bare, bare_url):
        ours, theirs = _Meter(stage.url, _BROKER_LEFT), _Meter(bare_url, _DBOS_LEFT)
        for number in range(ground.rounds):
            print(f"  round {number + 1} of {ground.rounds}", file=sys.stderr, flush=True)
            _add(dbos, _dbos_round(bare, theirs, f"r{number}", count))
            _add(broker, _broker_round(stage, ours, tool, f"r{number}", count))
        ours.close()
        theirs.close()
    return _findings(broker, dbos)


def _add(shown: _Shown, taken: _Shown) -> None:
    for name, costs in taken._costs.items():
        for cost in costs:
            shown.note(name, cost)


_ROWS = (
    ("a submit over HTTP", "submit", True),
    ("the same submit again", "replay", True),
    ("an effect, carried out", "work", True),
    ("a second of an idle worker", "idle", True),
    ("bare DBOS: a workflow enqueued", "submit", False),
    ("bare DBOS: a workflow of three steps, carried out", "work", False),
    ("bare DBOS: a second of an idle worker", "idle", False),
)


def _findings(broker: _Shown, dbos: _Shown) -> Findings:
    rows: list[Sequence[str]] = []
    figures: dict[str, Any] = {}
    for words, name, ours in _ROWS:
        cost = (broker if ours else dbos).middle(name)
        figures[f"{'broker' if ours else 'bare_dbos'}_{name}"] = {
            key: round(value, 2) for key, value in asdict(cost).items()
        }
        rows.append(
            [
                words,
                f"{cost.statements:.1f}",
                f"{cost.commits:.2f}",
                f"{cost.wal_bytes / 1000:.1f}",
                f"{cost.process_ms:.1f}",
                f"{cost.server_ms:.1f}",
            ]
        )
    work, plain = broker.middle("work"), dbos.middle("work")
    ratios = [
        Ratio(f"hot_{name}_to_bare_dbos", f"{words}, to bare DBOS", mine / other, False)
        for name, words, mine, other in (
            ("statements", "statements of an effect", work.statements, plain.statements),
            (
                "worker_cpu",
                "worker's processor time of an effect",
                work.process_ms,
                plain.process_ms,
            ),
            (
                "cpu",
                "processor time of an effect, worker and server",
                work.process_ms + work.server_ms,
                plain.process_ms + plain.server_ms,
            ),
        )
    ]
    table = Table(
        "What one effect costs",
        ("what", "statements", "commits", "WAL kB", "process ms", "server ms"),
        rows,
        "Commits are transactions that have written something. The process is the API for a submit,"
        " the worker for an effect; for bare DBOS it is the caller and the worker. What a worker"
        " does each second anyway is left out of its effects.",
    )
    return Findings(ratios, figures, (table,))
