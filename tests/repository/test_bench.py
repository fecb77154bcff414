"""The benchmark's own arithmetic: what counts as worse, and that its chart can be read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

CHECKOUT = Path(__file__).parents[2]

PROGRAM = """
import json
from bench.parts import Findings, Table
from bench.report import Ratio, chart, page, part_result, worse
from bench.rounds import Timed, middle

ratios = [Ratio("rate", "a rate & more", 0.84), Ratio("time", "a time", 1.16, more_is_better=False)]
kept = [Ratio("rate", "a rate", 0.86), Ratio("time", "a time", 1.14, more_is_better=False)]
before = {"ratios": {"rate": {"value": 1.0}, "time": {"value": 1.0}}}
found = Findings(ratios, {}, [Table("shown", ("what", "n"), [["a|b", "7"]], "a note")])
machine = {"cpu": "a cpu", "cores": 2, "python": "3", "load_before": 0.1}
result = {"parts": {"one": part_result(found, machine, 3, 0.5, 0.25)}}
rounds = [Timed(1.0, 9.0), Timed(5.0, 2.0), Timed(2.0, 3.0)]
print(json.dumps({
    "worse": worse(before, ratios), "kept": worse(before, kept), "unknown": worse({}, ratios),
    "chart": chart(result), "page": page(result),
    "middle": [middle(rounds).per_second, middle(rounds).median_ms],
}))
"""


def test_what_is_kept_can_be_read_and_a_ratio_that_got_worse_is_told() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    shown = json.loads(done.stdout)
    assert shown["worse"] == ["rate: 1.00 before, 0.84 now", "time: 1.00 before, 1.16 now"]
    assert shown["kept"] == shown["unknown"] == []
    assert shown["middle"] == [2.0, 3.0]
    texts = [node.text for node in ElementTree.fromstring(shown["chart"]).iter() if node.text]
    assert {"a rate & more", "0.84", "a time", "1.16"} <= set(texts)
    page = shown["page"].splitlines()
    assert {"| a rate & more | 0.84 |", "| a\\|b | 7 |", "a note"} <= set(page)
    assert any("a cpu, 2 cores" in line and "0.5 of the usual" in line for line in page)
