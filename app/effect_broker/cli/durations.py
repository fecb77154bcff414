"""Durations and moments on the command line: how they are written, and how they are shown."""

from __future__ import annotations

import re
from datetime import datetime
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


def moment_of(option: str, given: str) -> datetime:
    """Return the moment that an option names (RFC 3339); ends the command for anything else."""
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        complain(f"{option} is not a moment such as 2026-11-29T12:00:00+00:00", 2)
    if moment.tzinfo is None:
        complain(f"{option} names no offset from UTC; add +00:00 or your own", 2)
    return moment
