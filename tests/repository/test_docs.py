"""The pages of the documentation: each is found, and those that list things list all of them.

That what pages name is there, `tests/cli/test_pages.py` sees to.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

from effect_broker.config import Settings
from effect_contracts.errors import ProblemCode, status_of
from repository.checkout import CHECKOUT, python_files, tree

DOCS: Final = CHECKOUT / "docs"
INDEX: Final = DOCS / "README.md"

_FENCE: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_VARIABLE: Final = re.compile(r"EFFECT_BROKER_[A-Z_]*[A-Z]")
# Names that a contract or a pair of commands begins, and no setting by themselves.
_NO_SETTINGS: Final = {"EFFECT_BROKER_SECRET", "EFFECT_BROKER_WEBHOOK_KEY"}


def _prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text("utf-8"))


def test_every_page_stands_once_in_the_index() -> None:
    linked = [name for name in _LINK.findall(_prose(INDEX)) if not name.startswith("../")]
    assert sorted(linked) == sorted(p.name for p in DOCS.glob("*.md") if p != INDEX)
    assert "docs/README.md" in _LINK.findall(_prose(CHECKOUT / "README.md"))


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
