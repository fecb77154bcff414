"""Which file of tests a process of a run gets next: the heaviest, and of two kinds at a time.

Files differ by a factor of a thousand, and a heavy one that comes last leaves all but one process
idle. Most heavy ones wait (for processes, leases, bounds); some only compute. `durations.txt` has
what was measured: seconds of a file, the part of it that this process has computed, the path.
One process in three takes files that compute, so that their work fills what the others wait. Files
of a folder come one after the other, since some folders share a broker in each test process.

`DURATIONS=FILE make test` measures again and writes the table to FILE. A file that it does not
have yet counts by its number of tests; nothing but the order depends on it.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

TABLE: Final = Path(__file__).with_name("durations.txt")
VARIABLE: Final = "DURATIONS"
_SECONDS_OF_A_TEST: Final = 0.3
_COMPUTING_SHARE: Final = 0.5
_COMPUTED: Final = "computed_seconds"


class Weight(NamedTuple):
    """What one file costs."""

    seconds: float
    computed_seconds: float

    @property
    def computes(self) -> bool:
        """Whether it computes for most of its time."""
        return self.computed_seconds > _COMPUTING_SHARE * self.seconds


def read_table(text: str) -> dict[str, Weight]:
    """Return the weights of a table, by path."""
    rows = (line.split() for line in text.splitlines() if line and not line.startswith("#"))
    return {path: Weight(float(seconds), float(computed)) for seconds, computed, path in rows}


def in_order(weights: dict[str, Weight]) -> list[str]:
    """Return the files: those of the heaviest folder first, and of a folder the heaviest first."""
    folders: dict[str, float] = defaultdict(float)
    for path, weight in weights.items():
        folders[_folder(path)] += weight.seconds
    return sorted(
        weights,
        key=lambda path: (-folders[_folder(path)], _folder(path), -weights[path].seconds, path),
    )


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


class HeaviestFirst(LoadFileScheduling):  # type: ignore[misc]
    """Files in the order of `in_order`, those that compute for one process in three."""

    _order: list[str] | None = None
    _weights: dict[str, Weight]

    def _assign_work_unit(self, node: Any) -> None:
        if self._order is None:
            known = read_table(TABLE.read_text())
            self._weights = {
                path: known.get(path, Weight(len(tests) * _SECONDS_OF_A_TEST, 0.0))
                for path, tests in self.workqueue.items()
            }
            self._order = in_order(self._weights)
        waiting = [path for path in self._order if path in self.workqueue]
        self.workqueue.move_to_end(self._next(node, waiting or [*self.workqueue]), last=False)
        super()._assign_work_unit(node)

    def _next(self, node: Any, left: list[str]) -> str:
        wants_computing = self.nodes.index(node) % 3 == 2
        fitting = [
            path
            for path in left
            if self._weights.get(path, Weight(0.0, 0.0)).computes == wants_computing
        ]
        return (fitting or left)[0]


class Measured:
    """Adds up what each file takes, and writes the table in the end; in the leading process."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seconds: dict[str, float] = defaultdict(float)
        self._computed: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        path = report.nodeid.partition("::")[0]
        self._seconds[path] += report.duration
        for name, value in report.user_properties:
            if name == _COMPUTED and report.when == "call":  # the later reports repeat it
                assert isinstance(value, float)
                self._computed[path] += value

    def pytest_sessionfinish(self) -> None:
        self._file.write_text("".join(self._lines()))

    def _lines(self) -> Iterable[str]:
        yield "# seconds, computed in the test's own process, file; see heaviest_first.py\n"
        for path in sorted(self._seconds):
            yield f"{self._seconds[path]:.1f} {self._computed[path]:.1f} {path}\n"


class Measuring:
    """Adds to each report what the process has computed for it; where tests run."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        began = time.process_time()
        try:
            return (yield)
        finally:
            item.user_properties.append((_COMPUTED, time.process_time() - began))


def install(config: pytest.Config) -> None:
    """Measure, where the environment asks for it."""
    file = os.environ.get(VARIABLE)
    if not file:
        return
    config.pluginmanager.register(Measuring())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Measured(Path(file)))
