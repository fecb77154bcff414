"""One run of pytest over selected tests, inside a forked child: in which order, and what failed.

Imported only where tests run. It promises that the first failing test is named, that a test that
spins is ended by the kernel, and that in a baseline the functions that each test enters are known.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, settings

# A collection takes about a second; a mutant that makes it spin is ended by the same timer.
_COLLECTION_CPU_SECONDS: Final = 30.0
# A test that takes this much more than without the bug does not end.
_SPIN_SECONDS: Final = 5.0
_SPIN_TIMES: Final = 10.0
# A test that makes millions of calls has long entered what it enters. What it enters later is not
# seen, so it does not meet mutants there: they can survive wrongly, never die wrongly.
_CALLS_MAX: Final = 500_000
_PLUGINS: Final = ("pytest_asyncio.plugin", "pytest_timeout", "_hypothesis_pytestplugin")
# The test that is running, by its id: all that is left of a run that had to be killed.
CURRENT: Final = Path("current.txt")


@dataclass(frozen=True, slots=True)
class Order:
    """Tests to run.

    Attributes:
        files: where the tests are.
        seconds: how long each test takes without a bug, in the order in which they shall run;
            None for all tests of the files, in their own order.
        skipped: tests of the files that shall not run. A test that is in neither has come with the
            bug (its parameters are made by the module) and runs last.
    """

    files: Sequence[str]
    seconds: Mapping[str, float] | None = None
    skipped: frozenset[str] = frozenset()


@dataclass(slots=True)
class Verdict:
    """What a run has shown.

    Attributes:
        code: pytest's exit code.
        failed: the first test (or file) that failed.
        hung: it failed because it waited for too long.
        seconds: how long each test took, in wall time.
        entered: for each test, the first lines of the functions of the mutated file it entered.
        always: the same for functions entered outside of tests, by imports and collection.
        imported: every module with a file that was imported, and the file.
    """

    code: int = -1
    failed: str | None = None
    hung: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    entered: dict[str, list[int]] = field(default_factory=dict)
    always: list[int] = field(default_factory=list)
    imported: dict[str, str] = field(default_factory=dict)


def run(order: Order, traced: Path | None) -> Verdict:
    """Run pytest in this process, which must do nothing else before or afterwards.

    Args:
        order: what to run; the working directory is the top of the checkout's copy.
        traced: a file whose functions are watched, for a baseline.
    """
    verdict = Verdict()
    # To look for plugins in every installed distribution takes as long as to run most mutants.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    _calm_hypothesis()
    trial = _Trial(order, verdict, _Watch(traced) if traced else None)
    longest = max(order.seconds.values(), default=0.0) if order.seconds else 60.0
    arguments = [
        *order.files,
        "--quiet",
        "--no-header",
        "--tb=short",
        "-p",
        "no:cacheprovider",
        *(word for plugin in _PLUGINS for word in ("-p", plugin)),
        # What was imported before the fork cannot be rewritten; none of it is a test.
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
        "--hypothesis-seed=0",
        f"--timeout={30 + 12 * longest:.0f}",
    ]
    if traced is None:
        arguments.append("--exitfirst")
    verdict.code = int(pytest.main(arguments, plugins=[trial]))
    signal.setitimer(signal.ITIMER_PROF, 0)
    if traced is not None:
        verdict.imported = {
            name: file
            for name, module in list(sys.modules.items())
            if (file := getattr(module, "__file__", None)) is not None
        }
    return verdict


def _calm_hypothesis() -> None:
    """The same examples for every mutant; a busy machine is no failure; the first one is enough."""
    phases = (Phase.explicit, Phase.reuse, Phase.generate)
    slow = [HealthCheck.too_slow]
    settings.register_profile(
        "mutants", database=None, deadline=None, phases=phases, suppress_health_check=slow
    )
    settings.load_profile("mutants")


class _Trial:
    """A plugin of pytest: selects, sorts, times, and remembers the first failure."""

    def __init__(self, order: Order, verdict: Verdict, watch: _Watch | None) -> None:
        self._order = order
        self._verdict = verdict
        self._watch = watch
        CURRENT.write_text("", "utf-8")
        self._limit(_COLLECTION_CPU_SECONDS)
        if watch:
            watch.begin()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        if self._watch:
            self._verdict.always = self._watch.end()
        if self._order.seconds is None:
            return
        rank = {test: place for place, test in enumerate(self._order.seconds)}
        chosen = [item for item in items if item.nodeid not in self._order.skipped]
        items[:] = sorted(chosen, key=lambda item: rank.get(item.nodeid, len(rank)))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        CURRENT.write_text(item.nodeid, "utf-8")
        usual = (self._order.seconds or {}).get(item.nodeid, 60.0)
        self._limit(_SPIN_SECONDS + _SPIN_TIMES * usual)
        if self._watch:
            self._watch.begin()
        done = yield
        if self._watch:
            self._verdict.entered[item.nodeid] = self._watch.end()
        return done

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        spent = self._verdict.seconds
        spent[report.nodeid] = round(spent.get(report.nodeid, 0.0) + report.duration, 4)
        if report.failed and self._verdict.failed is None:
            self._verdict.failed = report.nodeid
            # pytest-timeout fails the test with this word.
            self._verdict.hung = "Timeout (>" in report.longreprtext

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and self._verdict.failed is None:
            self._verdict.failed = report.nodeid

    def _limit(self, cpu_seconds: float) -> None:
        # Left to its default, the signal ends the process wherever it spins, in C too.
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)


class _Watch:
    """Notes which functions of one file are entered, in every thread."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._seen: set[CodeType] = set()
        self._calls = 0

    def begin(self) -> None:
        """Forget, and watch."""
        self._seen.clear()
        self._calls = 0
        threading.settrace(self._entered)
        sys.settrace(self._entered)

    def end(self) -> list[int]:
        """Watch no longer; return the first lines of what was entered."""
        sys.settrace(None)
        threading.settrace(None)
        return sorted({code.co_firstlineno for code in self._seen})

    def _entered(self, frame: FrameType, _event: str, _argument: object) -> None:
        if frame.f_code.co_filename == self._path:
            self._seen.add(frame.f_code)
        self._calls += 1
        if self._calls > _CALLS_MAX:
            sys.settrace(None)
