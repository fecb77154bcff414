"""Durations on the command line: how they are written, and how they are shown."""

from __future__ import annotations

import re
from typing import Final

from effect_broker.cli.access import plain
from effect_broker.cli.output import complain

_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)")
_UNIT_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION_SECONDS_MAX: Final = 315_360_000.0


def seconds_of(given: str) -> float:
    """Return the seconds of `90s`, `15m`, `2h` or `1d`; ends the command for anything else."""
    matched = _DURATION.fullmatch(given.strip())
    seconds = -1.0
    if matched is not None:
        seconds = float(matched[1]) * _UNIT_SECONDS[matched[2]]
    if not 0 <= seconds <= _DURATION_SECONDS_MAX:
        complain(f"'{plain(given)}' is no duration; write 90s, 15m, 2h or 1d", 2)
    return seconds


def span(seconds: float) -> str:
    """Return how long, in the unit that a reader would choose."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
