"""A server behind the proxy that breaks the protocol: it hurts its own calls, and nothing else."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client
from mcp.client.session import IncomingMessage
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ToolListChangedNotification

from effect_broker import AsyncBroker
from effect_broker.mcp import upstream_ways
from effect_broker.mcp.proxy_config import read_config
from effect_contracts.facts import Outcome
from mcp_bridge.clients import proxied, text_of, tools_of
from mcp_bridge.lying_server import GREETING, READ
from mcp_bridge.test_adapter import contract, dispatch

LIAR = Path(__file__).with_name("lying_server.py")
# Reads never reach the broker.
NOWHERE = {"EFFECT_BROKER_URL": "http://127.0.0.1:9", "EFFECT_BROKER_API_KEY": "none"}


@asynccontextmanager
async def before(
    upstream: dict[str, Any], hear: Any = None, **changes: Any
) -> AsyncIterator[Client]:
    """Give a client of a proxy before this server."""
    value = {
        "upstream": upstream,
        "protocol": "legacy",
        "tools": {"create_note": {"effect": "notes.unsafe"}, "read": "read_only"},
        "answer_bytes_max": 1 << 20,
        **changes,
    }
    made = read_config(json.dumps(value))
    async with (
        AsyncBroker.from_environment(NOWHERE) as broker,
        proxied(broker, made, "legacy", hear) as client,
    ):
        yield client


def liar(*arguments: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": [str(LIAR), *arguments]}


async def read(client: Client) -> CallToolResult:
    # Not the client's own way to call, which lists the tools first.
    result = await client.session.call_tool("read", {})
    assert isinstance(result, CallToolResult)
    return result


async def test_a_message_without_an_end_ends_the_line_and_a_new_one_is_opened(
    tmp_path: Path,
) -> None:
    async with before(liar("no_end", str(tmp_path / "lied"))) as client:
        lost = await read(client)
        assert lost.is_error
        assert "upstream_lost" in text_of(lost)
        assert text_of(await read(client)) == "read"


@pytest.mark.parametrize("way", ["no_text", "other_ids"])
async def test_what_answers_nothing_is_passed_over(way: str) -> None:
    async with before(liar(way), read_seconds=20) as client:
        assert text_of(await read(client)) == "read"
        assert text_of(await read(client)) == "read"


async def test_an_answer_that_the_protocol_does_not_know_is_told_as_one(tmp_path: Path) -> None:
    async with before(liar("no_content", str(tmp_path / "lied"))) as client:
        unread = await read(client)
        assert unread.is_error
        assert "the protocol does not know" in text_of(unread)
        assert text_of(await read(client)) == "read"
    async with before(liar("no_schema")) as client:
        with pytest.raises(MCPError, match="the protocol does not know"):
            await tools_of(client)


async def test_two_tools_of_one_name_are_refused_where_one_has_the_keys_property() -> None:
    async with before(liar("two_of_one_name")) as client:
        await client.list_tools(cache_mode="bypass")
        refused = await client.session.call_tool("create_note", {"operation_key": "k"})
    assert isinstance(refused, CallToolResult)
    assert "tool_changed" in text_of(refused)


async def test_changes_without_an_end_are_passed_on_now_and_then() -> None:
    heard: list[IncomingMessage] = []

    async def hear(message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            heard.append(message)

    async with before(liar("changes"), hear) as client:
        await tools_of(client)
        assert text_of(await read(client)) == "read"
        async with asyncio.timeout(10):
            while not heard:  # noqa: ASYNC110 - what is heard is a list
                await asyncio.sleep(0.01)
    assert len(heard) < 50


# Over HTTP ---------------------------------------------------------------------------------------


class Answers:
    """A server over HTTP whose answers to calls are made by the test."""

    def __init__(self) -> None:
        self.encodings: list[str | None] = []
        self.left = threading.Event()
        # A session has an end, to which this server says nothing.
        self.farewell, self.let_go = threading.Event(), threading.Event()
        self.drips = False

    def call(self, handler: BaseHTTPRequestHandler, asked: Any) -> None:
        self.encodings.append(handler.headers.get("accept-encoding"))
        body = message(asked, {"content": [{"type": "text", "text": "x" * 4_000_000}]})
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        if self.drips:
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            try:
                while True:
                    handler.wfile.write(b" ")
                    time.sleep(0.02)
            except OSError:
                self.left.set()
            return
        # Small on the wire, and four times over the limit where it is opened.
        packed = gzip.compress(body)
        handler.send_header("Content-Encoding", "gzip")
        handler.send_header("Content-Length", str(len(packed)))
        handler.end_headers()
        handler.wfile.write(packed)


def message(asked: Any, result: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": asked, "result": result}).encode()


@contextmanager
def over_http(answers: Answers) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            self.send_error(405)

        def do_DELETE(self) -> None:
            answers.farewell.set()
            answers.let_go.wait(20)
            self.send_error(405)

        def do_POST(self) -> None:
            told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked, method = told.get("id"), told.get("method")
            if method == "tools/call":
                return answers.call(self, asked)
            if asked is None:
                body = b""
            elif method == "initialize":
                body = message(asked, GREETING)
            else:
                body = message(asked, {"tools": [READ, {**READ, "name": "create_note"}]})
            self.send_response(200 if body else 202)
            if method == "initialize":
                self.send_header("Mcp-Session-Id", "a-session")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/mcp"
    finally:
        answers.let_go.set()
        server.shutdown()
        thread.join()
        server.server_close()


async def test_a_compressed_answer_is_not_opened_by_the_proxy() -> None:
    answers = Answers()
    with over_http(answers) as url:
        async with before({"url": url}) as client:
            assert (await read(client)).is_error
    assert answers.encodings == ["identity"]


async def test_a_compressed_answer_is_not_opened_by_a_worker() -> None:
    answers = Answers()
    with over_http(answers) as url:
        document = contract("unsafe", f'{{kind: http, url: "{url}"}}')
        answer = await dispatch(document)
    assert (answer.outcome, answer.code) == (Outcome.AMBIGUOUS, "answer_compressed")
    assert answers.encodings == ["identity"]


async def test_an_answer_that_drips_is_left_when_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upstream_ways, "_GRACE_SECONDS", 0.2)
    answers = Answers()
    answers.drips = True
    with over_http(answers) as url:
        async with before({"url": url}, read_seconds=0.3) as client:
            with pytest.raises(MCPError, match="timed out"):
                await read(client)
            # While the line stays open.
            assert await asyncio.to_thread(answers.left.wait, 10)


async def test_a_server_that_does_not_say_goodbye_holds_up_no_end() -> None:
    answers = Answers()
    with over_http(answers) as url:
        async with before({"url": url}) as client:
            await client.list_tools(cache_mode="bypass")
            began = time.monotonic()
        assert time.monotonic() - began < 10
        assert answers.farewell.is_set()
