"""A server over streamable HTTP behind the whole: proxy, broker, a worker's process, the server."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from mcp_types import CallToolResult

from effect_broker import AsyncBroker
from effect_broker.mcp.proxy_config import ProxyConfig
from effect_broker.proof.broker import wait_until
from effect_contracts.document import ContractDocument
from hosting.scenes import Scene
from mcp_bridge.clients import Mode, proxied, proxy_config, told_of, tools_of
from mcp_bridge.modern import Modern, served
from mcp_bridge.notes import Notes, notes_contract
from mcp_bridge.notes_server import META_KEY

both_protocols = pytest.mark.parametrize("mode", ["auto", "legacy"])


async def before(
    workers: Scene, notes: Notes, url: str, safety: str, name: str, tool: str = "create_note"
) -> ProxyConfig:
    """Bring in a contract for the server's tool at `url`; return the proxy before it."""
    text = notes_contract(
        safety, f'{{kind: http, url: "{url}"}}', name=f"notes-{name}", tool=f"notes.{name}"
    )
    text = text.replace("tool: create_note", f"tool: {tool}")
    # Attempts at a server that is not back yet count too, and a busy machine starts it late.
    text = text.replace("attempts_max: 3", "attempts_max: 20")
    await asyncio.to_thread(workers.broker.apply, ContractDocument.parse_yaml(text))
    tools = {tool: {"effect": f"notes.{name}"}, "find_notes": "read_only"}
    return proxy_config(notes, upstream={"url": url}, tools=tools)


@both_protocols
async def test_a_contracted_call_reaches_a_server_over_http_once(
    workers: Scene, broker: AsyncBroker, notes: Notes, mode: Mode
) -> None:
    call = {"operation_key": f"over-http:{mode}", "title": "Milk"}
    with notes.over_http(keyed=True) as url:
        made = await before(workers, notes, url, "idempotent", f"http-{mode}")
        async with proxied(broker, made, mode) as client:
            assert set(await tools_of(client)) >= {"create_note", "find_notes"}
            first = await client.call_tool("create_note", call)
            again = await client.call_tool("create_note", call)
            [sent] = notes.created
            found = await client.call_tool("find_notes", {"key": sent["meta"][META_KEY]})
    assert first.structured_content == {"id": "note-1", "title": "Milk"}
    assert again.model_dump() == first.model_dump()
    assert sent["arguments"] == {"title": "Milk"}
    assert [note["id"] for note in told_of(found)["notes"]] == ["note-1"]
    assert len(notes.effects) == 1


@both_protocols
async def test_a_server_of_the_newer_protocol_is_reached_once_too(
    workers: Scene, broker: AsyncBroker, notes: Notes, mode: Mode
) -> None:
    modern = Modern()
    call = {"operation_key": f"newer:{mode}", "title": "Milk"}
    async with served(modern.server().streamable_http_app()) as origin:
        made = await before(workers, notes, f"{origin}/mcp", "unsafe", f"newer-{mode}", "make")
        tools = {name: tool for name, tool in made.tools.items() if name == "make"}
        made = made.model_copy(update={"tools": tools})
        async with proxied(broker, made, mode) as client:
            first = await client.call_tool("make", call)
            again = await client.call_tool("make", call)
    assert first.structured_content == again.structured_content == {"id": 7}
    assert [sent.arguments for sent in modern.calls] == [{"title": "Milk"}]
    assert modern.protocols == {"2026-07-28"}


# A server that is killed -------------------------------------------------------------------------


@pytest.fixture
def killable(notes: Notes) -> Iterator[str]:
    """A server that makes its note and then says nothing; give its URL."""
    notes.script("hang_after")
    with notes.over_http() as url:
        yield url


async def killed_after_its_commit(notes: Notes, calling: asyncio.Task[CallToolResult]) -> None:
    """SIGKILL to the server once its note is there and its answer is not."""
    await asyncio.to_thread(wait_until, lambda: notes.effects or None, "the note is there")
    assert not calling.done()
    os.kill(notes.created[0]["pid"], signal.SIGKILL)


@both_protocols
async def test_a_server_that_was_killed_after_its_commit_is_called_no_second_time(
    workers: Scene, broker: AsyncBroker, notes: Notes, killable: str, mode: Mode
) -> None:
    """Nothing is promised and nobody can be asked: a person has to look."""
    call = {"operation_key": f"killed-http:{mode}", "title": "Milk"}
    made = await before(workers, notes, killable, "unsafe", f"killed-{mode}")
    async with proxied(broker, made, mode) as client:
        await client.list_tools()
        calling = asyncio.create_task(client.call_tool("create_note", call))
        await killed_after_its_commit(notes, calling)
        lost = await calling
        with notes.over_http(port=urlsplit(killable).port or 0):
            again = await client.call_tool("create_note", call)
    told = told_of(lost)
    assert (told["state"], told["happened"]) == ("outcome_unknown", "unknown")
    assert (told["do_not_retry"], told["waits_for_person"]) == (True, True)
    assert told_of(again) == told
    assert (len(notes.created), len(notes.effects)) == (1, 1)


@both_protocols
async def test_a_server_that_was_killed_after_its_commit_is_asked_once_it_is_back(
    workers: Scene, broker: AsyncBroker, notes: Notes, killable: str, mode: Mode
) -> None:
    call = {"operation_key": f"asked-http:{mode}", "title": "Milk"}
    made = await before(workers, notes, killable, "reconcilable", f"asked-{mode}")
    async with proxied(broker, made, mode) as client:
        await client.list_tools()
        calling = asyncio.create_task(client.call_tool("create_note", call))
        await killed_after_its_commit(notes, calling)
        with notes.over_http(port=urlsplit(killable).port or 0):
            told = told_of(await calling)
    assert (told["happened"], told["external_id"]) == ("yes", "note-1")
    assert (len(notes.created), len(notes.effects)) == (1, 1)
    assert notes.calls[-1]["tool"] == "find_notes"


@both_protocols
async def test_the_same_key_settles_what_a_killed_server_has_not_said(
    workers: Scene, broker: AsyncBroker, notes: Notes, killable: str, mode: Mode
) -> None:
    """One call for each attempt, under one key, and one note."""
    call = {"operation_key": f"keyed-http:{mode}", "title": "Milk"}
    made = await before(workers, notes, killable, "idempotent", f"keyed-{mode}")
    async with proxied(broker, made, mode) as client:
        calling = asyncio.create_task(client.call_tool("create_note", call))
        await killed_after_its_commit(notes, calling)
        with notes.over_http(keyed=True, port=urlsplit(killable).port or 0):
            result = await calling
    assert result.structured_content == {"id": "note-1", "title": "Milk"}
    first, second = notes.created
    assert first["meta"][META_KEY] == second["meta"][META_KEY]
    assert first["pid"] != second["pid"]
    assert len(notes.effects) == 1
    query = "SELECT effect_id FROM effect_broker.effect_intents WHERE operation_key = %s"
    effect_id = workers.value(query, call["operation_key"])
    sent = [one for one in workers.attempts(effect_id) if one["outcome"] != "not_sent"]
    assert len(sent) == 2
