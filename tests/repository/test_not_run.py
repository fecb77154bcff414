"""A test that could not run is told by name, and is a failure where everything must run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tools
from repository.checkout import CHECKOUT

SAMPLE = """
import pytest
import tools


def test_runs() -> None:
    pass


def test_needs_a_tool() -> None:
    tools.requires_tool("no-such-program")


def test_skips_by_itself() -> None:
    pytest.skip("by itself")


@pytest.mark.skip(reason="by mark")
def test_skips_by_mark() -> None:
    pass


def test_is_for_another_platform() -> None:
    tools.not_for_this_platform("only there")


@pytest.mark.xfail(reason="known")
def test_fails_as_expected() -> None:
    raise AssertionError
"""


def test_a_test_without_its_tool_is_named_in_the_last_lines(tmp_path: Path) -> None:
    result = _run(tmp_path, SAMPLE, require_all=False)
    assert result.returncode == 0, result.stdout + result.stderr
    _, heading, account = result.stdout.partition("did not run: 4")
    assert heading
    lines = account.splitlines()[1:]
    assert any("test_needs_a_tool: no-such-program is not installed" in line for line in lines)
    assert any(line.endswith("test_skips_by_itself: by itself") for line in lines)
    assert any(line.endswith("test_skips_by_mark: by mark") for line in lines)
    assert "1 passed, 4 skipped, 1 xfailed" in lines[-1]


def test_a_skip_is_a_failure_where_everything_must_run(tmp_path: Path) -> None:
    result = _run(tmp_path, SAMPLE, require_all=True)
    assert result.returncode == 1
    # A test that is skipped by its mark never begins: pytest counts that as an error.
    assert "2 failed, 1 passed, 1 skipped, 1 xfailed, 1 error" in result.stdout.splitlines()[-1]


def test_a_skipped_module_is_a_failure_where_everything_must_run(tmp_path: Path) -> None:
    sample = 'import pytest\n\npytest.importorskip("no_such_module")\n'
    told = _run(tmp_path, sample, require_all=False)
    assert "could not import 'no_such_module'" in told.stdout
    refused = _run(tmp_path, sample, require_all=True)
    assert refused.returncode not in (0, 5)


def test_a_tool_that_is_there_is_found() -> None:
    assert tools.requires_tool(Path(sys.executable).name).is_absolute()


@pytest.mark.parametrize("name", tools.FINDERS)
def test_a_listed_tool_says_how_to_install_it(name: str) -> None:
    assert name in tools.INSTALL


def _run(place: Path, sample: str, *, require_all: bool) -> subprocess.CompletedProcess[str]:
    """A run of its own, with this checkout's settings and the hooks under test."""
    hooks = (CHECKOUT / "tests" / "conftest.py").read_text("utf-8")
    (place / "conftest.py").write_text(hooks.replace('pytest_plugins = ["postgres"]\n', ""))
    (place / "test_sample.py").write_text(sample)
    environment = dict(os.environ)
    environment.pop(tools.REQUIRE_ALL_VARIABLE, None)
    environment["PYTHONPATH"] = str(CHECKOUT / "tests")
    if require_all:
        environment[tools.REQUIRE_ALL_VARIABLE] = "1"
    return subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "--import-mode=importlib", "-p", "no:cacheprovider"],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
