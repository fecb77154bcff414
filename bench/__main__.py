"""``python -m bench``: what the broker costs, as ratios of one run; see docs/benchmarks.md.

Every round takes each measurement once, one after the other, so that whatever else the machine does
meets both sides alike. Printed are medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg

from bench import limit, report
from bench.bare_dbos import BareDbos
from bench.broker import Measured
from bench.report import Ratio
from bench.rounds import Load, Timed, middle
from effect_broker.config import QUEUE_POLL_SECONDS
from effect_broker.postgres.embedded import EmbeddedPostgres

RESULT = Path("docs/benchmarks.json")
CHART = Path("docs/benchmarks.svg")
SUBMIT_CLIENTS = (1, 16, 64)


def database(url: str, name: str) -> str:
    """Make a database; return its URL."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


class Run:
    """One run: the parts that it measures, and what they have shown so far."""

    def __init__(self, url: str, directory: Path, poll_seconds: float, scale: float) -> None:
        self._scale = scale
        self._limit_url = database(url, "bench_limit")
        self._broker = Measured(directory / "broker", database(url, "bench_broker"), poll_seconds)
        self._bare_url = database(url, "bench_bare")
        self._poll = poll_seconds
        self.timed: dict[str, list[Timed]] = {}
        self.rates: dict[str, list[float]] = {}

    def measure(self, rounds: int) -> None:
        """Take all measurements `rounds` times."""
        self._broker.prepare()
        limit.run(self._prepared())
        try:
            with BareDbos(self._bare_url, self._broker.target_url, self._poll) as bare:
                for number in range(rounds):
                    print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
                    self._round(bare, f"r{number}")
        finally:
            self._broker.close()

    async def _prepared(self) -> Timed:
        await limit.prepare(self._limit_url)
        return Timed(0.0, 0.0)

    def _count(self, usual: int) -> int:
        return max(10, int(usual * self._scale))

    def _round(self, bare: BareDbos, prefix: str) -> None:
        count, broker, url = self._count, self._broker, self._limit_url
        for clients in (1, 16):
            load = Load(clients, count(1000))
            self._note(f"commits_{clients}", limit.run(limit.commits(url, load)))
            load = Load(clients, count(400))
            by_hand = limit.run(limit.by_hand(url, broker.target_url, load))
            self._note(f"by_hand_{clients}", by_hand)
        for clients in SUBMIT_CLIENTS:
            load = Load(clients, count(250))
            name = f"{prefix}s{clients}"
            self._note(f"submit_{clients}", broker.submits(load, name))
            self._note(f"replay_{clients}", broker.submits(load, name, again=True))
        drained = count(300)
        self._rate("bare_dbos", bare.drain(f"{prefix}d", drained))
        broker.settle_rest()
        self._rate("broker", broker.drain(f"{prefix}d", drained))
        singles = count(40)
        self._note("bare_dbos_one", bare.one_by_one(f"{prefix}o", singles))
        self._note("broker_one", broker.one_by_one(f"{prefix}o", singles))

    def _note(self, name: str, timed: Timed) -> None:
        self.timed.setdefault(name, []).append(timed)

    def _rate(self, name: str, per_second: float) -> None:
        self._note(name, Timed(per_second, 1000 / per_second))

    def ratios(self) -> list[Ratio]:
        """Return what was compared."""
        m = {name: middle(rounds) for name, rounds in self.timed.items()}
        found = [
            Ratio(
                "ratio_to_bare_dbos",
                "effects/s of one worker, to bare DBOS",
                m["broker"].per_second / m["bare_dbos"].per_second,
            ),
            Ratio(
                "latency_to_bare_dbos",
                "submit to settled, time to bare DBOS",
                m["broker_one"].median_ms / m["bare_dbos_one"].median_ms,
                more_is_better=False,
            ),
            Ratio(
                "effects_to_by_hand",
                "effects/s of one worker, to 2 commits + POST",
                m["broker"].per_second / m["by_hand_16"].per_second,
            ),
        ]
        for clients in SUBMIT_CLIENTS:
            base = m["commits_1" if clients == 1 else "commits_16"]
            submit, replay = m[f"submit_{clients}"], m[f"replay_{clients}"]
            found.append(
                Ratio(
                    f"submit_{clients}_to_commits",
                    f"submits/s over HTTP, {clients} clients, to commits",
                    submit.per_second / base.per_second,
                )
            )
            found.append(
                Ratio(
                    f"replay_{clients}_to_submit",
                    f"replays/s over HTTP, {clients} clients, to submits",
                    replay.per_second / submit.per_second,
                )
            )
        return found

    def figures(self) -> dict[str, Any]:
        """Return the medians behind the ratios."""
        return {
            name: {key: round(value, 2) for key, value in asdict(middle(rounds)).items()}
            for name, rounds in self.timed.items()
        }


def main() -> int:
    """Run all; exit code 0 also where a ratio got worse, which is printed."""
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the usual counts")
    parser.add_argument(
        "--poll", type=float, default=QUEUE_POLL_SECONDS, help="seconds, both sides"
    )
    parser.add_argument("--keep", action="store_true", help="write JSON and chart into docs")
    asked = parser.parse_args()
    before = json.loads(RESULT.read_text())["ratios"] if RESULT.exists() else {}
    taken_on = report.machine()
    with tempfile.TemporaryDirectory(prefix="bench-", dir="/tmp") as name:
        directory = Path(name)
        directory.chmod(0o755)  # the server's account has to come in
        with EmbeddedPostgres(directory / "home") as server:
            run = Run(server.url, directory, asked.poll, asked.scale)
            run.measure(asked.rounds)
    ratios = run.ratios()
    result = {
        "machine": taken_on,
        "rounds": asked.rounds,
        "scale": asked.scale,
        "poll_seconds": asked.poll,
        "ratios": {ratio.name: round(ratio.value, 3) for ratio in ratios},
        "figures": run.figures(),
    }
    print(json.dumps(result, indent=2))
    for ratio in ratios:
        print(f"{ratio.value:8.2f}  {ratio.text}", file=sys.stderr)
    for line in report.worse(before, ratios):
        print(f"worse than what is committed: {line}", file=sys.stderr)
    if asked.keep:
        RESULT.write_text(json.dumps(result, indent=2) + "\n")
        CHART.write_text(report.chart(ratios))
    return 0


if __name__ == "__main__":
    sys.exit(main())
