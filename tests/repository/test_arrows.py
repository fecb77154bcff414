"""The arrows hold in every module, and the judge catches a planted wrong import."""

from __future__ import annotations

import ast
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from repository.arrows import imports, violations
from repository.checkout import CHECKOUT, PACKAGES, modules, python_files, tree


def test_a_module_imports_only_what_its_place_allows() -> None:
    found = {
        m.name: violations(m.name, m.tree, is_package=m.path.name == "__init__.py")
        for m in modules()
    }
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("effect_contracts.decide", "import asyncio"),
        ("effect_contracts.decide", "import time"),
        ("effect_contracts.decide", "from urllib.request import urlopen"),
        ("effect_contracts.decide", "import httpx"),
        ("effect_contracts.decide", "import effect_adapters.http"),
        ("effect_contracts.decide", "def f() -> None:\n    import socket"),
        ("effect_contracts.decide", "from importlib.resources import files"),
        ("effect_contracts.decide", "from effect_contracts import catalog"),
        ("effect_adapters.http", "from effect_broker.clock import Clock"),
        ("effect_adapters.http", "import psycopg"),
        ("effect_adapters.http", "import dbos"),
        ("effect_broker.worker", "from dbos import DBOS"),
        ("effect_broker.api.app", "import psycopg"),
        ("effect_broker.worker", "import sqlalchemy as sa"),
        ("effect_broker.worker", "from fastapi import FastAPI"),
        ("effect_broker.apiary", "from fastapi import FastAPI"),
        ("effect_broker.worker", "import typer"),
        ("effect_broker.worker", "import httpx"),
        ("effect_broker.protocol.steps", "import asyncio"),
        ("effect_broker.protocol.steps", "from time import monotonic"),
        ("effect_broker.protocol.steps", "import httpx"),
        ("effect_broker.protocol.steps", "from effect_broker.store import postgres"),
        ("effect_broker.protocol.steps", "from effect_broker import store"),
        ("effect_broker.protocol.steps", "from ..store import postgres"),
        ("effect_broker.protocol.steps", "from .. import store"),
        ("effect_broker.worker", "import effect_chaos"),
        ("effect_chaos.auditor", "from effect_broker import clock"),
        ("effect_chaos.auditor", "import effect_adapters"),
        ("effect_chaos.auditor", "from effect_chaos.planted import stage"),
        ("effect_chaos.supervisor", "from effect_broker import clock"),
    ],
)
def test_a_planted_wrong_import_is_found(module: str, line: str) -> None:
    assert violations(module, ast.parse(line))


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("effect_contracts.keys", "import hmac\nfrom urllib.parse import quote"),
        ("effect_contracts.keys", "from urllib import parse"),
        ("effect_contracts.keys", "from cryptography.hazmat.primitives import hashes"),
        ("effect_contracts.keys", "from effect_contracts import facts\nfrom . import facts as f"),
        ("effect_contracts.catalog", "from importlib.resources import files"),
        ("effect_adapters.postgres", "import psycopg"),
        ("effect_adapters.http", "import httpx"),
        ("effect_broker.sdk.http", "import httpx"),
        ("effect_broker.durable", "from dbos import DBOS"),
        ("effect_broker.store.postgres", "import psycopg_pool"),
        ("effect_broker.api.app", "from fastapi import FastAPI"),
        (
            "effect_broker.protocol.steps",
            "from .ports import Store\nfrom effect_contracts import x",
        ),
        ("effect_chaos.workload", "import psycopg\nimport effect_contracts"),
        ("effect_chaos.planted.api_bugs", "import effect_broker.intake\nimport effect_adapters"),
    ],
)
def test_an_import_in_its_place_is_allowed(module: str, line: str) -> None:
    assert violations(module, ast.parse(line)) == []


def test_a_relative_import_in_a_package_starts_at_the_package() -> None:
    relative = ast.parse("from .store import postgres")
    assert violations("effect_broker.protocol", relative, is_package=True) == []
    assert violations("effect_broker.protocol", ast.parse("from ..store import x"), is_package=True)


def test_the_checkout_is_not_on_the_path() -> None:
    """Else every module could be imported by a second name, with a second set of classes."""
    assert str(CHECKOUT) not in sys.path


def test_no_module_is_imported_through_its_source_root() -> None:
    second_names = tuple(f"{root}.{package}" for package, root in PACKAGES.items())
    wrong = [
        f"{path.relative_to(CHECKOUT)}: {found.name}"
        for path in python_files()
        for found in imports("", tree(path), is_package=False)
        if found.name.startswith(second_names)
    ]
    assert wrong == []


def test_import_linter_keeps_the_contracts() -> None:
    result = _lint_imports(CHECKOUT / "pyproject.toml")
    assert result.returncode == 0, result.stdout + result.stderr


def test_import_linter_finds_a_chain_that_starts_in_the_pure_package(tmp_path: Path) -> None:
    """The external libraries are in the graph: else the contract would hold for want of sight."""
    planted = tmp_path / "effect_contracts"
    planted.mkdir()
    (planted / "__init__.py").write_text("")
    (planted / "decide.py").write_text("from effect_contracts import inner\n")
    (planted / "inner.py").write_text("import time\nimport httpx\n")
    settings = tmp_path / "settings.toml"
    settings.write_text(
        '[tool.importlinter]\nroot_packages = ["effect_contracts"]\n'
        "include_external_packages = true\n"
        '[[tool.importlinter.contracts]]\nid = "pure"\nname = "pure"\ntype = "forbidden"\n'
        'source_modules = ["effect_contracts"]\nforbidden_modules = ["time", "httpx"]\n'
    )
    result = _lint_imports(settings, tmp_path)
    assert result.returncode == 1
    assert "effect_contracts.inner -> time" in result.stdout
    assert "effect_contracts.inner -> httpx" in result.stdout


def _lint_imports(settings: Path, *search: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sysconfig.get_path("scripts")) / "lint-imports"
    return subprocess.run(
        [str(program), "--no-logo", "--no-cache", str(settings)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=CHECKOUT,
        env={"PYTHONPATH": ":".join(str(path) for path in search), "PATH": "/usr/bin:/bin"},
    )
