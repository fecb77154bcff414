"""The broker's own tools, as a client of either protocol meets them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from mcp.client import Client

from effect_broker import AsyncBroker
from effect_broker.mcp.management import TOOLS, management_server
from hosting.scenes import Scene
from mcp_bridge.clients import Mode, text_of, told_of, tools_of
from mcp_bridge.notes import Notes

both_protocols = pytest.mark.parametrize("mode", ["auto", "legacy"])


@asynccontextmanager
async def managed(broker: AsyncBroker, mode: Mode = "auto") -> AsyncIterator[Client]:
    async with Client(management_server(broker), mode=mode, cache=None) as client:
        await client.list_tools()  # so that the client checks results against the schemas
        yield client


def submit(key: str, tool: str = "notes.idempotent", **more: Any) -> dict[str, Any]:
    return {
        "operation_key": key,
        "tool": tool,
        "arguments": {"title": "Milk"},
        "wait_seconds": 30,
        **more,
    }


@both_protocols
async def test_an_effect_is_submitted_looked_at_and_has_a_receipt(
    workers: Scene, broker: AsyncBroker, notes: Notes, mode: Mode
) -> None:
    async with managed(broker, mode) as client:
        made = await client.call_tool("submit_effect", submit(f"managed:{mode}"))
        again = await client.call_tool("submit_effect", submit(f"managed:{mode}"))
        effect_id = {"effect_id": told_of(made)["effect_id"]}
        seen = await client.call_tool("get_effect", effect_id)
        receipt = await client.call_tool("get_receipt", effect_id)
        asked = await client.call_tool("request_reconciliation", effect_id)
    told = told_of(made)
    assert (told["happened"], told["external_id"], told["final"]) == ("yes", "note-1", True)
    assert told["result"]["structuredContent"]["title"] == "Milk"
    assert text_of(made).startswith("Done:")
    assert told_of(again) == told_of(seen) == told_of(asked) == told
    assert (told_of(receipt)["source"], told_of(receipt)["state"]) == ("response", "succeeded")
    assert len(notes.created) == 1


@both_protocols
async def test_an_unknown_outcome_is_listed_and_told_with_what_not_to_do(
    workers: Scene, broker: AsyncBroker, notes: Notes, mode: Mode
) -> None:
    notes.script("die_after")
    async with managed(broker, mode) as client:
        made = await client.call_tool("submit_effect", submit(f"lost:{mode}", "notes.unsafe"))
        asked = await client.call_tool(
            "request_reconciliation", {"effect_id": told_of(made)["effect_id"]}
        )
        listed = await client.call_tool("list_unknown_effects", {"tool": "notes.unsafe"})
        none = await client.call_tool("list_unknown_effects", {"tool": "no.such"})
        receipt = await client.call_tool("get_receipt", {"effect_id": told_of(made)["effect_id"]})
    assert not made.is_error
    told = told_of(made)
    assert (told["state"], told["happened"], told["do_not_retry"]) == (
        "outcome_unknown",
        "unknown",
        True,
    )
    assert "Do not retry" in text_of(made)
    assert told_of(asked)["state"] == "outcome_unknown"
    [row] = [e for e in told_of(listed)["effects"] if e["effect_id"] == told["effect_id"]]
    assert (row["state"], row["waits_for_person"], row["do_not_retry"]) == (
        "outcome_unknown",
        True,
        True,
    )
    assert told_of(none)["effects"] == []
    assert (receipt.is_error, told_of(receipt)["error"]) == (True, "not_found")
    assert len(notes.created) == 1


@pytest.mark.parametrize(
    ("tool", "arguments", "error"),
    [
        ("submit_effect", submit("with blank"), "invalid_operation_key"),
        ("submit_effect", submit("k", "no.such.tool"), "unknown_tool"),
        ("submit_effect", submit("k", arguments={"title": 7}), "invalid_arguments"),
        ("submit_effect", submit("k", wait_seconds=-1), "invalid_arguments"),
        ("submit_effect", {"tool": "x"}, "invalid_arguments"),
        ("get_effect", {"effect_id": "7"}, "invalid_arguments"),
        ("get_effect", {"effect_id": str(uuid4())}, "not_found"),
        ("list_unknown_effects", {"cursor": "?"}, "request_malformed"),
        ("resolve", {}, "unknown_tool"),
    ],
)
async def test_what_is_refused_is_told_with_a_stable_code(
    broker: AsyncBroker, tool: str, arguments: dict[str, Any], error: str
) -> None:
    async with managed(broker) as client:
        refused = await client.call_tool(tool, arguments)
    assert refused.is_error
    assert told_of(refused)["error"] == error
    assert text_of(refused).startswith(f"{error}: ")


async def test_the_tools_say_what_they_take_give_and_change(broker: AsyncBroker) -> None:
    async with managed(broker) as client:
        shown = await tools_of(client)
    assert set(shown) == {
        "submit_effect",
        "get_effect",
        "get_receipt",
        "list_unknown_effects",
        "request_reconciliation",
    }
    reads = {n for n, t in shown.items() if t.annotations and t.annotations.read_only_hint}
    assert reads == {"get_effect", "get_receipt", "list_unknown_effects"}
    for tool in shown.values():
        assert tool.input_schema["additionalProperties"] is False
        assert tool.output_schema is not None
        assert tool.output_schema["type"] == "object"
    assert len(TOOLS) == len(shown)


async def test_a_wait_that_ends_early_tells_that_it_goes_on(
    workers: Scene, broker: AsyncBroker, notes: Notes
) -> None:
    notes.script("slow")
    async with managed(broker) as client:
        early = await client.call_tool("submit_effect", submit("early", wait_seconds=0))
        effect_id = told_of(early)["effect_id"]
        done = await client.call_tool("get_effect", {"effect_id": effect_id, "wait_seconds": 30})
    assert (told_of(early)["happened"], told_of(early)["do_not_retry"]) == ("not_yet", True)
    assert told_of(done)["happened"] == "yes"
