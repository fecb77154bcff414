"""What a run prints and keeps: ratios first, and the machine that they were taken on."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

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
    """Return what the figures were taken on."""
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


def worse(before: Mapping[str, float], now: list[Ratio]) -> list[str]:
    """Return a line for each ratio that is worse than the committed one by more than the share."""
    lines = []
    for ratio in now:
        known = before.get(ratio.name)
        if known is None or known <= 0:
            continue
        change = ratio.value / known
        bad = change < 1 - WORSE_SHARE if ratio.more_is_better else change > 1 + WORSE_SHARE
        if bad:
            lines.append(f"{ratio.name}: {known:.2f} before, {ratio.value:.2f} now")
    return lines


def chart(ratios: list[Ratio]) -> str:
    """Return the ratios as bars in SVG; the line is where both sides are equal."""
    top = max(2.0, *(ratio.value for ratio in ratios))
    height = 40 + len(ratios) * (_BAR + 14)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}"'
        ' font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for place, ratio in enumerate(ratios):
        y = 20 + place * (_BAR + 14)
        good = ratio.value >= 1 if ratio.more_is_better else ratio.value <= 1
        width = max(1.0, ratio.value / top * _FULL)
        color = "#2f7d5b" if good else "#8a8f98"
        parts += [
            f'<text x="{_LEFT - 10}" y="{y + 14}" text-anchor="end">{escape(ratio.text)}</text>',
            f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{color}"/>',
            f'<text x="{_LEFT + width + 6:.1f}" y="{y + 14}">{ratio.value:.2f}</text>',
        ]
    equal = _LEFT + _FULL / top
    parts += [
        f'<line x1="{equal:.1f}" y1="10" x2="{equal:.1f}" y2="{height - 10}" stroke="#b3413a"/>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"
