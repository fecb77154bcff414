"""The comparison with peers: how an end is named, and that no committed row is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[2]
RESULT = CHECKOUT / "docs" / "benchmarks.json"

ENDS_PROGRAM = """
import json, sys
from bench.peers_of.fates import Fate
fates = [Fate(**given) for given in json.loads(sys.argv[1])]
print(json.dumps([[fate.verdict, fate.told, fate.counts] for fate in fates]))
"""
MISSING_PROGRAM = """
import json, sys
from bench.peers_of.fates import missing
print(json.dumps(missing(json.loads(sys.argv[1]))))
"""

AS_IT_WAS: dict[str, Any] = {
    "requests": 1,
    "effects": 1,
    "says": "its state",
    "done": False,
    "asks": False,
    "ended": False,
    "seconds": 12.4,
}
ENDS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"done": True, "ended": True}, "settled by itself", " after 12 s", "1/1"),
    ({"done": True, "ended": True, "requests": 2}, "settled by itself", " after 12 s", "2/1"),
    # What the target holds goes before what the peer says of it.
    ({"done": True, "ended": True, "requests": 2, "effects": 2}, "duplicate", " after 12 s", "2/2"),
    ({"effects": 2}, "duplicate", "", "1/2"),
    ({"asks": True}, "asks a person", "", "1/1"),
    ({"asks": True, "ended": True}, "asks a person", " after 12 s", "1/1"),
    ({"ended": True}, "says failed", " after 12 s", "1/1"),
    ({}, "stuck", "", "1/1"),
]


def said(program: str, given: object) -> Any:
    """Return what the benchmark makes of it; `bench` imports from the checkout alone."""
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(given)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def missing(figures: object) -> Any:
    """Ask the benchmark what is not there."""
    return said(MISSING_PROGRAM, figures)


def test_an_end_is_named_by_the_targets_ledger_and_then_by_the_peers_record() -> None:
    expected = [
        [verdict, f"{verdict}{after} (its state)", counts] for _, verdict, after, counts in ENDS
    ]
    assert said(ENDS_PROGRAM, [AS_IT_WAS | end for end, *_ in ENDS]) == expected


def test_a_row_that_is_not_there_is_told() -> None:
    whole: dict[str, object] = {
        "version": "1",
        "failed": None,
        "per_second_8": 9.0,
        "median_ms_1": 1.0,
        "after_a_kill": {"a row": {"plain": {}}},
    }
    figures = {
        "whole": whole,
        "failed": whole | {"failed": "it would not start", "after_a_kill": {"b row": {}}},
        "unmeasured": whole | {"median_ms_1": None},
    }
    assert missing(figures) == [
        "failed: it would not start",
        "b row: not killed",
        "unmeasured: not measured",
    ]


def test_the_committed_comparison_has_every_row() -> None:
    parts = json.loads(RESULT.read_text())["parts"] if RESULT.exists() else {}
    assert missing(parts.get("peers", {}).get("figures", {})) == []
