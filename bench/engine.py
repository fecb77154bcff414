"""The broker beside the limit of the database and beside bare DBOS, in one run."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

from bench import limit
from bench.bare_dbos import BareDbos
from bench.broker import Measured
from bench.parts import Findings, Ground, Table
from bench.report import Ratio
from bench.rounds import Load, Timed, middle

SUBMIT_CLIENTS = (1, 16, 64)

_NAMES = {
    "commits": "bare durable commits",
    "by_hand": "two commits and a POST, by hand",
    "submit": "submits over HTTP",
    "replay": "replays over HTTP",
    "bare_dbos": "bare DBOS, three steps, a backlog",
    "broker": "effect-broker, a backlog",
    "bare_dbos_one": "bare DBOS, one at a time",
    "broker_one": "effect-broker, one at a time",
}


class _Run:
    """The parts that are compared, and what they have shown so far."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._limit_url = ground.database("bench_limit")
        self._broker = Measured(
            ground.directory / "broker", ground.database("bench_broker"), ground.poll_seconds
        )
        self._bare_url = ground.database("bench_bare")
        self._timed: dict[str, list[Timed]] = {}

    def measure(self) -> None:
        """Take all measurements, round by round."""
        rounds = self._ground.rounds
        try:
            self._broker.prepare()
            limit.run(self._prepared())
            with BareDbos(
                self._bare_url, self._broker.target_url, self._ground.poll_seconds
            ) as bare:
                for number in range(rounds):
                    print(f"  round {number + 1} of {rounds}", file=sys.stderr, flush=True)
                    self._round(bare, f"r{number}")
        finally:
            self._broker.close()

    async def _prepared(self) -> Timed:
        await limit.prepare(self._limit_url)
        return Timed(0.0, 0.0)

    def _round(self, bare: BareDbos, prefix: str) -> None:
        count, broker, url = self._ground.count, self._broker, self._limit_url
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
        drained = count(800)
        self._rate("bare_dbos", bare.drain(f"{prefix}d", drained))
        broker.settle_rest()
        self._rate("broker", broker.drain(f"{prefix}d", drained))
        singles = count(100)
        self._note("bare_dbos_one", bare.one_by_one(f"{prefix}o", singles))
        self._note("broker_one", broker.one_by_one(f"{prefix}o", singles))

    def _note(self, name: str, timed: Timed) -> None:
        self._timed.setdefault(name, []).append(timed)

    def _rate(self, name: str, per_second: float) -> None:
        self._note(name, Timed(per_second, 1000 / per_second))

    def ratios(self) -> list[Ratio]:
        """Return what was compared."""
        m = {name: middle(rounds) for name, rounds in self._timed.items()}
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
            for name, rounds in self._timed.items()
        }


def measure(ground: Ground) -> Findings:
    """Measure the limit, bare DBOS and the broker side by side."""
    run = _Run(ground)
    run.measure()
    figures = run.figures()
    rows = []
    for name, shown in figures.items():
        kind, _, clients = name.rpartition("_")
        words = f"{_NAMES[kind]}, {clients} clients" if clients.isdigit() else _NAMES[name]
        rows.append([words, f"{shown['per_second']:.0f}", f"{shown['median_ms']:.1f}"])
    table = Table("The limit, bare DBOS and the broker", ("what", "per second", "median ms"), rows)
    return Findings(run.ratios(), figures, (table,))
