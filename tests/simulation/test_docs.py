"""`docs/simulation.md` says what the code says: guards, faults, invariants, worlds, commands."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from effect_broker.cli.main import app
from effect_broker.proof.simulation.exploration import CELLS
from effect_broker.proof.simulation.guards import GUARDS
from repository.checkout import CHECKOUT

from .printed import COMMAND, PAGE, block, printed, tables


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text("utf-8")


def test_the_tables_are_the_codes(page: str) -> None:
    assert printed(page) == page, f"print them anew: {COMMAND}"


def test_every_guard_has_its_row(page: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \|", block(page, "guards"), re.MULTILINE)
    assert rows == list(GUARDS)


def test_a_table_that_was_edited_is_noticed(page: str) -> None:
    for lines in tables().values():
        edited = page.replace(lines[-1], lines[-1] + " not so")
        assert edited != page
        assert printed(edited) == page


def test_the_page_counts_guards_and_cells_rightly(page: str) -> None:
    shown = sum(guard.proof is None for guard in GUARDS.values())
    assert f"{len(GUARDS)} guards, {shown} of them in simulated worlds" in page
    assert f"{len(CELLS)} cells" in page


def test_every_option_that_the_page_names_exists(page: str) -> None:
    for command in (("demo", "simulate"), ("contracts", "simulate")):
        known = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"}).output
        lines = [line for line in page.splitlines() if f"effect-broker {' '.join(command)}" in line]
        assert lines
        for option in re.findall(r"--[a-z-]+", "\n".join(lines)):
            assert option in known, option


def test_every_file_that_the_page_links_to_exists(page: str) -> None:
    for link in re.findall(r"\]\(\.\./([^)#]+)\)", page):
        assert (CHECKOUT / link).exists(), link
