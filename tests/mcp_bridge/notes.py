"""The scripted notes server as the tests see it: its directory, its contracts, its ledger."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SERVER = Path(__file__).resolve().parent / "notes_server.py"

_CLASSES = {
    "idempotent": "key_retention_seconds: 3600",
    "unsafe": "description: nothing is promised",
    "reconcilable": "settlement_bound_seconds: 1\nprobe: {initial_seconds: 0.2, cap_seconds: 0.5}",
}
_PROBE = """
  probe:
    tool: find_notes
    arguments: {key: {$key: true}}
    items: structuredContent.notes
    key_path: key
    agree: {/title: title}
    complete: "isError == `false`"
    extraction: {external_id: id}
"""


def notes_contract(safety: str, server: str = "", **changes: str) -> str:
    """Return the contract of create_note for a class; the worker starts the server by default."""
    program = "notes-keyed" if safety == "idempotent" else "notes-plain"
    where = server or f"{{kind: program, program: {program}}}"
    name = changes.get("name", f"notes-{safety}")
    return f"""
name: {name}
version: "1"
tool: {changes.get("tool", f"notes.{safety}")}
safety: {safety}
account: notes-test
arguments:
  type: object
  required: [title]
  properties: {{title: {{type: string, maxLength: 200}}, text: {{type: string}}}}
  additionalProperties: false
{_CLASSES[safety]}
attempt_deadline_seconds: {changes.get("deadline", "5")}
transit_seconds: 0.2
clock_margin_seconds: 0.2
retry: {{attempts_max: 3, backoff_initial_seconds: 0.1, backoff_cap_seconds: 0.5}}
adapter:
  kind: mcp
  server: {where}
  tool: create_note
  extraction: {{external_id: structuredContent.id}}
{changes.get("answers", "")}{_PROBE if safety == "reconcilable" else ""}"""


class Notes:
    """One server's directory; every program that is started on it shares what is in it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory

    def programs(self) -> dict[str, Any]:
        """Return a worker's list with this server, keyed and plain."""
        command = {"command": sys.executable, "args": [str(SERVER), str(self.directory)]}
        return {
            "notes-keyed": {**command, "env": {"NOTES_KEYED": "1"}},
            "notes-plain": command,
            "notes-secret": {
                **command,
                "env": {"NOTES_TOKEN": {"secret": "env:EFFECT_BROKER_SECRET_NOTES"}},
            },
        }

    def script(self, *behaviours: str) -> None:
        """Say what the next calls of create_note do."""
        (self.directory / "script").write_text("\n".join(behaviours))

    def add_tools(self, *tools: dict[str, Any]) -> None:
        """Let the server list more tools."""
        (self.directory / "tools.json").write_text(json.dumps(tools))

    def answer_calls_with(self, status: int, location: str = "") -> None:
        """Let the server over HTTP answer each tools/call with a bare status."""
        (self.directory / "status").write_text(f"{status} {location}")

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Every tools/call that has arrived."""
        path = self.directory / "ledger.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def created(self) -> list[dict[str, Any]]:
        """The calls of create_note."""
        return [call for call in self.calls if call["tool"] == "create_note"]

    @property
    def effects(self) -> list[dict[str, Any]]:
        """The notes that are there."""
        path = self.directory / "notes.json"
        found: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
        return found

    @contextmanager
    def over_http(self, *, keyed: bool = False, port: int = 0) -> Iterator[str]:
        """Serve over HTTP, on a free port where none is named; give the URL."""
        process = subprocess.Popen(
            [sys.executable, SERVER, self.directory, "--http", str(port)],
            stdout=subprocess.PIPE,
            text=True,
            env={"NOTES_KEYED": "1" if keyed else "0"},
        )
        with process:
            try:
                assert process.stdout is not None
                yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
            finally:
                process.kill()
