"""What every test run shares: the plugins, and the account of the tests that did not run."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Generator
from typing import Any

import pytest

import heaviest_first
import warm_start
from tools import NOT_FOR_THIS_PLATFORM, REQUIRE_ALL_VARIABLE, all_required

pytest_plugins = ["postgres"]


def pytest_configure(config: pytest.Config) -> None:
    """Take Ctrl-C again where a shell has started the tests in its background, without it.

    What is started here would inherit that, and could not be ended as a terminal ends it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.add_cleanup(warm_start.install())
    heaviest_first.install(config)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while the tests are read, nor at what was read ever after: it stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(
    config: pytest.Config, log: Any
) -> heaviest_first.HeaviestFirst | None:
    """Give the heaviest files out first, where files are what is given out."""
    if config.getvalue("dist") != "loadfile":
        return None
    return heaviest_first.HeaviestFirst(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tell the running brokers whose turn it is; without any, nothing of them is loaded."""
    scenes = sys.modules.get("hosting.scenes")
    if scenes is not None:
        scenes.enter_folder(item.path.parent)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With `REQUIRE_ALL=1` a skip is a failure, by whatever means the test was skipped."""
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a module that is skipped as a whole while it is read."""
    report = yield
    _refuse_skip(report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests that did not run, each with its reason, as the last thing before the count."""
    lines = _not_run(terminalreporter.getreports("skipped"))
    if not lines:
        return
    terminalreporter.section(f"did not run: {len(lines)}")
    for line in lines:
        terminalreporter.write_line(line)


def _not_run(reports: list[pytest.TestReport]) -> list[str]:
    """One line for each test; the same test may be reported more than once."""
    return sorted({f"{report.nodeid}: {_reason(report)}" for report in reports})


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not report.skipped or hasattr(report, "wasxfail") or not all_required():
        return
    reason = _reason(report)
    if reason.startswith(NOT_FOR_THIS_PLATFORM):
        return
    report.outcome = "failed"
    report.longrepr = f"{reason} ({REQUIRE_ALL_VARIABLE}=1: everything must run)"


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The words given to `skip`; pytest hands them over with the place and a prefix."""
    told = report.longrepr
    reason = str(told[2]) if isinstance(told, tuple) else str(told)
    return reason.removeprefix("Skipped: ")
