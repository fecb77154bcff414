"""The mutation check: a bug that a test notices dies, and nothing is forgotten or excused."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cosmic_ray.mutating import mutate_code  # type: ignore[import-untyped]
from cosmic_ray.plugins import get_operator  # type: ignore[import-untyped]

from effect_chaos.mutants import __main__ as command
from effect_chaos.mutants.equivalents import LIST, BadList, Equivalents
from effect_chaos.mutants.mutations import mutants_of
from effect_chaos.mutants.plan import LEFT_OUT, SUITES, Target, modules, named, targets
from effect_chaos.mutants.session import FOLDER, Session, Status

CHECKOUT = Path(__file__).resolve().parents[2]
RULE = """
    from __future__ import annotations


    def allowed(amount: int | None) -> bool:
        return amount is not None and amount >= 10
"""
WEAK = """
    from toy.rule import allowed


    def test_ten_is_allowed() -> None:
        assert allowed(10)


    def test_nothing_is_refused() -> None:
        assert not allowed(None)
"""
STRONG = """
    from toy.rule import allowed


    def test_the_edge() -> None:
        assert not allowed(9)
        assert allowed(11)
"""
ENDS = """
    from toy.rule import allowed


    def test_it_ends() -> None:
        assert allowed(9)
"""


@dataclass
class Toy:
    """A checkout with one module and its tests."""

    top: Path
    listed: str = ""
    said: str = field(default="", init=False)

    def write(self, name: str, text: str) -> None:
        path = self.top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))

    def run(self, *words: str, capture: pytest.CaptureFixture[str]) -> int:
        listed = self.top / "equivalent.toml"
        listed.write_text(self.listed)
        target = Target("toy.rule", "contracts/toy/rule.py", ("tests/test_*.py",))
        code = command.main(list(words), self.top, [target], listed)
        told = capture.readouterr()
        self.said = told.out + told.err
        return code

    def results(self) -> dict[str, Status]:
        path = self.top / FOLDER / "session.jsonl"
        if not path.exists():
            return {}
        session = Session(self.top / FOLDER)
        return {place: result.status for (_, place, _), result in session._found.items()}

    def lines(self) -> int:
        path = self.top / FOLDER / "session.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    made = Toy(tmp_path)
    made.write(
        "pyproject.toml", '[tool.pytest.ini_options]\naddopts = ["--import-mode=importlib"]\n'
    )
    made.write("contracts/toy/__init__.py", "")
    made.write("contracts/toy/rule.py", RULE)
    made.write("tests/test_weak.py", WEAK)
    return made


@pytest.mark.timeout(300)
def test_a_bug_dies_by_the_test_that_notices_and_survives_without_one(
    toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (toy.top / "contracts/toy/rule.py").read_bytes()
    assert toy.run(capture=capsys) == command.KILLED_TOO_FEW
    found = toy.results()
    assert found["core/ReplaceAndWithOr:0"] is Status.KILLED
    assert found["core/ReplaceComparisonOperator_GtE_Gt:0"] is Status.KILLED
    assert found["core/NumberReplacer:0"] is Status.KILLED  # 11: ten is allowed no more
    assert found["core/NumberReplacer:1"] is Status.SURVIVED  # 9: nobody asks for nine
    assert found["core/ReplaceComparisonOperator_GtE_Eq:0"] is Status.SURVIVED
    assert "-    return amount is not None and amount >= 10" in toy.said
    assert "+    return amount is not None and amount == 10" in toy.said
    assert (toy.top / "contracts/toy/rule.py").read_bytes() == before

    # Known results are not run again; the report needs no run at all.
    lines = toy.lines()
    assert toy.run(capture=capsys) == command.KILLED_TOO_FEW
    assert "0 to run" in toy.said
    assert toy.run("--report", capture=capsys) == command.KILLED_TOO_FEW
    assert toy.lines() == lines

    # A new test meets the survivors, and only them.
    survived = sum(status is Status.SURVIVED for status in found.values())
    toy.write("tests/test_strong.py", STRONG)
    assert toy.run("--report", capture=capsys) == command.NOT_AT_THE_END
    assert toy.run(capture=capsys) == command.KILLED_ENOUGH
    assert toy.lines() == lines + survived
    assert "100.0%" in toy.said

    # A test that has changed answers again for what it has killed.
    toy.write("tests/test_weak.py", WEAK.replace("assert allowed(10)", "assert True"))
    assert toy.run("--report", capture=capsys) != command.KILLED_ENOUGH


@pytest.mark.timeout(300)
def test_a_run_that_is_out_of_time_is_gone_on_with(
    toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    toy.write("tests/test_strong.py", STRONG)
    assert toy.run("--seconds", "0", capture=capsys) == command.NOT_AT_THE_END
    assert toy.lines() == 0
    # No test is that quick: nothing has been met by what it has to meet, so nothing has survived.
    assert toy.run("--test-seconds", "0", capture=capsys) == command.NOT_AT_THE_END
    assert toy.lines() == 0
    assert toy.run("--sample", "2", "--seed", "3", capture=capsys) == command.KILLED_ENOUGH
    assert toy.lines() == 2
    assert toy.run("--lanes", "2", capture=capsys) == command.KILLED_ENOUGH
    every = len(mutants_of((toy.top / "contracts/toy/rule.py").read_text()).mutants)
    assert toy.lines() == every
    # The last line was cut off by a kill: its mutant is met again, and nothing else.
    path = toy.top / FOLDER / "session.jsonl"
    path.write_text(path.read_text()[:-30] + "\n")
    toy.run(capture=capsys)
    assert ", 1 to run" in toy.said


@pytest.mark.timeout(300)
def test_a_bug_that_never_ends_is_ended(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    toy.write(
        "contracts/toy/rule.py",
        """
        def allowed(amount):
            while True:
                break
            return amount
        """,
    )
    toy.write("tests/test_weak.py", ENDS)
    toy.run(capture=capsys)
    assert toy.results() == {
        "core/ReplaceBreakWithContinue:0": Status.TIMED_OUT,
        "core/ReplaceTrueWithFalse:0": Status.SURVIVED,
        "core/AddNot:0": Status.SURVIVED,
    }


@pytest.mark.timeout(300)
def test_tests_that_fail_without_a_bug_judge_nothing(
    toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    toy.write("tests/test_broken.py", "def test_it():\n    assert False\n")
    assert toy.run(capture=capsys) == command.NOT_JUDGED
    assert "without any bug: tests/test_broken.py::test_it" in toy.said
    assert toy.lines() == 0


def test_an_equivalent_mutant_is_counted_apart(
    toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    toy.listed = """
[[equivalent]]
module = "toy.rule"
operators = ["NumberReplacer"]
line = "return amount is not None and amount >= 10"
becomes = "return amount is not None and amount >= 9"
reason = "nobody pays nine"
"""
    equivalents = _listed(toy)
    source = (toy.top / "contracts/toy/rule.py").read_text()
    reasons = {m.place: equivalents.reason("toy.rule", m) for m in mutants_of(source).mutants}
    assert [place for place, reason in reasons.items() if reason] == ["core/NumberReplacer:1"]
    assert toy.run("--seconds", "0", capture=capsys) == command.NOT_AT_THE_END


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ('line = "return amount"', "makes no such change of `return amount`"),
        ('operators = ["ReplaceOrWithAnd"]', "ReplaceOrWithAnd makes no such change"),
        ('becomes = "return True"', "makes no such change"),
        ('module = "toy.other"', "toy.other: no module under mutation"),
        ('reason = " "', "is a text that says something"),
        ('raeson = "typo"', "needs line, module, operators, reason"),
        ("operators = []", "operators is a list"),
        ("reason = ", "equivalent.toml:"),
    ],
)
def test_a_stale_or_unreasoned_equivalent_is_refused(
    toy: Toy, capsys: pytest.CaptureFixture[str], changed: str, told: str
) -> None:
    entry = {
        "module": 'module = "toy.rule"',
        "operators": 'operators = ["NumberReplacer"]',
        "line": 'line = "return amount is not None and amount >= 10"',
        "reason": 'reason = "nobody pays nine"',
    }
    entry[changed.partition(" ")[0]] = changed
    toy.listed = "[[equivalent]]\n" + "\n".join(entry.values())
    assert toy.run("--report", capture=capsys) == command.NOT_JUDGED
    assert told in toy.said


def test_every_module_of_the_core_is_mutated_or_left_out_with_a_reason() -> None:
    known = targets(CHECKOUT)
    assert {target.name for target in known} | set(LEFT_OUT) == set(modules(CHECKOUT))
    assert set(SUITES) <= {target.name for target in known}
    assert [target.name for target in known if not target.tests(CHECKOUT)] == []


def test_the_committed_equivalents_are_lines_of_today() -> None:
    paths = modules(CHECKOUT)
    for entry in Equivalents.read(LIST).entries:
        lines = (CHECKOUT / paths[entry.module]).read_text("utf-8").split("\n")
        text = "\n".join(line.strip() for line in lines)
        assert f"\n{entry.line}\n" in text, f"{entry.module}: {entry.line}"


def test_mutants_are_those_of_cosmic_ray() -> None:
    for name in ("backoff", "protocol.wishes"):
        target = named(name, targets(CHECKOUT))
        source = (CHECKOUT / target.path).read_text("utf-8")
        found = mutants_of(source).mutants
        assert len({mutant.code for mutant in found}) == len({m.place for m in found})
        for mutant in found:
            operator = get_operator(mutant.operator)()
            assert mutate_code(source, operator, mutant.occurrence) == mutant.code


def test_what_nobody_evaluates_is_not_mutated() -> None:
    found = mutants_of(
        "from __future__ import annotations\n\n\n"
        "def f(a: int | None, *, b: str | None = None) -> int | None:\n"
        "    c: int | None = 5\n"
        "    return c\n"
    )
    assert {(m.operator, m.line) for m in found.mutants} == {("core/NumberReplacer", 5)}
    assert found.no_change == 3 * 11  # cosmic-ray itself leaves out the variable
    assert found.no_python == 0  # the bare star is no operator


@pytest.mark.parametrize(
    ("imported", "base", "counts"),
    [("pydantic", "(BaseModel)", 11), ("pydantic", "", 0), ("typing", "(BaseModel)", 0)],
)
def test_the_annotations_of_models_are_mutated(imported: str, base: str, counts: int) -> None:
    found = mutants_of(
        f"from __future__ import annotations\nfrom {imported} import BaseModel\n\n\n"
        f"class Some{base}:\n    kept: dict[str, int | None]\n"
    )
    assert len(found.mutants) == counts
    assert len(found.mutants) + found.no_change == 11


def test_a_mutant_knows_the_function_that_runs_it() -> None:
    source = "x = 1\n\n\n@x\ndef f(a=2):\n    def g():\n        return 3\n    return 4\n"
    scopes = {m.line: m.scope for m in mutants_of(source).mutants}
    assert scopes == {1: None, 4: None, 5: None, 7: 6, 8: 4}


def test_a_module_may_be_named_by_its_end() -> None:
    known = targets(CHECKOUT)
    assert named("protocol.steps", known).name == "effect_broker.protocol.steps"
    with pytest.raises(ValueError, match=r"no module; there are effect_broker\.protocol"):
        named("stepz", known)


def _listed(toy: Toy) -> Equivalents:
    path = toy.top / "equivalent.toml"
    path.write_text(toy.listed)
    return Equivalents.read(path)


def test_a_list_that_is_no_toml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "equivalent.toml"
    path.write_text("[[equivalent")
    with pytest.raises(BadList):
        Equivalents.read(path)
