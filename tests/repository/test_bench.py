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
from bench.report import Ratio, chart, worse
from bench.rounds import Timed, middle

ratios = [Ratio("rate", "a rate & more", 0.84), Ratio("time", "a time", 1.16, more_is_better=False)]
kept = [Ratio("rate", "a rate", 0.86), Ratio("time", "a time", 1.14, more_is_better=False)]
before = {"rate": 1.0, "time": 1.0}
rounds = [Timed(1.0, 9.0), Timed(5.0, 2.0), Timed(2.0, 3.0)]
print(json.dumps({
    "worse": worse(before, ratios), "kept": worse(before, kept), "unknown": worse({}, ratios),
    "chart": chart(ratios), "middle": [middle(rounds).per_second, middle(rounds).median_ms],
}))
"""


def test_a_ratio_that_got_worse_by_more_than_its_share_is_told_and_the_chart_is_svg() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    shown = json.loads(done.stdout)
    assert shown["worse"] == ["rate: 1.00 before, 0.84 now", "time: 1.00 before, 1.16 now"]
    assert shown["kept"] == shown["unknown"] == []
    assert shown["middle"] == [2.0, 3.0]
    texts = [node.text for node in ElementTree.fromstring(shown["chart"]).iter() if node.text]
    assert {"a rate & more", "0.84", "a time", "1.16"} <= set(texts)
