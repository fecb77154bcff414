"""Programs in the environment of a framework, and what they have seen.

A program runs in a process of its own, with the framework from its lock and with what a caller has
of the product: its source, and none of its dependencies but those that the framework brings.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
CHECKOUT: Final = HERE.parents[1]
PYTHON_LOCK: Final = HERE / "python" / "requirements.txt"
NPM: Final = HERE / "npm"
# A few seconds each; far more on a machine that does other things.
PROGRAM_SECONDS: Final = 120


@dataclass(frozen=True, slots=True)
class Sighting:
    """One time that the framework ran the code: the ids it gave, and the keys made of them."""

    scenario: str
    ids: dict[str, Any]
    keys: dict[str, str]


class Sightings(list[Sighting]):
    """What a program has printed, in order."""

    def of(self, scenario: str) -> Sightings:
        """Return those of one scenario, which are two at least."""
        found = Sightings(one for one in self if one.scenario == scenario)
        assert len(found) >= 2, f"{scenario} was seen {len(found)} times"
        return found

    def stable(self) -> set[str]:
        """Return the names of the ids and keys that were the same each time."""
        return {name for name, values in self._values().items() if len(values) == 1}

    def changing(self) -> set[str]:
        """Return the names of the ids and keys that were another each time."""
        return {name for name, values in self._values().items() if len(values) == len(self)}

    def _values(self) -> dict[str, set[str]]:
        names = [*self[0].ids, *self[0].keys]
        return {name: {json.dumps((one.ids | one.keys)[name]) for one in self} for name in names}


def ran(python: Path | str, program: str, *arguments: str | Path, exit_code: int = 0) -> Sightings:
    """Run a program to its end and return what it has seen; it ends with `exit_code`."""
    # A group of its own: a program that hangs is ended with the servers it has started.
    process = subprocess.Popen(
        [python, HERE / "programs" / f"{program}_program.py", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": os.environ.get("HOME", "/"),
            "PYTHONPATH": f"{CHECKOUT / 'app'}:{CHECKOUT / 'contracts'}",
            "NO_PROXY": "127.0.0.1,localhost",
        },
    )
    try:
        out, err = process.communicate(timeout=PROGRAM_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"{program} did not end:\n{out[-2000:]}\n{err[-4000:]}") from None
    assert process.returncode == exit_code, f"{program} ended badly:\n{err[-4000:]}"
    lines = [json.loads(line) for line in out.splitlines() if line.startswith('{"scenario"')]
    return Sightings(Sighting(**line) for line in lines)
