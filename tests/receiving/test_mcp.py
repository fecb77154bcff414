"""Tools under a key, of both servers of the SDK: the first result is kept, and drift is refused."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.server.mcpserver import MCPServer

from effect_broker.receiving import idempotent, register_look_up
from receiving.orders_mcp import high_server, low_server
from receiving.shop import Shop, SqliteShop

META_KEY = "dev.effect-broker/idempotency-key"
ShopOf = Callable[..., Shop]
SERVERS: dict[str, Callable[[Shop, list[BaseException]], Any]] = {
    "high": high_server,
    "low": low_server,
}


@pytest.fixture(params=[True, False], ids=["atomic", "separate"])
async def shop(shop_of: ShopOf, request: pytest.FixtureRequest) -> Shop:
    made = shop_of(shares_transaction=request.param)
    await made.store.create_table()
    return made


async def call(
    client: Client, order: str, tool: str = "place_order", **changes: Any
) -> types.CallToolResult:
    key = changes.pop("key", order)
    arguments = {"order": order, "amount": 3, **changes}
    meta: Any = {} if key is None else {META_KEY: key}
    return await client.call_tool(tool, arguments, meta=meta)


async def look(client: Client, key: str) -> dict[str, Any]:
    result = await client.call_tool("did_key_land", {"key": key})
    assert isinstance(result.structured_content, dict)
    return result.structured_content


def code_of(result: types.CallToolResult) -> str:
    """The code of an answer that is no result; its only text is JSON."""
    assert result.is_error
    [block] = result.content
    assert isinstance(block, types.TextContent)
    return str(json.loads(block.text)["idempotency"])


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_result_is_replayed_drift_is_refused_and_the_look_up_tells(
    shop: Shop, order: str, kind: str
) -> None:
    async with Client(SERVERS[kind](shop, [])) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert {"place_order", "did_key_land"} <= names
        assert (await look(client, order))["state"] == "not_landed"
        first = await call(client, order)
        again = await call(client, order)
        drifted = await call(client, order, amount=4)
        seen = await look(client, order)
    assert not first.is_error
    assert again.structured_content == first.structured_content
    assert again.content == first.content
    assert (again.meta or {})["dev.effect-broker/idempotency"] == {"replayed": True}
    assert "dev.effect-broker/idempotency" not in (first.meta or {})
    assert code_of(drifted) == "key_conflict"
    assert (seen["state"], seen["landed"]) == ("landed", True)
    assert seen["result"]["structuredContent"] == first.structured_content
    assert shop.orders(order) == 1


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_tool_that_fails_after_its_work_is_open_again_only_if_rolled_back(
    shop: Shop, order: str, kind: str
) -> None:
    failures: list[BaseException] = []
    async with Client(SERVERS[kind](shop, failures)) as client:
        failed = await call(client, order, note="raise")
        again = await call(client, order, note="raise")
        told = await call(client, f"{order}t", note="tell")
        seen = await look(client, order)
    expected = "not_done" if shop.store.atomic else "outcome_unknown"
    assert [code_of(failed), code_of(again), code_of(told)] == [expected] * 3
    assert seen["state"] == ("not_landed" if shop.store.atomic else "unknown")
    assert shop.orders(order) == (0 if shop.store.atomic else 1)
    # A crash is for the server's own log; what a tool tells its caller reaches the caller.
    assert "a mistake of the shop" not in str(failed.content)
    assert "no such article" in str(told.content)
    assert {type(error) for error in failures} == {LookupError}


async def test_a_result_that_is_an_error_is_not_kept(shop: Shop, order: str) -> None:
    async with Client(low_server(shop, [])) as client:
        answers = [await call(client, order, note="is_error") for _ in range(2)]
    expected = "not_done" if shop.store.atomic else "outcome_unknown"
    assert [code_of(answer) for answer in answers] == [expected] * 2
    assert shop.orders(order) == (0 if shop.store.atomic else 1)


async def test_nothing_done_opens_the_key_and_a_call_at_work_is_told(
    shop: Shop, order: str
) -> None:
    async with Client(high_server(shop, [])) as client:
        assert code_of(await call(client, order, note="nothing")) == "not_done"
        first = asyncio.create_task(call(client, order, note="wait", key=f"{order}w"))
        await shop.entered.wait()
        second = await call(client, order, note="wait", key=f"{order}w")
        seen = await look(client, f"{order}w")
        shop.go_on.set()
        assert not (await first).is_error
    assert code_of(second) == "in_progress"
    assert seen["state"] == "in_progress"
    assert shop.orders(order) == 1


async def test_keys_are_required_unless_the_tool_says_otherwise(
    shop_of: ShopOf, order: str
) -> None:
    shop = shop_of(shares_transaction=False)
    await shop.store.create_table()
    async with Client(high_server(shop, [])) as client:
        assert code_of(await call(client, order, key=None)) == "key_missing"
        assert code_of(await call(client, order, key="two words")) == "key_invalid"
        assert code_of(await client.call_tool("did_key_land", {"key": "two words"})) == (
            "key_invalid"
        )
        free: Any = {"order": order}
        for _ in range(2):
            assert not (await client.call_tool("place_with_context", free)).is_error
        meta: Any = {META_KEY: order}
        for _ in range(2):
            assert not (await client.call_tool("place_with_context", free, meta=meta)).is_error
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert shop.orders(order) == 3
    # The decorator leaves the schemas as they were.
    assert set(tools["place_order"].input_schema["properties"]) == {"order", "amount", "note"}
    assert set(tools["place_with_context"].input_schema["properties"]) == {"order"}
    assert set((tools["place_order"].output_schema or {})["properties"]) == {
        "id",
        "order",
        "amount",
    }


async def test_a_cancelled_call_keeps_its_key_until_its_thread_has_ended(
    shop: Shop, order: str
) -> None:
    entered, go_on, wrote = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    server: MCPServer[Any] = MCPServer("shop")

    @server.tool()
    @idempotent(shop.store)
    def place_order(order: str, amount: int) -> str:
        """Works in a thread, which nobody can stop."""
        loop.call_soon_threadsafe(entered.set)
        assert go_on.wait(20)
        if isinstance(shop, SqliteShop):
            asyncio.run(shop.write(order, amount))
        wrote.set()
        return "placed"

    register_look_up(server, shop.store)
    async with Client(server) as client:
        first = asyncio.create_task(call(client, order))
        await entered.wait()
        first.cancel()
        await asyncio.sleep(0.1)  # in which the server hears of it
        assert code_of(await call(client, order)) == "in_progress"
        assert (await look(client, order))["state"] == "in_progress"
        go_on.set()
        await asyncio.wait({first}, timeout=10)
        ended = (await look(client, order))["state"]
    assert first.cancelled()
    assert wrote.is_set()
    # The work was done; in a shared transaction it was taken back with the claim.
    assert ended == ("not_landed" if shop.store.atomic else "unknown")
    if isinstance(shop, SqliteShop):
        assert shop.orders(order) == (0 if shop.store.atomic else 1)
