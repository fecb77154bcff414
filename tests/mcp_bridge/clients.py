"""The official client before a proxy, and what the tests read of results."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import mcp_types as types
from mcp.client import Client
from mcp.client.session import MessageHandlerFnT

from effect_broker import AsyncBroker
from effect_broker.mcp.proxy import Proxy
from effect_broker.mcp.proxy_config import ProxyConfig, read_config
from mcp_bridge.notes import Notes

Mode = Literal["auto", "legacy"]


def proxy_config(notes: Notes, safety: str = "idempotent", **changes: Any) -> ProxyConfig:
    """Return the configuration of a proxy before the notes server."""
    value = {
        "upstream": notes.programs()["notes-keyed"],
        "tools": {"create_note": {"effect": f"notes.{safety}"}, "find_notes": "read_only"},
        "wait_seconds": 30,
        **changes,
    }
    return read_config(json.dumps(value))


def no_secrets(reference: str) -> str:
    """A resolver for configurations without secrets."""
    raise AssertionError(f"{reference} was asked for")


@asynccontextmanager
async def proxied(
    broker: AsyncBroker,
    made: ProxyConfig,
    mode: Mode = "auto",
    hear: MessageHandlerFnT | None = None,
) -> AsyncIterator[Client]:
    """Give a client of a proxy in this process."""
    proxy = Proxy(made, broker, no_secrets)
    try:
        async with Client(proxy.server, mode=mode, cache=None, message_handler=hear) as client:
            yield client
    finally:
        await proxy.close()


async def tools_of(client: Client) -> dict[str, types.Tool]:
    """Return all tools that a client is shown, by name."""
    found: dict[str, types.Tool] = {}
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor, cache_mode="bypass")
        found |= {tool.name: tool for tool in page.tools}
        cursor = page.next_cursor
        if cursor is None:
            return found


def text_of(result: types.CallToolResult) -> str:
    """Return the texts of a result."""
    return "\n".join(b.text for b in result.content if isinstance(b, types.TextContent))


def told_of(result: types.CallToolResult) -> dict[str, Any]:
    """Return the structured part of a result."""
    assert isinstance(result.structured_content, dict)
    return result.structured_content
