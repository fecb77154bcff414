"""``python -m effect_broker.proof.skewed COMMAND``: `effect-broker COMMAND` under libfaketime.

The library moves the wall clock (`skewed_environment`). Up to version 0.9.10 at least it breaks the
absolute `clock_nanosleep` by which Python 3.11 and later sleep: `time.sleep` raises EINVAL, and the
engine's threads die of it. That would be a fault of the tool and not of the clock, so `time.sleep`
waits in another way here. Nothing else of the program is changed.
"""

from __future__ import annotations

import os
import select
import subprocess
import time
from pathlib import Path
from typing import Final

SKEWED_PROGRAM: Final = ("effect_broker.proof.skewed",)

_PLACES: Final = (
    "usr/lib/*/faketime/libfaketimeMT.so.1",  # Debian
    "usr/lib/faketime/libfaketimeMT.so.1",
    "usr/lib64/faketime/libfaketimeMT.so.1",
)


def libfaketime() -> Path | None:
    """Return where the library lies, None where it is not installed."""
    places = (place for glob in _PLACES for place in Path("/").glob(glob))
    return next((place for place in places if place.is_file()), None)


def skewed_environment(seconds: int) -> dict[str, str]:
    """Return the variables of a process whose wall clock is so many seconds ahead.

    What measures durations stays true: in a machine with a wrong clock only the date is wrong.
    """
    library = libfaketime()
    assert library is not None, "ask why_no_skew first"
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME": f"{seconds:+d}s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }


def why_no_skew(seconds: int) -> str | None:
    """Return why no clock can be moved on this machine, None if it can."""
    if libfaketime() is None:
        return "libfaketime is not installed; Debian: apt-get install libfaketime"
    moved = _date(skewed_environment(seconds)) - _date({})
    return None if abs(moved - seconds) < abs(seconds) / 2 else "libfaketime moves no clock here"


def _date(variables: dict[str, str]) -> int:
    environment = {**os.environ, **variables}
    shown = subprocess.run(
        ["date", "+%s"], env=environment, capture_output=True, text=True, check=True
    )
    return int(shown.stdout)


def _sleep(seconds: float) -> None:
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    select.select((), (), (), seconds)


def repair_sleep() -> None:
    """Replace `time.sleep` in this process, before anybody takes a reference to the old one."""
    setattr(time, "sleep", _sleep)  # noqa: B010


def main() -> None:
    """Run the command line with a `time.sleep` that works."""
    repair_sleep()
    from effect_broker.cli import main as command_line

    command_line()


if __name__ == "__main__":
    main()
