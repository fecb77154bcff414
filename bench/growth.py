"""A thousand, a hundred thousand, a million effects stored: does an effect still cost the same?

The history is a bulk copy of real effects (`bench.filling`). What an effect touches is counted by
the server, statement by statement (`bench.statements`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

from psycopg import Connection

from bench.filling import GrowingTable, connected, fill, growing_tables, sizes
from bench.parts import Findings, Ground, Table
from bench.report import Ratio
from bench.stage import Stage
from bench.statements import (
    PlanLog,
    Read,
    Touched,
    begin_counting,
    counted,
    explain_all,
    one_line,
    scans_of,
)

SIZES = (1_000, 100_000, 1_000_000)
_PATTERN = 40
_WORK = 300
_BACKLOG = 5_000
_SINGLES = 20
_EXPLAINED = 20
_WARM = 30
# A tree of a thousand times as many rows is a level or two higher, and an effect goes down some
# dozens of trees. What grows with the history itself grows a thousandfold.
GROWN_MAX = 1.5
# Of one statement; below so many pages a level more is a larger share than that.
_STATEMENT_GROWN_MAX = 1.6
_FEW_PAGES = 12.0
# Statements of which there are fewer for each effect belong to polls and repair.
_HOT = 0.5
_SHOWN = 14


@dataclass(frozen=True, slots=True)
class Measured:
    """One size.

    Attributes:
        stored: effects in the tables.
        per_second: of a backlog with one worker.
        submits_per_second: with eight callers.
        median_ms: from submit to settled, one at a time.
        pages: touched for each effect by all that came from outside, submit and run.
        replay_pages: touched for each submit that was repeated.
        statements: what was counted, by its id and by whether it came from outside.
        reads: what each statement reads.
    """

    stored: int
    per_second: float
    submits_per_second: float
    median_ms: float
    pages: float
    replay_pages: float
    statements: Mapping[tuple[int, bool], Touched]
    reads: Mapping[int, Read] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Beside:
    """A backlog at the greatest size.

    Attributes:
        count: effects of it.
        hot_pages: of the statements of each effect.
        other_pages: of polls and repair, over the effects.
    """

    count: int
    hot_pages: float
    other_pages: float


class _Growth:
    """A broker whose history grows."""

    def __init__(self, ground: Ground, stage: Stage, connection: Connection[Any]) -> None:
        self._stage, self._connection = stage, connection
        self._work = ground.count(_WORK, 40)
        self._backlog = ground.count(_BACKLOG, 300)
        self._tool = stage.offer("growth")
        self._stored = 0

    def pattern(self) -> list[GrowingTable]:
        """Let the broker carry out the effects that the history is copied from."""
        self._stage.start_workers(1)
        self._stage.submits(self._tool, "pattern", _PATTERN)
        self._stage.wait_idle()
        self._stage.kill_workers()
        rows = self._connection.execute(
            "SELECT effect_id FROM effect_broker.effect_intents WHERE state = 'succeeded'"
        ).fetchall()
        assert len(rows) == _PATTERN, f"{len(rows)} of {_PATTERN} succeeded"
        return growing_tables(self._connection, [row[0] for row in rows])

    def fill_to(self, tables: Sequence[GrowingTable], size: int) -> float:
        """Make the history so long; return how many seconds that took."""
        began = perf_counter()
        fill(self._connection, tables, self._stored + 1, size)
        self._stored = size
        return perf_counter() - began

    def measure(self, explain: bool) -> Measured:
        """Do the same work as at every size, in processes that have just started."""
        stage, work = self._stage, self._work
        stage.restart_api()
        (worker,) = stage.start_workers(1)
        name = f"s{self._stored}"
        stage.submits(self._tool, f"{name}:warm", _WARM)
        stage.wait_idle()
        worker.pause()
        begin_counting(self._connection)
        submits = stage.submits(self._tool, f"{name}:work", work)
        worker.resume()
        stage.wait_idle()
        statements = {(one.query_id, one.top): one for one in counted(self._connection)}
        at = stage.receipts_at(f"{name}:work")
        begin_counting(self._connection)
        stage.submits(self._tool, f"{name}:work", work, again=True)
        replays = [one for one in counted(self._connection) if one.top and one.calls >= work / 2]
        for _ in range(_SINGLES):
            stage.submits(self._tool, f"{name}:one:{_}", 1, callers=1)
            stage.wait_idle()
        singles = stage.milliseconds(f"{name}:one")
        stage.kill_workers()
        reads = self._explained(name) if explain else {}
        pages = sum(one.pages for one in statements.values() if one.top) / work
        return Measured(
            stored=self._stored,
            per_second=(work - 1) / (at[-1] - at[0]),
            submits_per_second=submits.per_second,
            median_ms=median(singles),
            pages=pages,
            replay_pages=sum(one.pages for one in replays) / work,
            statements=statements,
            reads=reads,
        )

    def beside_a_backlog(self) -> Beside:
        """Count again while thousands wait, which the statistics know nothing of."""
        stage, count = self._stage, self._backlog
        (worker,) = stage.start_workers(1)
        stage.submits(self._tool, "backlog:warm", _WARM)  # plans that are kept are made now
        stage.wait_idle()
        worker.pause()
        begin_counting(self._connection)
        stage.submits(self._tool, "backlog:work", count)
        worker.resume()
        stage.wait_idle()
        top = [one for one in counted(self._connection) if one.top]
        stage.kill_workers()
        hot = sum(one.pages for one in top if one.calls >= _HOT * count)
        return Beside(count, hot / count, (sum(one.pages for one in top) - hot) / count)

    def _explained(self, name: str) -> dict[int, Read]:
        """Do some of the work with every plan written down."""
        stage = self._stage
        explain_all(self._connection, True)
        log = PlanLog(self._connection)
        stage.restart_api()
        stage.start_workers(1)
        stage.submits(self._tool, f"{name}:explained", _EXPLAINED)
        stage.wait_idle()
        stage.kill_workers()
        explain_all(self._connection, False)
        stage.restart_api()
        return log.reads()


def measure(ground: Ground) -> Findings:
    """Grow the history, and do the same work at each of its sizes.

    Raises:
        AssertionError: a statement reads a growing table from end to end, or touches more pages
            the longer the history is.
    """
    found: list[Measured] = []
    filled: list[float] = []
    stored: list[dict[str, int]] = []
    with Stage(ground, "bench_growth") as stage, connected(stage.url) as connection:
        growth = _Growth(ground, stage, connection)
        tables = growth.pattern()
        wanted = [ground.count(size, 100) for size in SIZES]
        for size in wanted:
            filled.append(growth.fill_to(tables, size))
            print(f"  {size:,} stored after {filled[-1]:.0f} s", file=sys.stderr, flush=True)
            stored.append(sizes(connection, tables))
            found.append(growth.measure(explain=size == wanted[-1]))
        beside = growth.beside_a_backlog()
    growing = [table.name for table in tables]
    judged = scans_of(found[-1].reads.values(), growing) + _grown(
        found, beside, growth_work(ground)
    )
    bytes_each = {
        name: (size - stored[-2].get(name, 0)) / (wanted[-1] - wanted[-2])
        for name, size in stored[-1].items()
    }
    findings = _findings(found, beside, bytes_each, growing, growth_work(ground))
    if judged:
        for table in findings.tables:
            print(table.title, *("  " + " | ".join(row) for row in table.rows), sep="\n",
                  file=sys.stderr)  # fmt: skip
        lines = "\n".join(judged)
        raise AssertionError(f"the longer the history, the dearer an effect:\n{lines}")
    return findings


def growth_work(ground: Ground) -> int:
    """Return how many effects are the work of each size."""
    return ground.count(_WORK, 40)


def _hot_pages(one: Measured, work: int) -> float:
    hot = (each.pages for each in one.statements.values() if each.top and each.calls >= _HOT * work)
    return sum(hot) / work


def _grown(found: Sequence[Measured], beside: Beside, work: int) -> list[str]:
    """Return a line for each figure that grows with the history, or with a backlog."""
    first, last = found[0], found[-1]
    lines = [
        f"pages for each {what}: {before:.0f} before, {now:.0f} now"
        for what, before, now in (
            ("effect", first.pages, last.pages),
            ("replay", first.replay_pages, last.replay_pages),
            (f"effect beside {beside.count:,}", _hot_pages(last, work), beside.hot_pages),
        )
        if now > before * GROWN_MAX
    ]
    for key, now in last.statements.items():
        before = first.statements.get(key)
        if before is None:
            continue
        # The engine fetches what it claims in one call, however many that are: what grows with the
        # history grows for each call and for each effect too.
        more = all(
            later > max(earlier * _STATEMENT_GROWN_MAX, earlier + _FEW_PAGES)
            for earlier, later in (
                (before.each, now.each),
                (before.pages / work, now.pages / work),
            )
        )
        if more:
            lines.append(
                f"{before.each:.0f} pages a call before, {now.each:.0f} now: {one_line(now.text)}"
            )
    return lines


def _findings(
    found: Sequence[Measured],
    beside: Beside,
    bytes_each: Mapping[str, float],
    growing: Sequence[str],
    work: int,
) -> Findings:
    first, last = found[0], found[-1]
    ratios = [
        Ratio(
            "growth_pages",
            f"pages for an effect with {last.stored:,} stored, to {first.stored:,}",
            last.pages / first.pages,
            more_is_better=False,
        ),
        Ratio(
            "growth_rate",
            f"effects/s with {last.stored:,} stored, to {first.stored:,}",
            last.per_second / first.per_second,
        ),
    ]
    figures = {
        f"stored_{one.stored}": {
            "per_second": round(one.per_second, 1),
            "submits_per_second": round(one.submits_per_second, 1),
            "median_ms": round(one.median_ms, 1),
            "pages": round(one.pages, 1),
            "replay_pages": round(one.replay_pages, 1),
        }
        for one in found
    }
    figures["bytes_each"] = {name: round(size, 1) for name, size in bytes_each.items()}
    return Findings(
        ratios,
        figures,
        (
            _speeds(found),
            _besides(last, beside, work),
            _pages(found, work),
            _plans(last, growing),
            _bytes(bytes_each),
        ),
    )


def _speeds(found: Sequence[Measured]) -> Table:
    rows = [
        [
            f"{one.stored:,}",
            f"{one.per_second:.0f}",
            f"{one.submits_per_second:.0f}",
            f"{one.median_ms:.0f}",
            f"{one.pages:.0f}",
            f"{one.replay_pages:.0f}",
        ]
        for one in found
    ]
    return Table(
        "The same work beside a longer history",
        (
            "effects stored",
            "effects/s, one worker",
            "submits/s",
            "one effect, ms",
            "pages each",
            "a replay",
        ),
        rows,
        "The history is settled effects of the same tenant, copied by set-based SQL from real ones"
        " in every table that has rows of an effect, the engine's included, then `VACUUM ANALYZE`."
        " Pages are those of tables and indexes (8 kB each) that the statements of a submit and its"
        " run touch, cached or not. The part fails where they grow by half, or a statement reads a"
        " growing table from end to end.",
    )


def _besides(last: Measured, beside: Beside, work: int) -> Table:
    hot = _hot_pages(last, work)
    rows = [
        [f"{work:,}", f"{hot:.0f}", f"{last.pages - hot:.0f}"],
        [f"{beside.count:,}", f"{beside.hot_pages:.0f}", f"{beside.other_pages:.0f}"],
    ]
    return Table(
        f"A backlog, with {last.stored:,} stored",
        ("effects that wait", "pages of an effect's own statements", "of polls and repair"),
        rows,
        "The statistics of the tables were taken while nothing waited. The part fails where an"
        " effect's own statements touch half more. Polls read what waits, and cost the more the"
        " more that is; their pages are divided among the effects.",
    )


def _bytes(bytes_each: Mapping[str, float]) -> Table:
    rows = [[f"`{name}`", f"{size:,.0f}"] for name, size in sorted(bytes_each.items())]
    tables = sum(size for name, size in bytes_each.items() if ":" not in name)
    rows.append(["all tables", f"{tables:,.0f}"])
    rows.append(["all indexes", f"{sum(bytes_each.values()) - tables:,.0f}"])
    return Table(
        "Bytes for each stored effect",
        ("table, or table: index", "bytes"),
        rows,
        "Of the last nine tenths of the history, packed as a bulk load packs it. A live table has"
        " dead versions and half-empty pages besides, until a vacuum.",
    )


def _pages(found: Sequence[Measured], work: int) -> Table:
    last = found[-1]
    hot = [one for one in last.statements.values() if one.top and one.calls >= _HOT * work]
    others = [one for one in last.statements.values() if one.top and one.calls < _HOT * work]
    rows = []
    for one in (
        sorted(hot, key=lambda s: -s.pages)[:_SHOWN]
        + sorted(others, key=lambda s: -s.each)[: _SHOWN // 2]
    ):
        shown = [size.statements.get((one.query_id, one.top)) for size in found]
        rows.append(
            [
                f"`{one_line(one.text)}`",
                f"{one.calls / work:.1f}",
                *("" if each is None else f"{each.each:.1f}" for each in shown),
            ]
        )
    return Table(
        "Pages of one call",
        ("statement", "calls for an effect", *(f"{size.stored:,}" for size in found)),
        rows,
        "The statements of each effect that touch most, then the dearest of polls and repair. The"
        " pages of a function are those of all that it does.",
    )


def _plans(last: Measured, growing: Sequence[str]) -> Table:
    reads = [read for read in last.reads.values() if read.tables & set(growing)]
    shown = {
        (one_line(read.text), ", ".join(sorted(read.indexes)), ", ".join(sorted(read.whole)))
        for read in reads
    }
    return Table(
        f"What reads a growing table, and by which indexes, with {last.stored:,} stored",
        ("statement", "indexes", "read from end to end"),
        [[f"`{text}`", indexes, whole] for text, indexes, whole in sorted(shown)],
        "Every statement that was planned while effects were submitted and carried out, with those"
        " inside of functions, those of foreign keys, and those of polls and repair.",
    )
