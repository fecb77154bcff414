"""Real processes: the commands as an agent starts them, killed workers, a stranger's server.

A worker is killed with the server's answer in hand: the server has done its work, and the broker
has no word of it.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult

from effect_broker import AsyncBroker
from effect_broker.cli import main
from effect_broker.config import ConfigurationProblem
from effect_broker.faultpoints import FaultPoint
from effect_broker.mcp.management import management_server
from effect_broker.mcp.proxy import Proxy
from effect_broker.mcp.proxy_config import read_config
from effect_broker.mcp.serving import checked_address, http_app
from effect_contracts.catalog import catalog_texts
from effect_contracts.document import ContractDocument
from hosting.scenes import Scene
from mcp_bridge.clients import Mode, no_secrets, proxied, proxy_config, told_of, tools_of
from mcp_bridge.modern import served
from mcp_bridge.notes import Notes
from real_targets.installation import python_wheels

HERE = Path(__file__).resolve().parent
# For a worker that is started while a test waits; nobody waits that long where all is well.
WAIT_SECONDS = 50
TOKEN = "a-token-of-the-front-7f21"


def command(*words: str, **environment: str) -> StdioServerParameters:
    """`effect-broker mcp …` as a client starts it."""
    return StdioServerParameters(
        command=sys.executable, args=["-m", "effect_broker", "mcp", *words], env=environment
    )


# The commands ----------------------------------------------------------------------------------


async def test_an_agent_that_starts_the_proxy_makes_its_change_once(
    workers: Scene, access: dict[str, str], notes: Notes, tmp_path: Path
) -> None:
    config = tmp_path / "proxy.yaml"
    upstream = notes.programs()["notes-keyed"]
    tools = {"create_note": {"effect": "notes.idempotent"}, "find_notes": "read_only"}
    await asyncio.to_thread(config.write_text, json.dumps({"upstream": upstream, "tools": tools}))
    call = {"operation_key": "stdio:1", "title": "Milk"}
    server = stdio_client(command("proxy", "--config", str(config), **access))
    async with Client(server, mode="legacy", cache=None) as client:
        assert set(await tools_of(client)) == {"create_note", "find_notes", "delete_note"}
        first = await client.call_tool("create_note", call)
        again = await client.call_tool("create_note", call)
    assert first.structured_content == again.structured_content == {"id": "note-1", "title": "Milk"}
    assert len(notes.created) == 1


async def test_an_agent_that_starts_the_brokers_own_tools_reaches_the_broker(
    access: dict[str, str],
) -> None:
    async with Client(stdio_client(command("serve", **access)), cache=None) as client:
        listed = await client.call_tool("list_unknown_effects", {"tool": "no.such"})
    assert told_of(listed)["effects"] == []


def test_what_cannot_be_served_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    path = tmp_path / "proxy.yaml"
    path.write_text("upstream: {command: x}\ntool: {}")
    words = ["effect-broker", "mcp", "proxy", "--config", str(path)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match="1"):
        main()
    said = capsys.readouterr()
    assert said.out == ""
    assert "/tool: unknown field; did you mean 'tools'?" in said.err
    assert len(said.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("address", "token", "said"),
    [
        ("0.0.0.0:80", None, "set a token"),
        ("127.0.0.1:80", "short", "fewer than 16 characters"),
        ("127.0.0.1", None, "no HOST:PORT"),
        ("127.0.0.1:99999", None, "no HOST:PORT"),
    ],
)
def test_an_address_that_others_reach_needs_a_token(
    address: str, token: str | None, said: str
) -> None:
    with pytest.raises(ConfigurationProblem, match=said):
        checked_address(address, token)
    assert checked_address("[::1]:8765", None) == ("::1", 8765)
    assert checked_address("0.0.0.0:80", TOKEN) == ("0.0.0.0", 80)


# Over HTTP -------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "LOCALHOST", "0:0:0:0:0:0:0:1"])
async def test_without_a_token_only_names_of_this_machine_are_answered(host: str) -> None:
    # A page of anybody's whose name leads to this address would act with the API key.
    server = management_server(AsyncBroker("http://127.0.0.1:1", "key"))
    greeting = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    headers = {"Accept": "application/json, text/event-stream"}
    async with served(http_app(server, host, None)) as origin, httpx2.AsyncClient() as browser:
        for name in ("stranger.example:80", "127.0.0.1:80", "localhost"):
            told = headers | {"Host": name}
            answer = await browser.post(f"{origin}/mcp", json=greeting, headers=told)
            assert (answer.status_code == 421) is (name == "stranger.example:80")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_proxy_over_http_asks_for_its_token(
    workers: Scene, broker: AsyncBroker, notes: Notes, mode: Mode
) -> None:
    call = {"operation_key": f"http:{mode}", "title": "Milk"}
    proxy = Proxy(proxy_config(notes), broker, no_secrets)
    async with served(http_app(proxy.server, "127.0.0.1", TOKEN)) as origin:
        async with httpx2.AsyncClient() as stranger:
            assert (await stranger.post(f"{origin}/mcp", json={})).status_code == 401
        headers = {"Authorization": f"Bearer {TOKEN}"}
        # The library's five seconds are shorter than the call may wait on a busy machine.
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            line = streamable_http_client(f"{origin}/mcp", http_client=http)
            async with Client(line, mode=mode, cache=None) as client:
                result = await client.call_tool("create_note", call)
                again = await client.call_tool("create_note", call)
    await proxy.close()
    assert (
        result.structured_content == again.structured_content == {"id": "note-1", "title": "Milk"}
    )
    assert len(notes.created) == 1


# Killed workers --------------------------------------------------------------------------------


async def killed(
    scene: Scene, point: FaultPoint, client: Client, tool: str, call: dict[str, Any]
) -> CallToolResult:
    """Make a call whose worker is killed at a point; start another one, and give the result."""
    scene.broker.arm(point)
    calling = asyncio.create_task(client.call_tool(tool, call))
    await asyncio.to_thread(scene.broker.wait_fired, point)
    await asyncio.to_thread(scene.start_workers, 1)
    return await calling


async def test_a_killed_worker_costs_a_keyed_server_no_second_note(
    workers: Scene, broker: AsyncBroker, notes: Notes
) -> None:
    call = {"operation_key": "killed:keyed", "title": "Milk"}
    async with proxied(broker, proxy_config(notes, wait_seconds=WAIT_SECONDS)) as client:
        point = FaultPoint.AFTER_TARGET_ANSWER
        result = await killed(workers, point, client, "create_note", call)
    assert result.structured_content == {"id": "note-1", "title": "Milk"}
    first, second = notes.created
    assert (first["arguments"], first["meta"]) == (second["arguments"], second["meta"])
    assert first["pid"] != second["pid"]
    assert len(notes.effects) == 1


# A server that nobody here wrote -----------------------------------------------------------------

# Shorter than in the catalog, so that nobody waits.
QUICK = {"attempt_deadline_seconds": 8, "transit_seconds": 0.2, "clock_margin_seconds": 0.2}


@pytest.fixture(scope="session")
def stranger() -> Path:
    """The program of mcp-server-sqlite, installed from its lock."""
    lock = HERE / "python" / "requirements.txt"
    return python_wheels("mcp", lock).parent / "mcp-server-sqlite"


@pytest.mark.timeout(600)
async def test_a_strangers_server_is_written_to_once_however_often_it_is_called(
    workers: Scene, broker: AsyncBroker, stranger: Path, programs: Path, tmp_path: Path
) -> None:
    books = tmp_path / "books.sqlite"
    program = {"command": str(stranger), "args": ["--db-path", str(books)]}
    await asyncio.to_thread(programs.write_text, json.dumps({"sqlite": program}))
    with sqlite3.connect(books) as opened:
        opened.execute("CREATE TABLE bookings (what TEXT)")
    contract = yaml.safe_load(catalog_texts()["mcp-sqlite-write"]) | QUICK
    document = ContractDocument.parse_yaml(yaml.safe_dump(contract))
    await asyncio.to_thread(workers.broker.apply, document)
    config = {
        "upstream": program,
        "protocol": "legacy",
        "tools": {"write_query": {"effect": document.tool}, "read_query": "read_only"},
        "wait_seconds": WAIT_SECONDS,
    }

    def booked() -> list[str]:
        with sqlite3.connect(books) as opened:
            return [what for (what,) in opened.execute("SELECT what FROM bookings")]

    def booking(what: str) -> dict[str, str]:
        query = f"INSERT INTO bookings VALUES ('{what}')"
        return {"operation_key": f"book:{what}", "query": query}

    before = read_config(json.dumps(config))
    async with proxied(broker, before, "legacy") as client:
        first = await client.call_tool("write_query", booking("rent"))
        again = await client.call_tool("write_query", booking("rent"))
        assert booked() == ["rent"]
        assert first.content == again.content
        point = FaultPoint.AFTER_TARGET_ANSWER
        lost = await killed(workers, point, client, "write_query", booking("wages"))
        still = await client.call_tool("write_query", booking("wages"))
        typo = {"operation_key": "book:typo", "query": "INSERT bookings"}
        refused = await client.call_tool("write_query", typo)
        read = await client.call_tool("read_query", {"query": "SELECT what FROM bookings"})
    # The server speaks the older protocol alone; the proxy before it speaks both.
    async with proxied(broker, before, "auto") as client:
        assert set(await tools_of(client)) >= {"write_query", "read_query"}
        newer = await client.call_tool("write_query", booking("rent"))
        newer_still = await client.call_tool("write_query", booking("wages"))
        newer_refused = await client.call_tool("write_query", typo)
        food = await client.call_tool("write_query", booking("food"))
        food_again = await client.call_tool("write_query", booking("food"))
        newer_read = await client.call_tool("read_query", {"query": "SELECT what FROM bookings"})
    assert (told_of(lost)["state"], told_of(lost)["do_not_retry"]) == ("outcome_unknown", True)
    assert told_of(still) == told_of(newer_still) == told_of(lost)
    assert (refused.is_error, told_of(refused)["happened"]) == (True, "no")
    assert told_of(newer_refused) == told_of(refused)
    assert newer.content == first.content
    assert (food.is_error, food_again.content) == (False, food.content)
    assert booked() == ["rent", "wages", "food"]
    assert "wages" in str(read.content)
    assert "food" in str(newer_read.content)
