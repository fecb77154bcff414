"""Who may import what, as one literal, and the judge that reads a module's imports against it.

The arrows between packages are checked twice: import-linter sees whole chains, this sees each
single import, also of modules that are not written yet, inside functions and for types only.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

# What the pure package may take from the standard library: values and functions, no world.
PURE_STANDARD: Final = frozenset(
    {
        "__future__", "abc", "base64", "binascii", "bisect", "collections", "copy", "dataclasses",
        "datetime", "decimal", "difflib", "enum", "fractions", "functools", "hashlib", "heapq",
        "hmac", "ipaddress", "itertools", "json", "math", "numbers", "operator", "re", "string",
        "struct", "textwrap", "types", "typing", "unicodedata", "urllib.parse", "uuid", "zlib",
    }
)  # fmt: skip
PURE_LIBRARIES: Final = frozenset(
    {
        "annotated_types", "cryptography", "jmespath", "jsonschema", "pydantic", "pydantic_core",
        "referencing", "rfc8785", "typing_extensions", "uritemplate", "yaml",
    }
)  # fmt: skip

# The one module of the pure package that reads files: it finds the documents that ship beside it.
# Nothing else of the package may lean on it.
CATALOG: Final = "effect_contracts.catalog"
CATALOG_STANDARD: Final = "importlib.resources"

# Library -> the modules of ours (each with all below it) that may import it.
OWNERS: Final[dict[str, frozenset[str]]] = {
    "dbos": frozenset({"effect_broker.durable"}),
    "psycopg": frozenset(
        {
            "effect_adapters.postgres",
            "effect_broker.postgres.embedded",
            "effect_broker.migrate",
            "effect_broker.receiving.postgres_keys",
            "effect_broker.store",
        }
    ),
    "psycopg_pool": frozenset({"effect_adapters.postgres", "effect_broker.store"}),
    "sqlalchemy": frozenset({"effect_broker.migrate", "effect_broker.store"}),
    "alembic": frozenset({"effect_broker.migrate", "effect_broker.store"}),
    "fastapi": frozenset({"effect_broker.api"}),
    "typer": frozenset({"effect_broker.cli"}),
    "mcp": frozenset(
        {"effect_adapters.mcp", "effect_broker.mcp", "effect_broker.receiving.mcp_tools"}
    ),
    # Callers speak HTTP: the SDK, and what plays a caller in proofs and checks. Targets are spoken
    # to by adapters.
    "httpx": frozenset(
        {
            "effect_adapters.http",
            "effect_broker.cli.conformance",
            "effect_broker.proof",
            "effect_broker.sdk",
        }
    ),
}

# Step bodies run unchanged in the simulator: what they need of the world is handed to them.
STEP_BODIES: Final = "effect_broker.protocol"
NOT_IN_STEP_BODIES: Final = frozenset(
    {
        "asyncio", "dbos", "fastapi", "httpx", "os", "psycopg", "psycopg_pool", "random", "secrets",
        "socket", "sqlalchemy", "subprocess", "threading", "time", "typer",
        "effect_broker.api", "effect_broker.cli", "effect_broker.durable", "effect_broker.store",
        "effect_broker.worker",
    }
)  # fmt: skip

# Package -> packages of ours that it may import, itself aside.
ARROWS: Final[dict[str, frozenset[str]]] = {
    "effect_contracts": frozenset(),
    "effect_adapters": frozenset({"effect_contracts"}),
    "effect_broker": frozenset({"effect_adapters", "effect_contracts"}),
    "effect_chaos": frozenset({"effect_contracts"}),
}

# A broker with a bug planted in it is a broker: it imports what it breaks. Nothing else of chaos
# leans on it, the auditor least of all.
PLANTED: Final = "effect_chaos.planted"


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name as far as it can be a module, and the line that imports it."""

    name: str
    line: int


def imports(module_name: str, tree: ast.Module, *, is_package: bool) -> Iterator[Import]:
    """Every import in the module, wherever it stands; relative ones are made absolute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(module_name, node, is_package=is_package)
            for alias in node.names:
                # `from urllib import parse` names a module in its second part.
                yield Import(f"{source}.{alias.name}", node.lineno)


def violations(module_name: str, tree: ast.Module, *, is_package: bool = False) -> list[str]:
    """What the module imports and must not, as sentences."""
    found: list[str] = []
    for imported in imports(module_name, tree, is_package=is_package):
        reason = _forbidden(module_name, imported.name)
        if reason:
            found.append(f"{module_name}:{imported.line} imports {imported.name}: {reason}")
    return found


def _forbidden(importer: str, imported: str) -> str | None:
    package = importer.partition(".")[0]
    top = imported.partition(".")[0]
    if _within(imported, PLANTED) and not _within(importer, PLANTED):
        return "a broken broker is run, not imported"
    planted = _within(importer, PLANTED)
    if top in ARROWS and top != package and top not in ARROWS[package] and not planted:
        return f"{package} may not import {top}"
    if package == "effect_contracts" and (reason := _impure(importer, imported)):
        return reason
    if _within(importer, STEP_BODIES) and any(_within(imported, n) for n in NOT_IN_STEP_BODIES):
        return "step bodies are given what they need of the world"
    # Chaos stands outside: it drives processes, and owns no rule about their libraries.
    owners = OWNERS.get(top)
    if owners and package != "effect_chaos" and not any(_within(importer, o) for o in owners):
        return f"only {', '.join(sorted(owners))} may"
    return None


def _impure(importer: str, imported: str) -> str | None:
    if importer == CATALOG and _within(imported, CATALOG_STANDARD):
        return None
    if _within(imported, CATALOG):
        return "the protocol does not lean on the catalog"
    if _within(imported, "effect_contracts") or _pure(imported):
        return None
    return "effect_contracts is pure"


def _pure(imported: str) -> bool:
    if imported.partition(".")[0] in sys.stdlib_module_names:
        return any(_within(imported, name) for name in PURE_STANDARD)
    return any(_within(imported, name) for name in PURE_LIBRARIES)


def _within(name: str, module: str) -> bool:
    return name == module or name.startswith(module + ".")


def _absolute(module_name: str, node: ast.ImportFrom, *, is_package: bool) -> str:
    if node.level == 0:
        return node.module or ""
    parts = module_name.split(".")
    # One dot is the package itself: the module's parent, or the module where it is a package.
    kept = parts[: len(parts) - node.level + (1 if is_package else 0)]
    return ".".join([*kept, *([node.module] if node.module else [])])
