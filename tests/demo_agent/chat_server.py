"""A server that speaks the chat completions API from a script, and counts what it is asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from effect_broker.proof.agent.words import Call


@dataclass(slots=True)
class Asked:
    """One request, as it was on the wire."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass(slots=True)
class ChatServer:
    """What is answered next, and what was asked so far."""

    url: str
    answers: list[tuple[int, Any]]
    asked: list[Asked] = field(default_factory=list)


def completion(text: str, *calls: Call) -> dict[str, Any]:
    """Return the body that both providers answer with."""
    asked = [
        {
            "id": call.call_id,
            "type": "function",
            "function": {"name": call.tool, "arguments": call.arguments},
        }
        for call in calls
    ]
    message = {"role": "assistant", "content": text or None}
    choice = {
        "index": 0,
        "finish_reason": "tool_calls" if asked else "stop",
        "message": message | ({"tool_calls": asked} if asked else {}),
    }
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
    }


@contextmanager
def chat_server(*answers: tuple[int, Any]) -> Iterator[ChatServer]:
    """Serve these answers, one for each request; then 500."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            headers = {name.lower(): value for name, value in self.headers.items()}
            served.asked.append(Asked(self.path, headers, body))
            status, answer = served.answers.pop(0) if served.answers else (500, {})
            sent = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, format: str, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served = ChatServer(f"http://127.0.0.1:{server.server_address[1]}/v1", list(answers))
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()
