"""A server made with the SDK, in this process and over HTTP; it speaks the newer protocol too."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged

_OBJECT = {"type": "object"}


@dataclass
class Modern:
    """What the server was asked, and whether it is to ask back."""

    calls: list[types.CallToolRequestParams] = field(default_factory=list)
    protocols: set[str] = field(default_factory=set)
    asks_back: bool = False
    tools: list[str] = field(default_factory=lambda: ["make"])
    bus: InMemorySubscriptionBus = field(default_factory=InMemorySubscriptionBus)

    async def announced(self) -> None:
        """Tell those who listen that the tools are others now; first let one begin to listen."""
        while not self.bus._listeners:  # noqa: ASYNC110 - the library has no event for it
            await asyncio.sleep(0.01)
        await self.bus.publish(ToolsListChanged())

    def server(self) -> Server[Any]:
        """Return the server."""

        async def list_tools(
            _: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
        ) -> types.ListToolsResult:
            return types.ListToolsResult(
                tools=[types.Tool(name=name, input_schema=_OBJECT) for name in self.tools]
            )

        async def call_tool(
            ctx: ServerRequestContext[Any], params: types.CallToolRequestParams
        ) -> types.CallToolResult | types.InputRequiredResult:
            self.calls.append(params)
            self.protocols.add(ctx.protocol_version)
            if self.asks_back:
                return types.InputRequiredResult(request_state="once more")
            return types.CallToolResult(
                content=[types.TextContent(type="text", text="made")], structured_content={"id": 7}
            )

        return Server(
            "modern",
            on_list_tools=list_tools,
            on_call_tool=call_tool,
            on_subscriptions_listen=ListenHandler(self.bus),
        )


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """Serve an application in this event loop; give its origin."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            while not server.started:  # noqa: ASYNC110 - the library has no event for it
                await asyncio.sleep(0.01)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving
