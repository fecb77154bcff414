"""Every file keeps to the limits of the house, and the project speaks of itself alone."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

from repository.checkout import CHECKOUT, CODE_ROOTS, modules, project_files, python_files, tree

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
# Put together here, so that this file does not contain what it forbids.
FORBIDDEN_WORDS = tuple(
    "".join(parts)
    for parts in (
        ("/wo", "rk/"),
        (".lib", "rary/"),
        ("pypi", ".org"),
        ("python", "hosted.org"),
        ("npm", "js.org"),
        ("npm", "js.com"),
        ("deb.", "debian.org"),
        ("proxy.", "golang.org"),
        ("crates", ".io"),
        ("--index", "-url"),
        ("--extra-index", "-url"),
        ("--find", "-links"),
    )
)


def _relative(path: Path) -> str:
    return str(path.relative_to(CHECKOUT))


def test_a_file_can_be_read_in_one_sitting() -> None:
    lines = {_relative(path): path.read_text("utf-8").count("\n") for path in python_files()}
    assert {path: count for path, count in lines.items() if count > FILE_LINES_MAX} == {}


def test_a_function_fits_on_one_screen() -> None:
    too_long = [
        f"{_relative(path)}: {node.name} at line {node.lineno}"
        for path in python_files()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert too_long == []


def test_a_module_says_what_it_owns() -> None:
    silent = [m.name for m in modules() if m.tree.body and not ast.get_docstring(m.tree)]
    assert silent == []


def test_no_file_names_a_machine_or_a_registry() -> None:
    found = []
    for path in project_files():
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{_relative(path)}: {word}" for word in FORBIDDEN_WORDS if word in text]
    assert found == []


def test_the_word_search_reads_the_files_that_matter() -> None:
    names = {_relative(path) for path in project_files()}
    assert names >= {
        ".ci/run",
        ".github/workflows/ci.yml",
        "app/effect_broker/__init__.py",
        "pyproject.toml",
        "requirements.lock",
        "tests/repository/test_files.py",
    }


def test_no_nested_settings_undo_the_bans() -> None:
    """A ruff.toml in a folder replaces the banned list for that folder, without a word."""
    nested = {"ruff.toml", ".ruff.toml", "mypy.ini", ".mypy.ini", "setup.cfg", "pytest.ini"}
    nested |= {"tox.ini", "pyproject.toml", ".importlinter"}
    found = [path for path in project_files() if path.name in nested]
    assert found == [CHECKOUT / "pyproject.toml"]


def test_every_folder_with_code_is_type_checked() -> None:
    settings = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))
    checked = settings["tool"]["mypy"]["files"]
    with_rules = set(python_files())
    with_code = {path.relative_to(CHECKOUT).parts[0] for path in with_rules}
    assert with_code <= set(checked)
    assert with_code <= set(CODE_ROOTS)
    stray = [p for p in project_files() if p.suffix == ".py" and p not in with_rules]
    assert stray == []
