"""What docs/operation-keys.md shows is what there is."""

from __future__ import annotations

import ast
import re
from importlib import import_module

from effect_contracts.key_smells import Smell
from repository.checkout import CHECKOUT

PAGE = CHECKOUT / "docs" / "operation-keys.md"
FRAMEWORKS = ("temporalio", "dbos", "langgraph", "pydantic_ai", "celery", "restate")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def _imports(block: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom):
            found[str(node.module)] = [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            found |= {alias.name: [] for alias in node.names}
    return found


def test_the_examples_without_a_framework_run() -> None:
    own = [b for b in BLOCKS if not any(m.startswith(FRAMEWORKS) for m in _imports(b))]
    assert len(own) == 2
    for block in own:
        exec(compile(block, PAGE.name, "exec"), {})


def test_every_function_that_an_example_imports_is_there() -> None:
    named = [
        (module, name)
        for block in BLOCKS
        for module, names in _imports(block).items()
        if module.startswith("effect_broker")
        for name in names
    ]
    assert len(named) >= 9
    for module, name in named:
        if not hasattr(import_module(module), name):
            import_module(f"{module}.{name}")


def test_the_page_names_every_smell() -> None:
    text = PAGE.read_text("utf-8")
    assert [smell for smell in Smell if f"| `{smell}` |" not in text] == []
