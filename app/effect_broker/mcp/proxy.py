"""The proxy: the tools of another MCP server, where those that change things are effects.

What a client sees are the upstream's own tools: names, descriptions, schemas, annotations and pages
as they come, asked anew each time. A tool with a contract has one more required property, the
operation key, and its calls never go to the upstream from here: the call becomes an effect of the
broker, a worker makes it under the contract, and what the server answered is given back, again and
again for the same key. A tool that only reads, by the word of the configuration, is passed through.
What is neither is refused in strict mode.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
)
from pydantic import ValidationError

from effect_adapters.base import SecretResolver
from effect_broker import __version__
from effect_broker.config import ConfigurationProblem
from effect_broker.mcp.management import given, refused
from effect_broker.mcp.mirror import mirror_problem, mirrored
from effect_broker.mcp.proxy_config import READ_ONLY, ContractedTool, ProxyConfig
from effect_broker.mcp.upstream import Upstream, UpstreamLost, UpstreamUnreadable
from effect_broker.mcp.words import Refusal, refusal, told
from effect_broker.sdk import AsyncBroker, BrokerError, Outcome, RequestRefused, Succeeded
from effect_contracts.problem_codes import ProblemCode

RECEIPT_META: Final = "dev.effect-broker/receipt"

# Changes of the list are passed on so often at most; a client that does not read is given so long.
_TELL_EVERY_SECONDS: Final = 0.2
_TELL_SECONDS: Final = 5.0

# Members of `_meta` that belong to one connection and not to the call.
_CONNECTION_META: Final = "io.modelcontextprotocol/"
_OF_CONNECTION: Final = frozenset({"progressToken"})

INSTRUCTIONS: Final = (
    "Tools that ask for {key} make their change at most once per {key}: it names the business "
    "intent, such as order:42:refund:v1. Use the same one, with the same arguments, on every "
    "retry, and never a random value. A result with do_not_retry=true means: do not try to make "
    "that change again in any way; tell the user."
)


class Proxy:
    """One upstream behind one front."""

    def __init__(self, config: ProxyConfig, broker: AsyncBroker, secrets: SecretResolver) -> None:
        self._config = config
        self._broker = broker
        self._bus = InMemorySubscriptionBus()
        self._connections: weakref.WeakSet[Any] = weakref.WeakSet()
        # Tools whose input has got a property of the operation key's name since the check. Whoever
        # has been shown that means the server's own property by it, and no key of the broker's.
        self._unfit: set[str] = set()
        self._upstream = Upstream(config, secrets, self._announce)
        self._changed = False
        self._telling: asyncio.Task[None] | None = None
        self.server: Server[Any] = _ProxyServer(
            "effect-broker-proxy",
            version=__version__,
            instructions=INSTRUCTIONS.format(key=config.operation_key),
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=ListenHandler(self._bus),
        )

    async def check(self) -> tuple[str, ...]:
        """See that the upstream is there, and has the tools that the configuration names.

        Returns:
            The tools of the upstream that will be refused, since it does not name them.

        Raises:
            ConfigurationProblem: says what does not fit.
        """
        self._upstream.check_secrets()
        try:
            tools = {tool.name: tool for tool in await self._upstream.all_tools()}
        except (UpstreamLost, MCPError):
            raise ConfigurationProblem(
                "the upstream gave no list of its tools: see whether it runs, and whether its "
                "command or url is right"
            ) from None
        problems = []
        for name, entry in self._config.tools.items():
            if name not in tools:
                problems.append(f"/tools/{name}: the upstream has no such tool")
            elif isinstance(entry, ContractedTool):
                problem = mirror_problem(tools[name], self._config.key_name(entry))
                problems += [] if problem is None else [f"/tools/{name}: {problem}"]
        if problems:
            raise ConfigurationProblem("; ".join(problems))
        if not self._config.strict:
            return ()
        unnamed = (tool for name, tool in sorted(tools.items()) if name not in self._config.tools)
        return tuple(tool.name for tool in unnamed if not self._claims(tool))

    async def check_contracts(self) -> None:
        """See that the broker has a contract for every tool that is to become an effect.

        Raises:
            ConfigurationProblem: names those that it has none for.
            BrokerError: the broker did not say.
        """
        problems = []
        for name, entry in self._config.tools.items():
            if not isinstance(entry, ContractedTool):
                continue
            place = f"/tools/{name}/effect"
            try:
                found = await self._broker.tool(entry.effect)
            except RequestRefused as refusal:
                if refusal.code != ProblemCode.UNKNOWN_TOOL:
                    raise
                problems.append(f"{place}: no active contract has the tool {entry.effect}")
                continue
            if found.sent_by != "broker":
                problems.append(
                    f"{place}: the contract of {entry.effect} has its caller perform it"
                )
        if problems:
            hint = "`effect-broker contracts list` shows the tools that there are"
            raise ConfigurationProblem(f"{'; '.join(problems)}. {hint}")

    async def close(self) -> None:
        """End the line to the upstream; effects that are under way go on."""
        await self._upstream.close()
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)

    # Listing -----------------------------------------------------------------------------------

    async def _list_tools(
        self, ctx: ServerRequestContext[Any], params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        # The standing connection, for changes of the list; the session is of this request alone.
        self._connections.add(ctx.session._connection)
        try:
            page = await self._upstream.list_tools(None if params is None else params.cursor)
        except UpstreamLost as lost:
            raise MCPError(INTERNAL_ERROR, f"the server behind the proxy {_how(lost)}") from None
        return ListToolsResult(tools=self._shown(page.tools), next_cursor=page.next_cursor)

    def _shown(self, tools: Sequence[Tool]) -> list[Tool]:
        keys = {
            tool.name: self._config.key_name(entry)
            for tool in tools
            if isinstance(entry := self._config.tools.get(tool.name), ContractedTool)
        }
        # A tool that came later and does not fit is shown as it is, and refused when it is called;
        # also where the server has named two tools alike, and one of them would fit.
        unfit = {
            tool.name
            for tool in tools
            if tool.name in keys and mirror_problem(tool, keys[tool.name]) is not None
        }
        self._unfit = (self._unfit - keys.keys()) | unfit
        return [
            mirrored(tool, keys[tool.name]) if tool.name in keys.keys() - unfit else tool
            for tool in tools
        ]

    async def _announce(self) -> None:
        """Let the clients know, beside the line that says so.

        One that does not read holds it up for nobody, and a server that says it without an end is
        passed on now and then.
        """
        self._changed = True
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell_changes())

    async def _tell_changes(self) -> None:
        while self._changed:
            self._changed = False
            await self._bus.publish(ToolsListChanged())
            told = [self._tell_change(connection) for connection in list(self._connections)]
            await asyncio.gather(*told)
            await asyncio.sleep(_TELL_EVERY_SECONDS)

    async def _tell_change(self, connection: Any) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TELL_SECONDS):
                await connection.send_tool_list_changed()

    # Calling -----------------------------------------------------------------------------------

    async def _call_tool(
        self, _: ServerRequestContext[Any], params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        entry = self._config.tools.get(params.name)
        if isinstance(entry, ContractedTool):
            return await self._effect(entry, params)
        if entry == READ_ONLY or not self._config.strict or await self._claims_to_read(params.name):
            return await self._passed(params)
        return refused(
            Refusal(
                error="tool_without_contract",
                message=f"The proxy does not let {params.name} through: its configuration names "
                "neither a contract for it nor says that it only reads. Nothing was sent. Do not "
                "look for another way; tell the user.",
            )
        )

    async def _claims_to_read(self, name: str) -> bool:
        if not self._config.trust_read_only_hint:
            return False
        try:
            tools = await self._upstream.all_tools()
        except (UpstreamLost, MCPError):
            return False
        return any(tool.name == name and self._claims(tool) for tool in tools)

    def _claims(self, tool: Tool) -> bool:
        """Whether the upstream says that a tool only reads, where that counts."""
        hints = tool.annotations
        told = hints is not None and hints.read_only_hint is True
        return told and self._config.trust_read_only_hint

    async def _passed(self, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        meta: Any = {
            name: value
            for name, value in (params.meta or {}).items()
            if name not in _OF_CONNECTION and not name.startswith(_CONNECTION_META)
        }
        try:
            return await self._upstream.call_tool(params.name, params.arguments, meta or None)
        except UpstreamLost as lost:
            return refused(
                Refusal(
                    error="upstream_lost",
                    message=f"The server behind the proxy {_how(lost)}: nothing is known of the "
                    "call.",
                )
            )

    async def _effect(self, entry: ContractedTool, params: CallToolRequestParams) -> CallToolResult:
        name = self._config.key_name(entry)
        if params.name in self._unfit:
            return refused(
                Refusal(
                    error="tool_changed",
                    message=f"{params.name} has got a property {name} of its own, so that it "
                    "cannot carry the operation key any more. Nothing was sent. Do not look for "
                    "another way; tell the user that the proxy's configuration has to name another "
                    "property.",
                )
            )
        arguments = dict(params.arguments or {})
        operation_key = arguments.pop(name, None)
        if not isinstance(operation_key, str):
            return refused(
                Refusal(
                    error="invalid_arguments",
                    message=f"{name} is required, as a text: the stable name of the business "
                    "intent, such as order:42:refund:v1, the same on every retry. Nothing was "
                    "sent.",
                    field=f"/{name}",
                )
            )
        try:
            effect = await self._broker.submit(entry.effect, arguments, operation_key=operation_key)
            outcome = await self._broker.result(
                effect, deadline=timedelta(seconds=self._config.wait_seconds)
            )
        except BrokerError as error:
            return refused(refusal(error, within="/arguments"))
        return answered(outcome)


def _how(lost: UpstreamLost) -> str:
    if isinstance(lost, UpstreamUnreadable):
        return "gave an answer that the protocol does not know"
    return "did not answer"


def answered(outcome: Outcome) -> CallToolResult:
    """Return the server's own result where it is there, else what is known of the effect."""
    kept = _kept_result(outcome) if isinstance(outcome, Succeeded) else None
    if kept is None:
        said = told(outcome)
        result = given(said)
        result.is_error = said.happened == "no"
    else:
        result = kept
    receipt = {"effect_id": str(outcome.effect.effect_id), "state": outcome.effect.state.value}
    if isinstance(outcome, Succeeded):
        receipt |= {
            "receipt_id": str(outcome.receipt.receipt_id),
            "digest": outcome.receipt.digest,
            "source": outcome.receipt.source,
        }
    result.meta = {**(result.meta or {}), RECEIPT_META: receipt}
    return result


def _kept_result(outcome: Succeeded) -> CallToolResult | None:
    """The stored answer of the server; None where what settled the effect was no answer."""
    if outcome.receipt.source != "response" or not isinstance(outcome.receipt.result, dict):
        return None
    try:
        return CallToolResult.model_validate(outcome.receipt.result)
    except ValidationError:
        return None


class _ProxyServer(Server[Any]):
    """Tells clients of the older protocol, too, that the list of tools may change."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> InitializationOptions:
        """As the library's, with changes of the list."""
        options = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(options, *args, **kwargs)
