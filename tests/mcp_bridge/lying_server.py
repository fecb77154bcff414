"""An MCP server on pipes that breaks the protocol in the way that its argument names.

Standard library alone, as `notes_server.py`. With a second argument, a file, it lies once: until
the file is there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

WAY = sys.argv[1] if len(sys.argv) > 1 else ""
ONCE = Path(sys.argv[2]) if len(sys.argv) > 2 else None
CHANGES = 1500

READ = {"name": "read", "inputSchema": {"type": "object"}}
MAKE = {"name": "create_note", "inputSchema": {"type": "object", "properties": {"title": {}}}}
CLASH = MAKE | {"inputSchema": {"type": "object", "properties": {"operation_key": {}}}}
GREETING = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {"listChanged": True}},
    "serverInfo": {"name": "liar", "version": "1"},
}


def say(**members: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **members}), flush=True)


def listed() -> list[dict[str, Any]]:
    if WAY == "two_of_one_name":
        return [CLASH, MAKE, READ]
    if WAY == "no_schema":
        return [MAKE | {"inputSchema": {"type": "object", "properties": 5}}]
    return [MAKE, READ]


def call(asked: Any) -> None:
    content: Any = [{"type": "text", "text": "read"}]
    lies = ONCE is None or not ONCE.exists()
    if ONCE is not None:
        ONCE.touch()
    if lies and WAY == "no_end":
        while True:
            sys.stdout.write("x" * 65536)
    elif lies and WAY == "no_text":
        sys.stdout.buffer.write(b"\xff\xfe\x00\n[]\n{\n")
    elif lies and WAY == "other_ids":
        say(id=4711, result={"content": content})
        say(id=None, error={"code": 1, "message": "whose?"})
    elif lies and WAY == "no_content":
        content = "all is well"
    elif lies and WAY == "changes":
        for _ in range(CHANGES):
            say(method="notifications/tools/list_changed")
    say(id=asked, result={"content": content})


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        asked, method = message.get("id"), message.get("method")
        if asked is None:
            continue
        if method == "initialize":
            say(id=asked, result=GREETING)
        elif method == "tools/list":
            say(id=asked, result={"tools": listed()})
        elif method == "tools/call":
            call(asked)
        else:
            say(id=asked, error={"code": -32601, "message": "no such method"})


if __name__ == "__main__":
    main()
