"""Keys can be made wherever the SDK is: no framework, server or client is loaded for them."""

from __future__ import annotations

import json
import subprocess
import sys

from repository.checkout import CHECKOUT

FOREIGN = {
    "agents", "alembic", "celery", "dbos", "effect_adapters", "fastapi", "httpx", "langgraph",
    "openai", "psycopg", "pydantic", "pydantic_ai", "restate", "sqlalchemy", "starlette",
    "temporalio", "typer", "uvicorn",
}  # fmt: skip
PROGRAM = """
import json, pkgutil, sys
from importlib import import_module
from effect_broker import operation_keys
found = [module.name for module in pkgutil.iter_modules(operation_keys.__path__)]
for name in found:
    import_module(f"effect_broker.operation_keys.{name}")
loaded = {name.partition(".")[0] for name in sys.modules}
print(json.dumps({"found": found, "loaded": sorted(loaded)}))
"""


def test_no_framework_is_loaded_for_a_key() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60,
        cwd=CHECKOUT,
    )  # fmt: skip
    said = json.loads(done.stdout)
    assert {"celery", "dbos", "langgraph", "openai_agents", "pydantic_ai", "restate",
            "temporal", "tool_calls"} <= set(said["found"])  # fmt: skip
    assert FOREIGN & set(said["loaded"]) == set()
