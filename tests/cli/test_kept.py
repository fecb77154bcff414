"""A child that ends is started again, after pauses and not for ever."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from effect_broker.cli.kept import RESTARTS_MAX, Kept
from effect_broker.proof.stack import ManagedProcess

FAILS = "import sys; print('no luck', file=sys.stderr); sys.exit(3)"
STAYS = "import time; print('ready at last', flush=True); time.sleep(60)"


def started(directory: Path, code: str, number: int) -> ManagedProcess:
    """A real process that runs some code."""
    (directory / "child.py").write_text(code)
    environment = {"PYTHONPATH": str(directory)}
    return ManagedProcess(
        f"child-{number}", [], environment, directory, "ready ", program=("child",)
    )


def look_on(kept: Kept) -> None:
    """Look for a minute."""
    for _ in range(3000):
        kept.look()
        time.sleep(0.02)


def test_a_child_that_always_ends_ends_the_program_with_its_reason(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    numbers = iter(range(1, 100))
    kept = Kept(lambda: started(tmp_path, FAILS, next(numbers)), pause_seconds=0.01)
    with pytest.raises(SystemExit) as ended:
        look_on(kept)
    assert ended.value.code == 1
    said = capfd.readouterr().err
    assert said.count("it is started again in") == RESTARTS_MAX
    assert "it is started again in 0.01 s" in said
    assert "it is started again in 0.16 s" in said, "the pauses grow"
    assert f"(exit 3), {RESTARTS_MAX + 1} times in a row" in said
    assert str(kept.process.log) in said
    assert "no luck" in kept.process.log.read_text()


def test_a_child_that_was_killed_is_replaced(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    numbers = iter(range(1, 100))
    kept = Kept(lambda: started(tmp_path, STAYS, next(numbers)))
    first = kept.process
    first.wait_ready()
    kept.look()
    assert kept.process is first
    first.kill()
    for _ in range(500):
        kept.look()
        if kept.process is not first:
            break
        time.sleep(0.02)
    try:
        assert kept.process.wait_ready() == "at last"
    finally:
        kept.process.kill()
    assert "child-1 has ended (exit -9)" in capfd.readouterr().err
