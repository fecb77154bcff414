"""A server made with the SDK, in this process and over HTTP; it speaks the newer protocol too."""

from __future__ import annotations

import asyncio
import json
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
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_OBJECT = {"type": "object"}
# An argument that clients have to repeat as the header Mcp-Param-Shelf.
IN_HEADER = {
    "type": "object",
    "properties": {"title": {"type": "string", "x-mcp-header": "Shelf"}},
}


@dataclass
class Modern:
    """What the server was asked, and whether it is to ask back.

    Attributes:
        calls: what the tool itself has got.
        schema: of the tools' arguments.
        on_the_wire: method and headers of every request of `counted`, also of those that the
            library refuses before the tool is called.
    """

    calls: list[types.CallToolRequestParams] = field(default_factory=list)
    protocols: set[str] = field(default_factory=set)
    asks_back: bool = False
    tools: list[str] = field(default_factory=lambda: ["make"])
    schema: dict[str, Any] = field(default_factory=lambda: _OBJECT)
    on_the_wire: list[tuple[str, dict[str, str]]] = field(default_factory=list)
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
                tools=[types.Tool(name=name, input_schema=self.schema) for name in self.tools]
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

    def counted(self) -> ASGIApp:
        """Return the server as an application that writes down what reaches it."""
        app = self.server().streamable_http_app()

        async def counting(scope: Scope, receive: Receive, send: Send) -> None:
            body = b""

            async def received() -> Message:
                nonlocal body
                message = await receive()
                if message["type"] == "http.request":
                    body += message.get("body", b"")
                    if not message.get("more_body") and body:
                        headers = {n.decode(): v.decode() for n, v in scope["headers"]}
                        self.on_the_wire.append((json.loads(body)["method"], headers))
                return message

            await app(scope, received, send)

        return counting


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
