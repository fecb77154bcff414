"""Processes of a run: filled again after a SIGKILL, let go on, and ended whatever their state."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from effect_chaos.processes import Child, ProcessFailed, Slot, run_command

WAIT_SECONDS = 60.0


def until(holds: Callable[[], bool]) -> None:
    """Wait for something that has to come."""
    ends_at = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < ends_at, "it did not come"
        time.sleep(0.05)


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[Slot]:
    """The demo's target as a process that needs nothing else."""
    arguments = ["target", "--port", "0", "--ledger", str(tmp_path / "ledger.sqlite")]
    made = Slot("outside", arguments, os.environ, tmp_path, "target listening on ")
    made.start().wait_ready()
    yield made
    made.close()


def test_a_killed_process_comes_back_and_has_a_log_of_its_own(slot: Slot, tmp_path: Path) -> None:
    first = slot.child.process.pid
    assert not slot.keep()
    slot.kill()
    until(slot.keep)
    until(lambda: slot.whole)
    assert slot.child.process.pid != first
    assert slot.incarnations == 2
    assert sorted(path.name for path in tmp_path.glob("*.log")) == [
        "outside.1.log",
        "outside.2.log",
    ]


def test_a_killed_process_stays_away_as_long_as_the_fault_says(slot: Slot) -> None:
    killed_at = time.monotonic()
    slot.kill(away_seconds=1.0)
    until(slot.keep)
    assert time.monotonic() - killed_at >= 1.0


def test_a_closed_slot_stays_empty_even_if_its_process_was_stopped(slot: Slot) -> None:
    slot.child.send(signal.SIGSTOP)
    slot.close()
    assert not slot.child.alive
    assert not slot.keep()


def test_a_process_that_ends_before_it_is_ready_is_told_with_its_words(tmp_path: Path) -> None:
    words = "import sys; sys.exit('no such database')"
    child = Child([sys.executable, "-c", words], os.environ, tmp_path / "x.log", "ready ")
    with pytest.raises(ProcessFailed, match="no such database"):
        child.wait_ready()


def test_a_process_answers_line_by_line_and_ends_with_its_input(tmp_path: Path) -> None:
    words = (
        "import sys\n"
        "print('ready now', flush=True)\n"
        "for line in sys.stdin: print(line.strip()[::-1], flush=True)"
    )
    child = Child(
        [sys.executable, "-c", words], os.environ, tmp_path / "x.log", "ready ", takes_input=True
    )
    assert child.wait_ready() == "now"
    assert child.say("abc") == "cba"
    child.end()
    assert child.process.returncode == 0
    with pytest.raises(ProcessFailed):
        child.say("abc")


def test_a_command_that_fails_is_told_with_its_words() -> None:
    with pytest.raises(ProcessFailed, match=r"nonexistent\.yaml"):
        run_command(["contracts", "apply", "/nonexistent.yaml"], os.environ)
