"""What the parts of the benchmark judge by: a planted seq scan, growth and overload are seen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[2]

PROGRAM = """
import json
from bench import growth, sizing
from bench.counting_target import most_in_a_second
from bench.recovery import at_share
from bench.restarted import _judged
from bench.statements import Touched, read_by, scans_of

scan = {"Node Type": "Seq Scan", "Relation Name": "effect_intents"}
small = {"Node Type": "Seq Scan", "Relation Name": "tenants"}
index = {"Node Type": "Index Scan", "Relation Name": "effect_events", "Index Name": "pk"}
plans = [
    read_by("SELECT hidden", {"Node Type": "Limit", "Plans": [index, {"Node Type": "Append",
                                                                      "Plans": [scan]}]}),
    read_by("SELECT small", {"Node Type": "Nested Loop", "Plans": [small, index]}),
]

def measured(*statements):
    return growth.Measured(
        stored=1, per_second=1.0, submits_per_second=1.0, median_ms=1.0, pages=100.0,
        replay_pages=10.0, statements={(s.query_id, s.top): s for s in statements})

same, batch, grown = (Touched(n, f"SELECT {n}", 100, 1_000, True) for n in range(3))
later = [
    Touched(0, "SELECT 0", 100, 1_400, True),
    Touched(1, "SELECT 1", 10, 1_000, True),  # the same rows in fewer calls
    Touched(2, "SELECT 2", 100, 9_000, True),
]
calm = growth.Beside(9, 10.0, 99.0)
steady = [float(n) / 10 for n in range(100)]
slow = [14.0 + n / 5 for n in range(10)]
fast = [16.0 + n / 10 for n in range(60)]
crash = _judged(steady + slow + fast, 9.95, 1.5, 2.0, 3)
one = {"worker_ms": 10.0, "submit_api_ms": 2.0, "postgres_ms": 5.0, "submit_postgres_ms": 1.0,
       "commits": 6.0, "wal_kb": 10.0, "wal_syncs": 2.0}
sizes = {"dbos.workflow_status": 1000.0, "effect_broker.effect_intents": 500.0,
         "effect_broker.effect_intents: pk": 100.0, "effect_broker.effect_events": 400.0}
parts = {"scale_out": {"figures": {"workers_1": one}, "machine": {"cores": 2, "cpu": "a cpu"}},
         "growth": {"figures": {"bytes_each": sizes}}}
worked_out = sizing.table(parts)
assert worked_out is not None
print(json.dumps({
    "scans": scans_of(plans, ["effect_intents", "effect_events"]),
    "grown": growth._grown([measured(same, batch, grown), measured(*later)], calm, 100),
    "not_grown": growth._grown([measured(same, batch), measured(*later[:2])], calm, 100),
    "beside": growth._grown([measured(same), measured(same)], growth.Beside(9, 16.0, 99.0), 100),
    "most": [most_in_a_second([]), most_in_a_second([0.0, 0.9, 1.0, 1.1, 5.0])],
    "shares": [at_share([3.0, 1.0, 2.0], 0.5), at_share(range(1, 51), 0.9), at_share([7.0], 0.9)],
    "crash": [crash.per_second_before, crash.first_seconds, crash.recovered_seconds],
    "sizing": {row[0]: row[2] for row in worked_out.rows},
    "nothing": sizing.table({}) is None,
}))
"""


@pytest.fixture(scope="module")
def shown() -> dict[str, Any]:
    """What the parts make of planted figures."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_seq_scan_of_a_growing_table_is_found_wherever_it_is_in_the_plan(
    shown: dict[str, Any],
) -> None:
    assert shown["scans"] == ["effect_intents from end to end: SELECT hidden"]


def test_a_statement_that_touches_more_for_each_call_and_effect_is_told(
    shown: dict[str, Any],
) -> None:
    assert shown["grown"] == ["10 pages a call before, 90 now: SELECT 2"]
    assert shown["not_grown"] == []


def test_a_statement_that_reads_the_others_of_a_backlog_is_told(shown: dict[str, Any]) -> None:
    assert shown["beside"] == ["pages for each effect beside 9: 10 before, 16 now"]


def test_the_greatest_second_is_found_wherever_it_begins(shown: dict[str, Any]) -> None:
    assert shown["most"] == [0, 3]


def test_shares_of_a_distribution_are_values_that_were_measured(shown: dict[str, Any]) -> None:
    assert shown["shares"] == [2.0, 45, 7.0]


def test_full_speed_is_nine_tenths_of_the_rate_before_over_two_seconds(
    shown: dict[str, Any],
) -> None:
    before, first, recovered = shown["crash"]
    assert before == pytest.approx(10.0)
    assert first == pytest.approx(4.05)
    # Half the rate from 14.0 to 15.8; the two seconds up to 17.4 are the first with eighteen.
    assert recovered == pytest.approx(17.4 - 9.95)


def test_what_a_load_needs_is_worked_out_from_the_figures_of_one_effect(
    shown: dict[str, Any],
) -> None:
    assert shown["nothing"]
    sizing = shown["sizing"]
    assert sizing["cores of workers"] == "10.0"
    assert sizing["worker processes, 70 % busy"] == "15"
    assert sizing["cores of Postgres"] == "6.0"
    assert sizing["transactions/s"] == "6,000"
    assert sizing["database sessions"] == str(15 * 20 + 3 * 16)
    assert sizing["WAL a day, GB"] == "864"
    assert sizing["stored a day, GB"] == "173"
    assert sizing["of these the engine's rows, gone after a day"] == "86"
    assert sizing["of these kept for good, GB a day"] == "52"
