"""A command loads what it needs: nobody waits for the engine or the API to read one row."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {
    "alembic", "boto3", "dbos", "fastapi", "httpx", "mcp", "openai", "sqlalchemy", "uvicorn",
}  # fmt: skip

PROGRAM = """
import json, sys
from effect_broker.cli.main import app
try:
    app({words!r}, prog_name="effect-broker")
except SystemExit:
    pass
{more}
print(json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}})), file=sys.stderr)
"""


def loaded(*words: str, more: str = "") -> set[str]:
    """What a process has loaded that runs a command, and then a line of Python."""
    program = PROGRAM.format(words=list(words), more=more)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return set(json.loads(done.stderr))


def test_the_version_is_told_without_a_database_a_contract_or_a_key() -> None:
    names = loaded("--version")
    assert "effect_broker" in names
    assert not names & (HEAVY | {"psycopg", "effect_contracts", "cryptography"})


@pytest.mark.parametrize("words", [("effects", "list", "--help"), ("contracts", "--help")])
def test_the_command_line_loads_what_it_needs_and_no_more(words: tuple[str, ...]) -> None:
    assert not loaded(*words) & HEAVY


def test_what_is_loaded_is_seen() -> None:
    assert "uvicorn" in loaded("--version", more="import uvicorn")
