"""``python -m bench [PART ...]``: what the broker costs, as ratios; see docs/benchmarks.md.

Each part takes its sides one after the other, round by round, so that whatever else the machine
does meets all of them alike. Printed are medians of the rounds.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import report, sizing
from bench.parts import Findings, Ground
from effect_broker.config import QUEUE_POLL_SECONDS
from effect_broker.postgres.embedded import EmbeddedPostgres

RESULT = Path("docs/benchmarks.json")
CHART = Path("docs/benchmarks.svg")
FIGURES = Path("docs/benchmark-figures.md")
# In the order in which they are run and shown: name, and what it shows.
PARTS = {
    "engine": "the limit of the database, bare DBOS, submits and replays",
    "hot_path": "statements, commits and processor time of each effect, and of bare DBOS",
    "performed": "perform, two bare commits and agent-ledger's empty call",
    "scale_out": "one, two and four workers, and what each effect costs",
    "in_flight": "a thousand slow targets held by one worker",
    "recovery": "killed workers, a crash of the database, a backlog after an outage",
    "growth": "a thousand, a hundred thousand and a million effects stored",
    "peers": "seven peers and the broker at one target, and what a kill leaves behind",
}
# Alike for all parts: counts by statement cost a little, and must not be in some figures only. Only
# statements that come from outside are counted, as by default: to count each one inside a function
# too costs those most that work in functions (`bench.statements` does it, for growth).
_SETTINGS = {"shared_preload_libraries": "pg_stat_statements"}


def measured(name: str, asked: argparse.Namespace) -> Findings:
    """Run one part on a server of its own."""
    print(f"{name}: {PARTS[name]}", file=sys.stderr, flush=True)
    part = importlib.import_module(f"bench.{name}")
    with tempfile.TemporaryDirectory(prefix="bench-", dir="/tmp") as place:
        directory = Path(place)
        directory.chmod(0o755)  # the server's account has to come in
        with EmbeddedPostgres(directory / "home", settings=_SETTINGS) as server:
            ground = Ground(server.url, directory, asked.poll, asked.rounds, asked.scale, server)
            found: Findings = part.measure(ground)
    return found


def kept() -> dict[str, Any]:
    """Return the committed result, if there is one."""
    return dict(json.loads(RESULT.read_text())) if RESULT.exists() else {"parts": {}}


def main() -> int:
    """Run the parts; exit code 0 also where a ratio got worse, which is printed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", epilog="; ".join(f"{k}: {v}" for k, v in PARTS.items())
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the usual counts")
    parser.add_argument(
        "--poll", type=float, default=QUEUE_POLL_SECONDS, help="seconds, both sides"
    )
    parser.add_argument("--keep", action="store_true", help="write JSON, chart and tables to docs")
    asked = parser.parse_args()
    unknown = sorted(set(asked.parts) - set(PARTS))
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are: {', '.join(PARTS)}")
    before = kept()
    now: dict[str, Any] = {}
    for name in asked.parts or PARTS:
        machine = report.machine()
        found = measured(name, asked)
        now[name] = report.part_result(found, machine, asked.rounds, asked.scale, asked.poll)
        for ratio in found.ratios:
            print(f"{ratio.value:8.2f}  {ratio.text}", file=sys.stderr)
        for line in report.worse(before["parts"].get(name, {}), found.ratios):
            print(f"worse than what is committed: {line}", file=sys.stderr)
    print(json.dumps(now, indent=2))
    if asked.keep:
        parts = before["parts"] | now
        result = {"parts": {name: parts[name] for name in PARTS if name in parts}}
        RESULT.write_text(json.dumps(result, indent=2) + "\n")
        CHART.write_text(report.chart(result))
        FIGURES.write_text(report.page(result, sizing.table(result["parts"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
