"""What a server owner loads: nothing of the broker, and no framework before it is asked for."""

from __future__ import annotations

import json
import subprocess
import sys

from repository.checkout import CHECKOUT

HEAVY = {
    "alembic", "dbos", "effect_adapters", "fastapi", "httpx", "httpx2", "jinja2", "mcp", "psycopg",
    "psycopg_pool", "pydantic", "sqlalchemy", "sqlite3", "starlette", "typer", "uvicorn",
}  # fmt: skip
PROGRAM = """
import json, sys
import effect_broker.receiving as receiving
def loaded():
    return sorted({name.partition(".")[0] for name in sys.modules})
said = {"first": loaded()}
receiving.IdempotentASGI, receiving.run_once, receiving.KeyedRequest
said["asgi"] = loaded()
receiving.SqliteKeys
said["sqlite"] = loaded()
receiving.PostgresKeys
said["postgres"] = loaded()
said["ours"] = sorted(name for name in sys.modules if name.startswith("effect_broker"))
said["all"] = [name for name in receiving.__all__ if getattr(receiving, name) is None]
print(json.dumps(said))
"""


def test_nothing_is_loaded_before_it_is_used() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60,
        cwd=CHECKOUT,
    )  # fmt: skip
    said = json.loads(done.stdout)
    assert HEAVY & set(said["first"]) == set()
    assert HEAVY & set(said["asgi"]) == set()
    assert HEAVY & set(said["sqlite"]) == {"sqlite3"}
    assert HEAVY & set(said["postgres"]) == {"sqlite3", "psycopg"}
    assert [n for n in said["ours"] if not n.startswith("effect_broker.receiving")] == [
        "effect_broker", "effect_broker.clock", "effect_broker.log_events",
    ]  # fmt: skip
    assert said["all"] == []
