"""The command: seed first and last, exit codes, and evidence that is kept when it is needed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from effect_chaos import records
from effect_chaos.__main__ import main
from effect_chaos.auditor import audit
from effect_chaos.faults import Tell
from effect_chaos.processes import ProcessFailed
from effect_chaos.records import Answer, Evidence, Invocation, Run, TargetObject, Verb
from effect_chaos.supervisor import EVIDENCE, Result
from effect_chaos.tools import CHARGE, TOOLS
from effect_chaos.workload import make_workload


def evidence(effects: int) -> Evidence:
    """One operation that succeeded, and as many effects of it at the target."""
    plans = make_workload(1, 10.0).plans
    operation = next(plan.operation for plan in plans if plan.tool is CHARGE)
    shown = Answer(
        200, effect_id="e1", operation_key=operation.operation_key, state="succeeded",
        version=3, final=True, waits_for_person=False, receipt_digest="00",
    )  # fmt: skip
    calls = [
        Invocation(n, verb, operation.tenant, operation.operation_key, at, at + 0.1, answer, "e1",
                   operation.request_digest if verb is Verb.SUBMIT else None)
        for n, (verb, at, answer) in enumerate(
            [(Verb.SUBMIT, 1.0, shown), (Verb.GET, 5.0, shown)], 1
        )
    ]  # fmt: skip
    made = tuple(
        TargetObject(n, operation.kind, f"ob_{n}", None, "k", None, n, None, operation.marker, 2.0)
        for n in range(1, effects + 1)
    )
    return Evidence(Run(1, 10.0, 0.0, 4.0, 9.0), (operation,), tuple(calls), objects=made)


class Runs:
    """Stands for a run: leaves evidence, and lets the real auditor judge it."""

    def __init__(
        self,
        effects: int,
        problems: tuple[str, ...] = (),
        rules: tuple[str, ...] = ("no_duplicate", "kept"),
    ) -> None:
        self.effects = effects
        self.problems = problems
        self.rules = rules
        self.directory = Path()

    def __call__(self, seed: int, seconds: float, directory: Path, tell: Tell) -> Result:
        self.directory = directory
        (directory / "home").mkdir()
        seen = evidence(self.effects)
        records.write(directory / EVIDENCE, seen)
        tell("it ran")
        verdicts = tuple(v for v in audit(seen) if v.rule.name in self.rules)
        return Result(
            verdicts=verdicts,
            problems=self.problems,
            operations=Counter(),
            states={tool.name: Counter() for tool in TOOLS},
            requests=Counter(),
            effects=Counter(),
            faults=Counter(),
            fired=Counter(),
        )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


def command(folder: Path, *more: str) -> list[str]:
    return ["--seed", "5", "--seconds", "20", "--folder", str(folder), *more]


def test_a_violation_exits_1_and_keeps_the_evidence(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = Runs(effects=2)
    assert main(command(folder), runs) == 1
    out = capsys.readouterr().out
    assert "no_duplicate: " in out
    assert f"evidence kept in {folder}" in out
    assert records.read(folder / EVIDENCE) == evidence(2)
    assert "no_duplicate" in (folder / "result.txt").read_text()
    assert not (folder / "home").exists()


def test_a_clean_run_exits_0_and_leaves_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(folder), Runs(effects=1)) == 0
    assert not folder.exists()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == lines[-1] == "seed 5"


def test_the_evidence_of_a_clean_run_is_kept_if_asked_for(folder: Path) -> None:
    assert main(command(folder, "--keep"), Runs(effects=1)) == 0
    assert (folder / EVIDENCE).is_dir()


def test_what_the_supervisor_found_is_a_failure_too(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(folder), Runs(1, ("north/k did not come to rest: prepared",))) == 1
    assert "supervisor: north/k did not come to rest" in capsys.readouterr().out


def test_a_rule_that_had_to_look_and_saw_nothing_is_a_failure_too(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No receipt was read in this run."""
    assert main(command(folder), Runs(1, rules=("no_duplicate", "own_object"))) == 1
    out = capsys.readouterr().out
    assert "there was to be something for: own_object" in out
    assert "NOT CLEAN" in out


@pytest.mark.parametrize("problem", [ProcessFailed("no server"), RuntimeError("a mistake")])
def test_a_run_that_breaks_down_is_a_failure_with_its_seed(
    folder: Path, problem: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(seed: int, seconds: float, directory: Path, tell: Tell) -> Result:
        raise problem

    assert main(command(folder), breaks) == 1
    assert folder.is_dir()
    assert capsys.readouterr().out.splitlines()[-1] == "seed 5"


def test_the_schedule_can_be_read_without_a_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(folder, "--list"), Runs(1)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == lines[-1] == "seed 5"
    assert any("crash_postgres" in line for line in lines)
    assert not folder.exists()


def test_a_folder_that_is_there_already_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    assert main(command(tmp_path), Runs(1)) == 2
    assert (tmp_path / "mine").exists()


@pytest.mark.parametrize("seconds", ["5", "nan", "no"])
def test_a_length_that_cannot_be_run_is_not_understood(seconds: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--seconds", seconds])
    assert ended.value.code == 2
