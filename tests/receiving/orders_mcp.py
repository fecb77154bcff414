"""The shop as MCP servers of both kinds, over one store."""

from __future__ import annotations

from typing import Any, TypedDict

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from effect_broker.receiving import (
    LOOK_UP_TOOL,
    NothingDone,
    idempotent,
    idempotent_calls,
    register_look_up,
)
from receiving.shop import Shop


class Placed(TypedDict):
    """What place_order answers."""

    id: str
    order: str
    amount: int


async def placed(shop: Shop, order: str, amount: int, note: str) -> Placed:
    """Place an order, and go wrong as its note says; see `receiving.shop`."""
    if note == "nothing":
        raise NothingDone("the kitchen is closed")
    number = await shop.write(order, amount)
    if note == "wait":
        shop.entered.set()
        await shop.go_on.wait()
    if note == "raise":
        raise LookupError("a mistake of the shop")
    if note == "tell":
        raise ToolError("no such article")
    return {"id": str(number), "order": order, "amount": amount}


def high_server(shop: Shop, failures: list[BaseException]) -> MCPServer[Any]:
    """The shop as an `MCPServer`; tools with and without a context of their own."""
    server: MCPServer[Any] = MCPServer("shop")

    @server.tool()
    @idempotent(shop.store, on_failure=failures.append)
    async def place_order(order: str, amount: int, note: str = "") -> Placed:
        """Places an order."""
        return await placed(shop, order, amount, note)

    @server.tool()
    @idempotent(shop.store, on_failure=failures.append, required=False)
    async def place_with_context(order: str, ctx: Context[Any, Any]) -> str:
        """Places an order of one."""
        assert ctx.request_context.meta is not None
        return (await placed(shop, order, 1, ""))["id"]

    register_look_up(server, shop.store)
    return server


def low_server(shop: Shop, failures: list[BaseException]) -> Server[Any]:
    """The shop as a lowlevel `Server`."""

    async def list_tools(
        _: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        schema = {"type": "object"}
        own = types.Tool(name="place_order", input_schema=schema)
        return types.ListToolsResult(tools=[own, LOOK_UP_TOOL])

    async def call_tool(
        _: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        asked = params.arguments or {}
        made = await placed(shop, asked["order"], asked["amount"], asked.get("note", ""))
        text = types.TextContent(type="text", text=f"placed {made['id']}")
        if asked.get("note") == "is_error":
            return types.CallToolResult(content=[text], is_error=True)
        return types.CallToolResult(content=[text], structured_content=dict(made))

    return Server(
        "shop",
        on_list_tools=list_tools,
        on_call_tool=idempotent_calls(
            shop.store, call_tool, tools={"place_order"}, on_failure=failures.append
        ),
    )
