"""The pages of the documentation: each is found, and what it names is there."""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from typer.main import get_command

from effect_broker.cli.main import app
from effect_broker.config import Settings
from effect_contracts.errors import ProblemCode, status_of
from repository.checkout import CHECKOUT, python_files, tree

DOCS: Final = CHECKOUT / "docs"
INDEX: Final = DOCS / "README.md"
PAGES: Final = (CHECKOUT / "README.md", *sorted(DOCS.glob("*.md")))

_FENCE: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_VARIABLE: Final = re.compile(r"EFFECT_BROKER_[A-Z_]*[A-Z]")
_NAMED_FILE: Final = re.compile(r"`((?:app|adapters|bench|chaos|contracts|deploy|tests)/[\w/.]+)`")
# Names that a contract or a pair of commands begins, and no setting by themselves.
_NO_SETTINGS: Final = {"EFFECT_BROKER_SECRET", "EFFECT_BROKER_WEBHOOK_KEY"}


@cache
def _prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text("utf-8"))


@cache
def _anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as the usual renderers make them."""
    titles = re.findall(r"^#+ (.+)$", _prose(page), re.MULTILINE)
    return frozenset(
        re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", title).lower()).strip().replace(" ", "-")
        for title in titles
    )


def test_every_page_stands_once_in_the_index() -> None:
    linked = [name for name in _LINK.findall(_prose(INDEX)) if not name.startswith("../")]
    assert sorted(linked) == sorted(p.name for p in DOCS.glob("*.md") if p != INDEX)
    assert "docs/README.md" in _LINK.findall(_prose(CHECKOUT / "README.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_every_link_leads_to_a_place(page: Path) -> None:
    lost = []
    for link in _LINK.findall(_prose(page)):
        name, _, anchor = link.partition("#")
        if "://" in name:
            continue
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            lost.append(link)
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    named = _NAMED_FILE.findall(page.read_text("utf-8"))
    assert [name for name in named if not (CHECKOUT / name).exists()] == []


def _rows(page: str) -> dict[str, str]:
    """The second cell of each row of a page's tables whose first cell is one name."""
    text = (DOCS / page).read_text("utf-8")
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]*?) \|", text, re.MULTILINE))


def _variables() -> frozenset[str]:
    """Every variable that a shipped module names in a text of its own."""
    shipped = [path for path in python_files() if path.is_relative_to(CHECKOUT / "app")]
    shipped += [path for path in python_files() if path.is_relative_to(CHECKOUT / "adapters")]
    whole = {
        node.value
        for path in shipped
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    named = {text for text in whole if _VARIABLE.fullmatch(text)}
    return frozenset(named | {f"EFFECT_BROKER_{name.upper()}" for name in Settings.model_fields})


def test_every_setting_is_explained_on_the_page_of_the_configuration() -> None:
    text = (DOCS / "configuration.md").read_text("utf-8")
    told = set(_VARIABLE.findall(text)) - _NO_SETTINGS
    assert told == _variables()


def test_a_default_that_the_page_of_the_configuration_tells_is_the_default() -> None:
    told = _rows("configuration.md")
    for name, setting in Settings.model_fields.items():
        said = told[f"EFFECT_BROKER_{name.upper()}"].strip("`")
        if isinstance(setting.default, bool):
            assert said == str(setting.default).lower(), name
        elif isinstance(setting.default, int | float):
            assert float(said) == setting.default, name
        elif isinstance(setting.default, str) and setting.default:
            assert said == setting.default, name
        elif name != "home":
            assert not said or not said[0].isdigit(), name


def test_every_code_of_a_problem_is_explained_with_its_status() -> None:
    told = {name: status for name, status in _rows("errors.md").items() if status.isdigit()}
    assert told == {code.value: str(status_of(code)) for code in ProblemCode}


def _command_lines() -> list[tuple[str, str]]:
    lines = []
    for page in PAGES:
        text = page.read_text("utf-8").replace("\\\n", " ")
        for fence in _FENCE.findall(text):
            for line in re.findall(r"^(?:\$ )?effect-broker (.+)$", fence, re.MULTILINE):
                lines.append((page.name, re.split(r"\s{2,}|\s#|\s\||\s>", line)[0]))
        # What a signature begins with looks like a command: `effect-broker receipt v1`.
        for line in re.findall(r"`effect-broker ((?!\w+ v1)[^`]+)`", text):
            lines.append((page.name, line))
    return lines


def _misfit(line: str) -> str | None:
    """What is not there of a command line, None if it is well."""
    command: Any = get_command(app)
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()
    while words and hasattr(command, "commands"):
        found = command.get_command(None, words[0])
        if found is None:
            return words[0] if re.fullmatch("[a-z-]+", words[0]) else None
        command = found
        words = words[1:]
    known = {"--help"} | {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
    given = [word.partition("=")[0] for word in words if re.match("--[a-z]", word)]
    return next((option for option in given if option not in known), None)


def test_every_command_line_of_a_page_is_one() -> None:
    lines = _command_lines()
    assert len(lines) > 100
    misfits = [(page, line, bad) for page, line in lines if (bad := _misfit(line)) is not None]
    assert misfits == []


@pytest.mark.parametrize(
    ("line", "bad"),
    [
        ("effects inspekt ID", "inspekt"),
        ("effects list --unresolvd", "--unresolvd"),
        ("effects list --unresolved", None),
    ],
)
def test_a_planted_mistake_in_a_command_line_is_found(line: str, bad: str | None) -> None:
    assert _misfit(line) == bad
