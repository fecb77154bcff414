"""`make` sets itself up with nothing but Python, and says what is wrong where it cannot."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

import tools
from repository.checkout import CHECKOUT

TARGETS = (
    "demo",
    "test",
    "up",
    "check",
    "fmt",
    "chaos",
    "bench",
    "mutate",
    "audit",
    "lock",
    "clean",
)


def test_every_promised_target_is_there() -> None:
    told = _make("help").stdout
    assert set(TARGETS) <= set(re.findall(r"^  make (\w+)\t", told, re.MULTILINE))


@pytest.mark.parametrize(
    ("words", "directory"),
    [
        ((), ".venv"),
        (("PYTHON=python3",), ".venv"),
        (("PYTHON=/usr/bin/python3",), ".venv"),
        (("PYTHON=python3.12",), ".venv-python3.12"),
        (("PYTHON=python3.12", "VENV=/tmp/elsewhere"), "/tmp/elsewhere"),
        (("VENV=named",), "named"),
    ],
)
def test_an_interpreter_gets_an_environment_of_its_own(
    words: tuple[str, ...], directory: str
) -> None:
    planned = _make("--always-make", "--dry-run", "test", *words).stdout.splitlines()
    assert planned[-1].split()[0] == f"{directory}/bin/pytest"


def test_an_old_python_is_refused_in_words(tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text('#!/bin/sh\nif [ "$1" = --version ]; then echo Python 3.9.18; fi\nexit 1\n')
    old.chmod(0o755)
    result = _make("venv", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}")
    assert result.returncode != 0
    assert "needs Python 3.11 or newer" in result.stderr
    assert "Python 3.9.18" in result.stderr
    assert not (tmp_path / "venv").exists()


def test_a_missing_python_is_refused_in_words(tmp_path: Path) -> None:
    result = _make("venv", "PYTHON=python-nowhere", f"VENV={tmp_path / 'venv'}")
    assert result.returncode != 0
    assert "'python-nowhere' is not on PATH" in result.stderr


def _make(*words: str) -> subprocess.CompletedProcess[str]:
    # What an outer `make` hands down (its flags, and the VENV of CI) is not under test here.
    kept = ("HOME", "LANG", "PATH", "TMPDIR")
    return subprocess.run(
        [tools.requires_tool("make"), "--no-print-directory", *words],
        cwd=CHECKOUT,
        env={name: os.environ[name] for name in kept if name in os.environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
