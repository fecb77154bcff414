"""The checkout as the repository tests see it: its files, roots and modules."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

CHECKOUT: Final = Path(__file__).resolve().parents[2]

# Package name -> source root. `effect_chaos` is in the checkout only.
PACKAGES: Final = {
    "effect_broker": "app",
    "effect_adapters": "adapters",
    "effect_contracts": "contracts",
    "effect_chaos": "chaos",
}
CODE_ROOTS: Final = ("app", "contracts", "adapters", "chaos", "bench", "tests")
# Made by programs or by a machine, and never committed.
UNTRACKED: Final = frozenset({".git", "__pycache__", "build", "dist", "node_modules"})


@dataclass(frozen=True, slots=True)
class Module:
    """One module of a package: its dotted name, its file and its parsed text."""

    name: str
    path: Path
    tree: ast.Module


def python_files() -> list[Path]:
    """Every Python file of the checkout, below the code roots."""
    return sorted(
        path
        for root in CODE_ROOTS
        for path in (CHECKOUT / root).rglob("*.py")
        if not UNTRACKED.intersection(path.parts)
    )


def project_files() -> list[Path]:
    """Every file that belongs to the project, with those of `.ci` and `.github`."""
    kept_dotted = {".ci", ".github", ".gitignore", ".dockerignore"}
    found: list[Path] = []
    for top in sorted(CHECKOUT.iterdir()):
        if top.name in UNTRACKED or (top.name.startswith(".") and top.name not in kept_dotted):
            continue
        if top.is_dir() and (top / "pyvenv.cfg").exists():
            continue
        inside = top.rglob("*") if top.is_dir() else iter([top])
        found.extend(
            path for path in inside if path.is_file() and not UNTRACKED.intersection(path.parts)
        )
    return sorted(found)


@cache
def tree(path: Path) -> ast.Module:
    """The parsed text of a Python file; parsed once for all the rules that read it."""
    return ast.parse(path.read_text("utf-8"))


@cache
def modules() -> tuple[Module, ...]:
    """Every module of the four packages, parsed."""
    return tuple(
        Module(_module_name(path, CHECKOUT / root), path, tree(path))
        for package, root in PACKAGES.items()
        for path in sorted((CHECKOUT / root / package).rglob("*.py"))
    )


def _module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
