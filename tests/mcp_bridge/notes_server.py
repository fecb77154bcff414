"""An MCP server that does what a script says, and writes down what reached it.

Standard library alone, so that it starts in no time and shares no code with what is tested; the
handshake protocol, over stdio or over HTTP with JSON answers. Its directory holds:

    ledger.jsonl  one line for each tools/call, written before anything is done
    notes.json    the notes: what a person would count as effects
    script        behaviours of the next calls of create_note, one a line (`ok` when it is empty)
    tools.json    tools that it lists besides its own, as a list

Behaviours: ok, slow (half a second), error (refused before anything is done, as a tool's error),
error_after (done, and then a tool's error), refuse (a JSON-RPC error), die_before, die_after (the
process ends before or after the note is there), hang_before, hang_after, large (a result of 2 MiB).
With NOTES_KEYED=1 it honours the key in `_meta`: one note for one key, other arguments refused.
"""

from __future__ import annotations

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

META_KEY = "dev.effect-broker/idempotency-key"
# The tests read the names below too, from a process with other arguments or none.
DIRECTORY = Path(*sys.argv[1:2])
KEYED = os.environ.get("NOTES_KEYED") == "1"

NOTE = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "title": {"type": "string"}},
    "required": ["id", "title"],
}
TOOLS = [
    {
        "name": "create_note",
        "title": "Create a note",
        "description": "Creates a note and returns it.",
        "inputSchema": {
            "type": "object",
            "properties": {"title": {"type": "string"}, "text": {"type": "string"}},
            "required": ["title"],
            "additionalProperties": False,
        },
        "outputSchema": NOTE,
        "annotations": {"destructiveHint": False, "idempotentHint": True},
    },
    {
        "name": "find_notes",
        "description": "Lists the notes that carry a key.",
        "inputSchema": {"type": "object", "properties": {"key": {"type": "string"}}},
        "annotations": {"readOnlyHint": True},
    },
]
SECOND_PAGE = [
    {
        "name": "delete_note",
        "description": "Deletes a note.",
        "inputSchema": {"type": "object", "properties": {"id": {"type": "string"}}},
        "annotations": {"destructiveHint": True},
    },
]


def ledger(line: dict[str, Any]) -> None:
    with (DIRECTORY / "ledger.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def notes() -> list[dict[str, Any]]:
    path = DIRECTORY / "notes.json"
    return json.loads(path.read_text()) if path.exists() else []


def next_behaviour() -> str:
    path = DIRECTORY / "script"
    lines = path.read_text().split() if path.exists() else []
    path.write_text("\n".join(lines[1:]))
    return lines[0] if lines else "ok"


def told(value: Any, *, is_error: bool = False) -> dict[str, Any]:
    text = value if isinstance(value, str) else json.dumps(value)
    result: dict[str, Any] = {"content": [{"type": "text", "text": text}]}
    if not isinstance(value, str):
        result["structuredContent"] = value
    return {"result": {**result, "isError": is_error}}


def create_note(arguments: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
    behaviour, key = next_behaviour(), meta.get(META_KEY)
    if behaviour == "refuse":
        return {"error": {"code": -32602, "message": "arguments refused", "data": {"why": "x"}}}
    if behaviour == "error":
        return told("the notebook is closed", is_error=True)
    if behaviour == "die_before":
        os._exit(3)
    if behaviour == "hang_before":
        time.sleep(600)
    if behaviour == "slow":
        time.sleep(0.5)
    kept = notes()
    same = [note for note in kept if KEYED and key is not None and note["key"] == key]
    if same and same[0]["arguments"] != arguments:
        return told("this key stands for another note", is_error=True)
    if same:
        note = same[0]
    else:
        note = {"id": f"note-{len(kept) + 1}", "key": key, "arguments": arguments}
        kept.append(note | {"title": arguments["title"]})
        (DIRECTORY / "notes.json").write_text(json.dumps(kept))
    if behaviour == "die_after":
        os._exit(3)
    if behaviour == "hang_after":
        time.sleep(600)
    if behaviour == "error_after":
        return told("the notebook was closed too late", is_error=True)
    answer = told({"id": note["id"], "title": arguments["title"]})
    if behaviour == "large":
        answer["result"]["content"].append({"type": "text", "text": "x" * 2**21})
    answer["result"]["_meta"] = {"notes.example/shelf": 7}
    return answer


def call_tool(params: dict[str, Any]) -> dict[str, Any]:
    name, arguments = params["name"], params.get("arguments") or {}
    meta = params.get("_meta") or {}
    ledger({"tool": name, "arguments": arguments, "meta": meta, "pid": os.getpid()})
    if name == "create_note":
        return create_note(arguments, meta)
    if name == "find_notes":
        key = arguments.get("key")
        return told({"notes": [n for n in notes() if key in (None, n["key"])]})
    if name == "delete_note":
        (DIRECTORY / "notes.json").write_text("[]")
        return told("deleted")
    return told(f"called {name}")


def answer(message: dict[str, Any]) -> dict[str, Any]:
    method, params = message["method"], message.get("params") or {}
    if method == "initialize":
        return {
            "result": {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "notes", "version": "1"},
            }
        }
    if method == "tools/list":
        if params.get("cursor") == "second":
            return {"result": {"tools": SECOND_PAGE}}
        extra = DIRECTORY / "tools.json"
        more = json.loads(extra.read_text()) if extra.exists() else []
        return {"result": {"tools": TOOLS + more, "nextCursor": "second"}}
    if method == "tools/call":
        return call_tool(params)
    if method == "ping":
        return {"result": {}}
    return {"error": {"code": -32601, "message": "no such method"}}


def over_stdio() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            reply = {"jsonrpc": "2.0", "id": message["id"], **answer(message)}
            sys.stdout.write(json.dumps(reply) + "\n")
            sys.stdout.flush()


class Http(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        message = json.loads(body)
        status = DIRECTORY / "status"
        if message.get("method") == "tools/call" and status.exists():
            ledger({"tool": "refused_by_status"})
            code, _, location = status.read_text().partition(" ")
            return self._send(int(code), b"", {"Location": location} if location else {})
        if "id" not in message:
            return self._send(202, b"", {})
        reply = {"jsonrpc": "2.0", "id": message["id"], **answer(message)}
        self._send(200, json.dumps(reply).encode(), {"Content-Type": "application/json"})

    def do_GET(self) -> None:
        self._send(405, b"", {})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Quiet(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # callers reset their connections


def over_http() -> None:
    server = Quiet(("127.0.0.1", int(sys.argv[-1])), Http)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    over_http() if "--http" in sys.argv else over_stdio()
