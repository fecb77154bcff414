"""What a run prints and keeps: ratios first, and the machine that they were taken on."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.parts import Findings, Table

# A committed ratio that got this much worse is told.
WORSE_SHARE = 0.15

_BAR = 18
_LEFT = 330
_WIDTH = 760
_FULL = 300


@dataclass(frozen=True, slots=True)
class Ratio:
    """One comparison, as this run has shown it.

    Attributes:
        name: what is compared, stable; the JSON's key.
        text: the same in words.
        value: the broker's figure over that of the other side, of the same run.
        more_is_better: a rate; else a time or a cost.
    """

    name: str
    text: str
    value: float
    more_is_better: bool = True


def machine() -> dict[str, Any]:
    """Return what the figures are taken on."""
    model = platform.processor()
    try:
        with open("/proc/cpuinfo") as lines:
            model = next(line.split(":")[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        pass
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def part_result(
    found: Findings, taken_on: Mapping[str, Any], rounds: int, scale: float, poll_seconds: float
) -> dict[str, Any]:
    """Return a part's findings as they are kept."""
    return {
        "machine": dict(taken_on),
        "rounds": rounds,
        "scale": scale,
        "poll_seconds": poll_seconds,
        "ratios": {
            ratio.name: {
                "text": ratio.text,
                "value": round(ratio.value, 3),
                "more_is_better": ratio.more_is_better,
            }
            for ratio in found.ratios
        },
        "figures": dict(found.figures),
        "tables": [asdict(table) for table in found.tables],
    }


def worse(before: Mapping[str, Any], now: Sequence[Ratio]) -> list[str]:
    """Return a line for each ratio that is worse than the part's committed one by over the share.

    Args:
        before: a part's result as it was kept; empty if it never was.
        now: the part's ratios of this run.
    """
    lines = []
    for ratio in now:
        known = before.get("ratios", {}).get(ratio.name, {}).get("value", 0.0)
        if known <= 0:
            continue
        change = ratio.value / known
        bad = change < 1 - WORSE_SHARE if ratio.more_is_better else change > 1 + WORSE_SHARE
        if bad:
            lines.append(f"{ratio.name}: {known:.2f} before, {ratio.value:.2f} now")
    return lines


def page(result: Mapping[str, Any], worked_out: Table | None = None) -> str:
    """Return all tables as Markdown; `worked_out` is what follows from them."""
    lines = [
        "# Benchmark figures",
        "",
        "Written by `make bench ARGS=--keep`. What they mean: [benchmarks](benchmarks.md).",
    ]
    for name, part in result["parts"].items():
        on = part["machine"]
        lines += [
            "",
            f"## {name}",
            "",
            f"{on['cpu']}, {on['cores']} cores, Python {on['python']}, load before"
            f" {on['load_before']}; rounds: {part['rounds']}, counts: {part['scale']:g} of the"
            f" usual, queues polled every {part['poll_seconds']:g} s.",
        ]
        if part["ratios"]:
            rows = [[r["text"], f"{r['value']:.2f}"] for r in part["ratios"].values()]
            lines += ["", *_rows(("ratio", "value"), rows)]
        for table in part["tables"]:
            lines += _table(table)
    if worked_out is not None:
        lines += ["", "## sizing", *_table(asdict(worked_out))]
    return "\n".join(lines) + "\n"


def _table(table: Mapping[str, Any]) -> list[str]:
    lines = ["", f"**{table['title']}**", "", *_rows(table["columns"], table["rows"])]
    return [*lines, "", table["note"]] if table["note"] else lines


def _rows(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    shown = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in shown]


def chart(result: Mapping[str, Any]) -> str:
    """Return the ratios as bars in SVG; the line is where both sides are equal."""
    ratios = [ratio for part in result["parts"].values() for ratio in part["ratios"].values()]
    top = max(2.0, *(min(ratio["value"], 6.0) for ratio in ratios))
    height = 40 + len(ratios) * (_BAR + 14)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}"'
        ' font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for place, ratio in enumerate(ratios):
        y, value = 20 + place * (_BAR + 14), ratio["value"]
        good = value >= 1 if ratio["more_is_better"] else value <= 1
        # Beyond the edge a bar is only long; its number says how long.
        width = max(1.0, min(value, top) / top * _FULL)
        color = "#2f7d5b" if good else "#8a8f98"
        parts += [
            f'<text x="{_LEFT - 10}" y="{y + 14}" text-anchor="end">{escape(ratio["text"])}</text>',
            f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{color}"/>',
            f'<text x="{_LEFT + width + 6:.1f}" y="{y + 14}">{value:.2f}</text>',
        ]
    equal = _LEFT + _FULL / top
    parts += [
        f'<line x1="{equal:.1f}" y1="10" x2="{equal:.1f}" y2="{height - 10}" stroke="#b3413a"/>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"
