"""An MCP server in this process, over HTTP by the handshake, which charges once for a key."""

from __future__ import annotations

import json
from typing import Any

import yaml

from effect_contracts.mcp_settings import META_KEY
from peers import Arrival, answer, json_answer


class McpTarget:
    """A server with one tool that charges and one that lists.

    Attributes:
        fate: what becomes of the next charges, as in `adapters.test_conformance.Stand`.
    """

    def __init__(self) -> None:
        self.fate = "ok"
        self.entries: dict[str, dict[str, Any]] = {}
        self.arrived: list[str] = []
        self.calls: list[bytes] = []

    def __call__(self, arrival: Arrival) -> None:
        head, _, body = arrival.read_request().partition(b"\r\n\r\n")
        if not head.startswith(b"POST"):
            return arrival.send(answer(405, headers=("Connection: close",)))
        message = json.loads(body)
        if "id" not in message:
            return arrival.send(answer(202, headers=("Connection: close",)))
        params = message.get("params") or {}
        match message["method"], params.get("name"):
            case "initialize", _:
                told: Any = {"protocolVersion": params["protocolVersion"]}
                told |= {"capabilities": {"tools": {}}}
                told |= {"serverInfo": {"name": "shop", "version": "1"}}
            case "tools/call", "charge":
                told = self._charge(params)
            case "tools/call", "find" if self.fate == "ok":
                entry = self.entries.get(params["arguments"]["key"])
                told = _told({"data": [entry] if entry else []})
            case _:
                told = None
        if isinstance(told, bytes):
            return arrival.send(told)
        end = {"error": {"code": -32601, "message": "no"}} if told is None else {"result": told}
        reply = json.dumps({"jsonrpc": "2.0", "id": message["id"], **end})
        return arrival.send(json_answer(200, reply, "Connection: close"))

    def _charge(self, params: dict[str, Any]) -> dict[str, Any] | bytes:
        key, arguments = params["_meta"][META_KEY], params["arguments"]
        self.arrived.append(key)
        sent = {name: params[name] for name in ("name", "arguments", "_meta")}
        self.calls.append(json.dumps(sent).encode())
        if self.fate in {"refuse", "busy"}:
            return _told(self.fate, is_error=True)
        if self.fate not in {"ok", "lose"}:
            return b"\x00garbage\r\n\r\n"
        entry = self.entries.setdefault(
            key, {"id": f"ch_{len(self.entries)}", "idempotency_key": key, **arguments}
        )
        if any(entry[name] != arguments[name] for name in arguments):
            return _told("another charge", is_error=True)
        return b"" if self.fate == "lose" else _told(entry)


def _told(value: Any, *, is_error: bool = False) -> dict[str, Any]:
    text = value if isinstance(value, str) else json.dumps(value)
    result = {"content": [{"type": "text", "text": text}], "isError": is_error}
    return result if is_error else {**result, "structuredContent": value}


MCP = """
kind: mcp
server: {kind: http, url: URL}
tool: charge
answers:
  rejected: [{match: "isError && text == 'refuse'", code: refused, proves_no_commit: true}]
  retryable: [{match: "isError && text == 'busy'", code: busy, proves_no_commit: true}]
  key_conflict: [{match: "isError && text == 'another charge'", code: another_charge}]
extraction: {external_id: structuredContent.id}
probe:
  tool: find
  arguments: {key: {$key: true}}
  items: structuredContent.data
  key_path: idempotency_key
  agree: {/amount: amount, /currency: currency}
  complete: "isError == `false`"
  extraction: {external_id: id}
"""


def mcp_settings(url: str) -> dict[str, Any]:
    """Return the adapter's section of a reconcilable contract for the server."""
    settings: dict[str, Any] = yaml.safe_load(MCP.replace("URL", url))
    return settings
