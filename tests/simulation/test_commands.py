"""`contracts simulate` and `demo simulate`, as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from effect_broker.cli.main import app
from effect_contracts.catalog import catalog_texts


@pytest.fixture
def contract(tmp_path: Path) -> Path:
    """A shipped HTTP contract."""
    path = tmp_path / "charge.yaml"
    path.write_text(catalog_texts()["demo-charge-reconcilable"], "utf-8")
    return path


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def report(*words: object) -> Any:
    result = run(*words)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_contract_is_judged_under_every_fault(contract: Path) -> None:
    body = report("contracts", "simulate", contract, "--schedules", 80, "--json")
    assert body["contract"]["safety"] == "reconcilable"
    rows = {row["fault"]: row for row in body["faults"]}
    assert set(rows["none"]["harms"].values()) == {None}
    assert rows["lost_answer"]["harms"]["duplicate"] is None
    late = rows["seen_too_late"]
    assert late["breaks_a_promise"]
    assert late["what_happens"].startswith("a look-up shows an object later")
    duplicate = late["harms"]["duplicate"]
    assert any("sends attempt 2" in line for line in duplicate["story"])
    assert all(row["broken"] == [] for row in body["faults"])

    told = report("contracts", "simulate", contract, "--replay", duplicate["replay"], "--json")
    assert "duplicate" in told["harms"]
    assert told["story"] == duplicate["story"]


def test_the_table_says_what_is_possible(contract: Path) -> None:
    result = run("contracts", "simulate", contract, "--schedules", 3)
    assert result.exit_code == 0, result.output
    assert "What the broker has to bear" in result.stdout
    assert "not in 3 schedules" in result.stdout
    # A log takes whole lines; only a terminal has a line to write over.
    assert result.stderr.startswith("tried 1 fault\ntried 2 faults\n")
    assert "\r" not in result.stderr


def test_a_bad_file_is_said_to_be(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("name: X\nsafety: wishful\n", "utf-8")
    result = run("contracts", "simulate", bad)
    assert result.exit_code == 1
    assert "safety" in result.stderr
    missing = run("contracts", "simulate", tmp_path / "none.yaml")
    assert missing.exit_code == 1
    assert "cannot be read" in missing.stderr


@pytest.mark.parametrize("word", ["nonsense", "death@x", "weather@1.2"])
def test_a_replay_that_names_nothing_is_refused(contract: Path, word: str) -> None:
    result = run("contracts", "simulate", contract, "--replay", word)
    assert result.exit_code == 1
    assert "--replay takes" in result.stderr


def test_the_demo_tells_what_was_tried() -> None:
    body = report("demo", "simulate", "--schedules", 300, "--processes", 1, "--json")
    assert body["schedules"] == 300
    assert body["broken"] == []
    rows = {row["invariant"]: row for row in body["invariants"]}
    assert rows["one_effect"]["tried"] > 0
    assert all(row["broken"] == 0 for row in rows.values())


def test_the_demo_replays_a_schedule() -> None:
    result = run("demo", "simulate", "--replay", "unsafe@z3.1")
    assert result.exit_code == 0, result.output
    assert "commits permission for attempt 1" in result.stdout
    assert run("demo", "simulate", "--replay", "nowhere@1").exit_code == 1


def test_the_demo_explores_the_cells_that_are_asked_for() -> None:
    asked = ("demo", "simulate", "--explore", "--limit", 20, "--processes", 1)
    rows = report(*asked, "--cells", "reconcilable-death", "--json")
    assert {(row["class"], row["trouble"]) for row in rows} == {("reconcilable", "death")}
    assert [row["second run"] for row in rows] == ["takeover", "hasty_repair"]
    nowhere = run(*asked, "--cells", "weather")
    assert nowhere.exit_code == 1
    assert "no cell's name holds weather" in nowhere.stderr
