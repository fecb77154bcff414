"""The proxy, as a client of either protocol meets it, with a worker of the broker behind it."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from mcp.client.session import IncomingMessage
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, RequestParamsMeta, ToolListChangedNotification
from typer.testing import CliRunner, Result

from effect_broker import AsyncBroker, RequestRefused
from effect_broker.cli.main import app
from effect_broker.config import ConfigurationProblem
from effect_broker.mcp.mirror import KEY_PROPERTY
from effect_broker.mcp.proxy import RECEIPT_META, Proxy
from effect_broker.proof.broker import wait_until
from effect_contracts.document import ContractDocument
from hosting.scenes import Scene
from mcp_bridge.clients import (
    Mode,
    no_secrets,
    proxied,
    proxy_config,
    text_of,
    told_of,
    tools_of,
)
from mcp_bridge.modern import Modern, served
from mcp_bridge.notes import Notes, notes_contract
from mcp_bridge.notes_server import SECOND_PAGE, TOOLS

both_protocols = pytest.mark.parametrize("mode", ["auto", "legacy"])


# What is shown ---------------------------------------------------------------------------------


@both_protocols
async def test_the_upstreams_tools_are_shown_as_they_are_with_the_operation_key(
    broker: AsyncBroker, notes: Notes, mode: Mode
) -> None:
    async with proxied(broker, proxy_config(notes), mode) as client:
        shown = await tools_of(client)
    own = {str(tool["name"]): tool for tool in TOOLS + SECOND_PAGE}
    assert list(shown) == list(own)
    told = {n: t.model_dump(by_alias=True, exclude_none=True) for n, t in shown.items()}
    for name in ("find_notes", "delete_note"):
        assert told[name] == own[name]
    created = told["create_note"]
    schema = created.pop("inputSchema")
    assert schema["properties"].pop("operation_key") == KEY_PROPERTY
    assert schema["required"].pop(0) == "operation_key"
    output = created.pop("outputSchema")
    upstream = dict(own["create_note"])
    assert schema == upstream.pop("inputSchema")
    assert output["anyOf"][0] == upstream.pop("outputSchema")
    assert created == upstream


async def test_a_tool_that_comes_later_is_shown_at_the_next_look(
    broker: AsyncBroker, notes: Notes
) -> None:
    later = {"name": "late", "inputSchema": {"type": "object"}}
    async with proxied(broker, proxy_config(notes)) as client:
        assert "late" not in await tools_of(client)
        notes.add_tools(later)
        assert "late" in await tools_of(client)


@both_protocols
async def test_a_change_of_the_upstreams_list_is_passed_on(
    broker: AsyncBroker, notes: Notes, mode: Mode
) -> None:
    modern, heard = Modern(), asyncio.Event()

    async def hear(message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            heard.set()

    async with served(modern.server().streamable_http_app()) as origin:
        made = proxy_config(notes, upstream={"url": f"{origin}/mcp"}, tools={})
        async with proxied(broker, made, mode, hear) as client:
            assert set(await tools_of(client)) == {"make"}
            async with AsyncExitStack() as stack:
                if mode == "auto":
                    listening = client.listen(tools_list_changed=True)
                    changes = aiter(await stack.enter_async_context(listening))
                modern.tools.append("late")
                await modern.announced()
                async with asyncio.timeout(20):
                    await (anext(changes) if mode == "auto" else heard.wait())
            assert set(await tools_of(client)) == {"make", "late"}


async def test_a_property_of_the_same_name_is_a_question_to_the_configuration(
    broker: AsyncBroker, notes: Notes
) -> None:
    schema = {"type": "object", "properties": {"operation_key": {"type": "string"}}}
    notes.add_tools({"name": "book", "inputSchema": schema})
    tools = {"book": {"effect": "notes.idempotent"}, "gone": "read_only"}
    proxy = Proxy(proxy_config(notes, tools=tools), broker, no_secrets)
    with pytest.raises(ConfigurationProblem) as refused:
        await proxy.check()
    await proxy.close()
    assert "/tools/book: the tool has a property 'operation_key'" in str(refused.value)
    assert "/tools/gone: the upstream has no such tool" in str(refused.value)
    tools["book"] = {"effect": "notes.idempotent", "operation_key": "intent"}
    async with proxied(broker, proxy_config(notes, tools=tools)) as client:
        shown = (await tools_of(client))["book"].input_schema
    assert shown["required"] == ["intent"]
    assert list(shown["properties"]) == ["intent", "operation_key"]


async def test_a_tool_that_gets_a_property_of_the_same_name_later_is_refused(
    broker: AsyncBroker, notes: Notes
) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"title": {"type": "string"}}}
    notes.add_tools({"name": "book", "inputSchema": schema})
    tools = {"book": {"effect": "notes.idempotent"}}
    async with proxied(broker, proxy_config(notes, tools=tools, wait_seconds=0)) as client:
        await tools_of(client)
        schema["properties"]["operation_key"] = {"enum": ["add", "remove"]}
        notes.add_tools({"name": "book", "inputSchema": schema})
        # What is shown now is the server's own property, and no key of ours.
        shown = (await tools_of(client))["book"].input_schema
        assert shown == schema
        refused = await client.call_tool("book", {"title": "a", "operation_key": "add"})
    assert refused.is_error
    assert told_of(refused)["error"] == "tool_changed"
    assert notes.created == []


async def test_an_upstream_that_is_not_there_stops_the_proxy_at_its_start(
    broker: AsyncBroker, notes: Notes
) -> None:
    proxy = Proxy(proxy_config(notes, upstream={"command": "/no/such"}), broker, no_secrets)
    with pytest.raises(ConfigurationProblem, match="gave no list of its tools"):
        await proxy.check()
    await proxy.close()


def test_a_check_finds_the_tools_that_have_no_contract(
    access: dict[str, str], notes: Notes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in access.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "proxy.yaml"

    def checked(**tools: Any) -> Result:
        config = {"upstream": notes.programs()["notes-keyed"], "tools": tools}
        path.write_text(json.dumps(config))
        return CliRunner().invoke(app, ["mcp", "proxy", "--config", str(path), "--check"])

    right: dict[str, Any] = {"create_note": {"effect": "notes.idempotent"}}
    good = checked(**right)
    said = f"{path}: good; 1 tool is named\nrefused, as they are not named: "
    assert good.exit_code == 0
    assert good.stdout.startswith(said)
    refused = good.stdout.removeprefix(said).strip().split(", ")
    assert "delete_note" in refused
    assert "create_note" not in refused
    wrong = checked(**right, delete_note={"effect": "notes.idempotnt"})
    assert isinstance(wrong.exception, ConfigurationProblem)
    said = str(wrong.exception)
    assert "/tools/delete_note/effect: no active contract has the tool notes.idempotnt" in said
    assert "create_note" not in said


async def test_the_contract_of_a_tool_can_be_looked_up(broker: AsyncBroker) -> None:
    known = await broker.tool("notes.unsafe")
    assert (known.safety, known.sent_by) == ("unsafe", "broker")
    for name in ("notes.none", "a/b", "ü", "\x00", "x" * 300):
        with pytest.raises(RequestRefused) as refused:
            await broker.tool(name)
        assert refused.value.code == "unknown_tool"


# What is let through ---------------------------------------------------------------------------


@both_protocols
async def test_a_read_only_tool_is_passed_through_with_its_meta(
    broker: AsyncBroker, notes: Notes, mode: Mode
) -> None:
    async with proxied(broker, proxy_config(notes), mode) as client:
        meta = cast(RequestParamsMeta, {"shelf.example/n": 3})
        result = await client.call_tool("find_notes", {"key": "k"}, meta=meta)
    assert result.structured_content == {"notes": []}
    [call] = notes.calls
    assert (call["tool"], call["arguments"]) == ("find_notes", {"key": "k"})
    assert call["meta"]["shelf.example/n"] == 3


async def test_a_tool_that_nobody_has_classified_is_refused_in_strict_mode(
    broker: AsyncBroker, notes: Notes
) -> None:
    async with proxied(broker, proxy_config(notes)) as client:
        refused = await client.call_tool("delete_note", {"id": "1"})
    assert refused.is_error
    assert told_of(refused)["error"] == "tool_without_contract"
    assert notes.calls == []
    async with proxied(broker, proxy_config(notes, strict=False)) as client:
        assert not (await client.call_tool("delete_note", {"id": "1"})).is_error
    assert len(notes.calls) == 1


async def test_the_servers_own_hint_counts_only_if_the_configuration_says_so(
    broker: AsyncBroker, notes: Notes
) -> None:
    plain = proxy_config(notes, tools={})
    async with proxied(broker, plain) as client:
        assert (await client.call_tool("find_notes", {})).is_error
    trusting = proxy_config(notes, tools={}, trust_read_only_hint=True)
    async with proxied(broker, trusting) as client:
        assert not (await client.call_tool("find_notes", {})).is_error
        assert (await client.call_tool("create_note", {"title": "x"})).is_error
    assert [call["tool"] for call in notes.calls] == ["find_notes"]


async def test_the_line_to_the_upstream_is_opened_again_after_it_was_lost(
    broker: AsyncBroker, notes: Notes
) -> None:
    made = proxy_config(notes, strict=False, tools={})
    async with proxied(broker, made) as client:
        notes.script("die_before")
        lost = await client.call_tool("create_note", {"title": "x"})
        assert (lost.is_error, told_of(lost)["error"]) == (True, "upstream_lost")
        assert not (await client.call_tool("find_notes", {})).is_error
    assert len(notes.created) == 1


# Calls that are effects ------------------------------------------------------------------------


@both_protocols
async def test_a_contracted_call_is_made_once_and_replayed_word_for_word(
    workers: Scene, broker: AsyncBroker, notes: Notes, mode: Mode
) -> None:
    call = {"operation_key": f"note:{mode}:1", "title": "Milk", "text": "two litres"}
    async with proxied(broker, proxy_config(notes), mode) as client:
        await client.list_tools()
        first = await client.call_tool("create_note", call)
        again = await client.call_tool("create_note", call)
    assert not first.is_error
    assert first.structured_content == {"id": "note-1", "title": "Milk"}
    assert text_of(first) == '{"id": "note-1", "title": "Milk"}'
    assert first.meta is not None
    assert first.meta["notes.example/shelf"] == 7
    assert first.meta[RECEIPT_META]["state"] == "succeeded"
    assert again.model_dump() == first.model_dump()
    [sent] = notes.created
    assert sent["arguments"] == {"title": "Milk", "text": "two litres"}
    assert len(notes.effects) == 1


async def test_other_arguments_under_a_key_are_a_conflict_and_reach_nobody(
    workers: Scene, broker: AsyncBroker, notes: Notes
) -> None:
    async with proxied(broker, proxy_config(notes)) as client:
        first = await client.call_tool("create_note", {"operation_key": "drift", "title": "a"})
        drift = await client.call_tool("create_note", {"operation_key": "drift", "title": "b"})
    assert drift.is_error
    told = told_of(drift)
    assert (told["error"], told["field"]) == ("payload_conflict", "/title")
    assert first.meta is not None
    assert told["effect_id"] == first.meta[RECEIPT_META]["effect_id"]
    assert len(notes.created) == 1


@pytest.mark.parametrize("key", [None, 7, "", "with blank"])
async def test_a_call_without_a_good_operation_key_is_refused_before_anything(
    broker: AsyncBroker, notes: Notes, key: object
) -> None:
    given = {} if key is None else {"operation_key": key}
    async with proxied(broker, proxy_config(notes)) as client:
        refused = await client.call_tool("create_note", {**given, "title": "x"})
    assert refused.is_error
    assert told_of(refused)["error"] in {"invalid_arguments", "invalid_operation_key"}
    assert notes.calls == []


async def test_arguments_that_the_contract_refuses_are_told_with_their_place(
    broker: AsyncBroker, notes: Notes
) -> None:
    async with proxied(broker, proxy_config(notes)) as client:
        refused = await client.call_tool("create_note", {"operation_key": "bad", "title": 5})
    assert (told_of(refused)["error"], told_of(refused)["field"]) == ("invalid_arguments", "/title")
    assert notes.calls == []


@both_protocols
async def test_an_unknown_outcome_is_a_result_that_says_what_not_to_do(
    workers: Scene, broker: AsyncBroker, notes: Notes, mode: Mode
) -> None:
    call = {"operation_key": f"unknown:{mode}", "title": "x"}
    notes.script("die_after")
    async with proxied(broker, proxy_config(notes, "unsafe"), mode) as client:
        await client.list_tools()  # so that the client checks results against the shown schema
        result = await client.call_tool("create_note", call)
        again = await client.call_tool("create_note", call)
    assert not result.is_error
    told = told_of(result)
    assert (told["state"], told["happened"]) == ("outcome_unknown", "unknown")
    assert told["do_not_retry"] is True
    assert told["waits_for_person"] is True
    assert "Do not retry" in text_of(result)
    assert told["effect_id"] in text_of(result)
    assert told_of(again) == told
    assert (len(notes.created), len(notes.effects)) == (1, 1)


async def test_a_lost_answer_of_a_keyed_server_is_settled_by_the_same_key(
    workers: Scene, broker: AsyncBroker, notes: Notes
) -> None:
    notes.script("die_after")
    async with proxied(broker, proxy_config(notes)) as client:
        result = await client.call_tool("create_note", {"operation_key": "keyed", "title": "x"})
    assert result.structured_content == {"id": "note-1", "title": "x"}
    keys = [call["meta"]["dev.effect-broker/idempotency-key"] for call in notes.created]
    assert len(keys) == 2
    assert len(set(keys)) == 1
    assert len(notes.effects) == 1


async def test_a_lost_answer_is_found_by_a_read_only_tool_and_not_sent_again(
    workers: Scene, broker: AsyncBroker, notes: Notes
) -> None:
    notes.script("die_after")
    made = proxy_config(notes, "reconcilable")
    async with proxied(broker, made) as client:
        await client.list_tools()
        result = await client.call_tool("create_note", {"operation_key": "found", "title": "x"})
    told = told_of(result)
    assert (told["happened"], told["external_id"]) == ("yes", "note-1")
    assert [call["tool"] for call in notes.calls] == ["create_note", "find_notes"]
    assert len(notes.effects) == 1


async def test_a_client_that_goes_away_before_the_first_attempt_cancels_no_effect(
    scene: Scene, broker: AsyncBroker, notes: Notes
) -> None:
    """While nothing was sent the broker would take a cancellation, so nobody may ask for one."""
    scene.kill_workers()
    made = proxy_config(notes)
    calls: dict[Mode, dict[str, str]] = {
        mode: {"operation_key": f"gone-early:{mode}", "title": mode} for mode in ("auto", "legacy")
    }
    for mode, call in calls.items():
        async with proxied(broker, made, mode) as client:
            waiting = asyncio.create_task(client.call_tool("create_note", call))
            await asyncio.to_thread(
                scene.wait_for,
                "the effect is prepared",
                "SELECT true FROM effect_broker.effect_intents"
                " WHERE operation_key = %s AND state = 'prepared'",
                call["operation_key"],
            )
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
    await asyncio.to_thread(scene.ensure_workers, 1)
    titles: dict[str, Any] = {}
    for mode, call in calls.items():
        async with proxied(broker, made, mode) as client:
            titles[mode] = told_of(await client.call_tool("create_note", call)).get("title")
    assert titles == {"auto": "auto", "legacy": "legacy"}
    assert sorted(sent["arguments"]["title"] for sent in notes.created) == ["auto", "legacy"]
    assert len(notes.effects) == 2


@both_protocols
async def test_a_client_that_goes_away_during_its_call_cancels_no_effect(
    workers: Scene, broker: AsyncBroker, notes: Notes, mode: Mode
) -> None:
    notes.script("slow")
    call = {"operation_key": f"impatient:{mode}", "title": "x"}
    async with proxied(broker, proxy_config(notes), mode) as client:
        waiting = asyncio.create_task(client.call_tool("create_note", call))
        await asyncio.to_thread(wait_until, lambda: notes.created or None, "the call arrived")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        result = await client.call_tool("create_note", call)
    assert result.structured_content == {"id": "note-1", "title": "x"}
    assert len(notes.created) == 1


async def test_a_call_that_takes_longer_than_the_wait_is_told_as_under_way(
    workers: Scene, broker: AsyncBroker, notes: Notes
) -> None:
    notes.script("slow")
    call = {"operation_key": "slow", "title": "x"}
    async with proxied(broker, proxy_config(notes, wait_seconds=0)) as client:
        result = await client.call_tool("create_note", call)
    told = told_of(result)
    assert (result.is_error, told["happened"], told["do_not_retry"]) == (False, "not_yet", True)
    async with proxied(broker, proxy_config(notes)) as client:
        done = await client.call_tool("create_note", call)
    assert done.structured_content == {"id": "note-1", "title": "x"}
    assert len(notes.created) == 1


async def test_an_error_is_a_refusal_only_by_the_contracts_word(
    workers: Scene, broker: AsyncBroker, notes: Notes
) -> None:
    answers = """  answers:
    rejected:
      - {match: "isError && contains(text, 'closed')", code: closed, proves_no_commit: true}
"""
    spoken = notes_contract("unsafe", name="notes-spoken", tool="notes.spoken", answers=answers)
    await asyncio.to_thread(workers.broker.apply, ContractDocument.parse_yaml(spoken))

    async def call(safety: str) -> CallToolResult:
        notes.script("error")
        async with proxied(broker, proxy_config(notes, safety)) as client:
            given = {"operation_key": f"error:{safety}", "title": "x"}
            return await client.call_tool("create_note", given)

    refused, silent = await call("spoken"), await call("unsafe")
    assert refused.is_error
    assert (told_of(refused)["happened"], told_of(refused)["state"]) == ("no", "failed_final")
    assert told_of(refused)["do_not_retry"] is False
    assert told_of(silent)["state"] == "outcome_unknown"


async def test_an_unreachable_broker_is_told_as_a_call_to_repeat(notes: Notes) -> None:
    nobody = AsyncBroker("http://127.0.0.1:9", "key", patience=timedelta(seconds=0))
    async with nobody, proxied(nobody, proxy_config(notes)) as client:
        result = await client.call_tool("create_note", {"operation_key": "k", "title": "x"})
    assert result.is_error
    assert told_of(result)["error"] == "broker_unavailable"
    assert "same operation_key" in text_of(result)


async def test_a_list_that_the_upstream_does_not_give_is_an_error_of_the_protocol(
    broker: AsyncBroker, notes: Notes
) -> None:
    gone = proxy_config(notes, upstream={"command": "/no/such"})
    async with proxied(broker, gone) as client:
        with pytest.raises(MCPError, match="did not answer"):
            await client.list_tools()
