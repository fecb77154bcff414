"""The proxy's own line to the server behind it: kept open, opened again after it was lost.

It carries what may be sent any number of times: the list of tools, and calls that only read. A call
with a contract never comes here; a worker of the broker makes it, over a line of its own.

A session of the SDK has to be entered and left by one task, and a call on it may hang when the
session dies. So one task owns the session, and every call runs beside it and ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from mcp.client import Client
from mcp.client._transport import TransportStreams
from mcp.client.session import IncomingMessage
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    CallToolResult,
    InputRequiredResult,
    ListToolsResult,
    RequestParamsMeta,
    Tool,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from effect_adapters.base import SecretResolver, SecretUnavailable
from effect_adapters.mcp.programs import Program, runnable
from effect_broker.config import ConfigurationProblem
from effect_broker.mcp.proxy_config import ProxyConfig, UrlUpstream
from effect_broker.mcp.upstream_ways import on_pipes, over_http

T = TypeVar("T")

# A greeting that takes longer is that of a server which is not there.
_OPEN_SECONDS: Final = 30.0
# What a person could page through; a list that never ends is no list.
_PAGES_MAX: Final = 100


class UpstreamLost(Exception):
    """The server cannot be reached, or the line to it was lost; nothing is known of the call."""


class UpstreamUnreadable(UpstreamLost):
    """The server has answered what the protocol does not know."""


@dataclass(frozen=True, slots=True)
class _Line:
    client: Client
    owner: asyncio.Task[None]
    ending: asyncio.Event


class Upstream:
    """The line to one server.

    Args:
        on_list_changed: is called when the server says that its tools are others now.
    """

    def __init__(
        self,
        config: ProxyConfig,
        secrets: SecretResolver,
        on_list_changed: Callable[[], Awaitable[None]],
    ) -> None:
        self._config = config
        self._secrets = secrets
        self._on_list_changed = on_list_changed
        self._opening = asyncio.Lock()
        self._line: _Line | None = None
        self._owners: set[asyncio.Task[None]] = set()

    async def list_tools(self, cursor: str | None) -> ListToolsResult:
        """Return a page of the server's tools, as they are now.

        Raises:
            UpstreamLost, MCPError.
        """
        return await self._on_line(lambda c: c.list_tools(cursor=cursor, cache_mode="bypass"))

    async def all_tools(self) -> list[Tool]:
        """Return all of the server's tools.

        Raises:
            UpstreamLost, MCPError.
        """
        tools: list[Tool] = []
        cursor: str | None = None
        for _ in range(_PAGES_MAX):
            page = await self.list_tools(cursor)
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None:
                break
        return tools

    async def call_tool(
        self, name: str, arguments: dict[str, object] | None, meta: RequestParamsMeta | None
    ) -> CallToolResult | InputRequiredResult:
        """Make a call once, and give back what came.

        Raises:
            UpstreamLost, MCPError.
        """
        return await self._on_line(
            lambda c: c.session.call_tool(name, arguments, meta=meta, allow_input_required=True)
        )

    async def close(self) -> None:
        """End the line, and the server where the proxy has started it."""
        self._drop(self._line)
        await asyncio.gather(*self._owners, return_exceptions=True)

    async def _on_line(self, call: Callable[[Client], Awaitable[T]]) -> T:
        line = await self._opened()
        work = asyncio.ensure_future(call(line.client))
        try:
            both: set[asyncio.Future[Any]] = {work, line.owner}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() or work.cancelled():
                self._drop(line)
                raise UpstreamLost
            return work.result()
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                self._drop(line)
                raise UpstreamLost from None
            raise
        except ValidationError:
            # The text of the library's error would hold the answer.
            raise UpstreamUnreadable from None
        finally:
            work.cancel()

    async def _opened(self) -> _Line:
        async with self._opening:
            if self._line is None or self._line.owner.done():
                ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
                ending = asyncio.Event()
                owner = asyncio.create_task(self._own(ready, ending))
                self._owners.add(owner)
                owner.add_done_callback(self._owners.discard)
                either: set[asyncio.Future[Any]] = {ready, owner}
                try:
                    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                    if not ready.done():
                        raise UpstreamLost
                finally:
                    if not ready.done():
                        ready.cancel()
                        ending.set()
                self._line = _Line(ready.result(), owner, ending)
            return self._line

    def _drop(self, line: _Line | None) -> None:
        if line is not None:
            line.ending.set()
        if line is self._line:
            self._line = None

    async def _own(self, ready: asyncio.Future[Client], ending: asyncio.Event) -> None:
        with contextlib.suppress(Exception):
            client = Client(
                self._transport(),
                mode=self._config.protocol,
                cache=None,
                read_timeout_seconds=self._config.read_seconds,
                message_handler=self._heard,
            )
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(_OPEN_SECONDS):
                    await stack.enter_async_context(client)
                if ready.cancelled():
                    return
                ready.set_result(client)
                following = asyncio.create_task(self._follow(client))
                try:
                    await ending.wait()
                finally:
                    following.cancel()

    async def _heard(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            await self._on_list_changed()

    async def _follow(self, client: Client) -> None:
        """On a connection of the newer protocol changes are told to those who ask for them."""
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return
        with contextlib.suppress(Exception):
            async with client.listen(tools_list_changed=True) as subscription:
                async for _ in subscription:
                    await self._on_list_changed()

    def _transport(self) -> AbstractAsyncContextManager[TransportStreams]:
        upstream = self._config.upstream
        try:
            bytes_max = self._config.answer_bytes_max
            if isinstance(upstream, Program):
                return on_pipes(runnable(upstream, self._secrets), bytes_max)
            return over_http(
                upstream.url,
                _headers(upstream, self._secrets),
                bytes_max=bytes_max,
                open_seconds=_OPEN_SECONDS,
                read_seconds=self._config.read_seconds,
            )
        except SecretUnavailable as problem:
            raise ConfigurationProblem(str(problem)) from None

    def check_secrets(self) -> None:
        """See that every secret of the upstream is there.

        Raises:
            ConfigurationProblem: names the reference.
        """
        upstream = self._config.upstream
        try:
            if isinstance(upstream, Program):
                runnable(upstream, self._secrets)
            else:
                _headers(upstream, self._secrets)
        except SecretUnavailable as problem:
            raise ConfigurationProblem(str(problem)) from None


def _headers(upstream: UrlUpstream, secrets: SecretResolver) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else value.prefix + secrets(value.secret)
        for name, value in upstream.headers.items()
    }
