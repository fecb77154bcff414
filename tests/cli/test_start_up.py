"""A command that reads one row loads no engine, no server and no client of any target."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = {"alembic", "boto3", "dbos", "httpx", "mcp", "openai", "sqlalchemy", "uvicorn"}

PROGRAM = """
import json, sys
import effect_broker.cli
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def test_the_command_line_loads_what_it_needs_and_no_more() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(json.loads(done.stdout))
    assert "effect_broker" in loaded
    assert not loaded & HEAVY
