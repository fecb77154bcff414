"""The adapter for tools of MCP servers: one call, in a conversation of its own, per attempt.

`conversation` owns what is proved to have left, with the `gate` before the wire of both transports;
`reading` says what an answer and a look-up prove; `programs` holds what a worker may start. The SDK
is loaded at the first dispatch: a process that only renders does without it.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, assert_never

from effect_adapters.base import (
    Answer,
    DispatchCall,
    Finding,
    ProbeCall,
    Reach,
    RenderError,
    SecretResolver,
    SecretUnavailable,
    not_sent,
    secret_value,
)
from effect_adapters.extras import ExtraMissing, require_extra
from effect_adapters.http.bodies import fill
from effect_adapters.http.connection import verifying_tls
from effect_adapters.mcp.ends import End, NotSent, ToolCall
from effect_adapters.mcp.programs import ProgramsInvalid, allowed_program, runnable
from effect_adapters.mcp.reading import answer_of, finding_of
from effect_contracts.canonical import JsonValue, canonical_bytes, parse_strict
from effect_contracts.document import ContractDocument
from effect_contracts.facts import Outcome, Verdict
from effect_contracts.mcp_settings import (
    KeyInArgument,
    KeyInMeta,
    McpProgram,
    McpSettings,
    McpUrl,
)

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

    from effect_adapters.base import Budget
    from effect_adapters.mcp.gate import Gate

__all__ = ["McpAdapter"]

# A stored call holds arguments of at most 256 KiB, whose text may grow by escapes.
_WIRE_BYTES_MAX: Final = 16 * 1024 * 1024
# What a server sends besides the answer: its greeting, and its list of tools.
_OTHER_BYTES: Final = 4 * 1024 * 1024


class _NotPrepared(Exception):
    """The way to the server cannot be made, so nothing is sent; `code` is stable."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class McpAdapter:
    """Implements `effect_adapters.base.Adapter` for contracts of the kind `mcp`."""

    def __init__(self, secrets: SecretResolver) -> None:
        self._secrets = secrets

    def identity(self, document: ContractDocument) -> str:
        """Return server and account: `https://mcp.example/mcp#acct_1`, `mcp:notes#acct_1`."""
        match _settings(document).server:
            case McpUrl(url=url):
                return f"{url.partition('?')[0]}#{document.account}"
            case McpProgram(program=program):
                return f"mcp:{program}#{document.account}"
            case never:
                assert_never(never)

    def render(
        self, document: ContractDocument, arguments: JsonValue, downstream_key: str
    ) -> bytes:
        """Return tool, arguments and `_meta` of the call, as canonical JSON."""
        settings = _settings(document)
        if not isinstance(arguments, dict):
            raise RenderError("arguments_not_object")
        given: dict[str, JsonValue] = dict(arguments)
        meta: dict[str, JsonValue] = {}
        match settings.key:
            case KeyInMeta(name=name):
                meta[name] = downstream_key
            case KeyInArgument(name=name, prefix=prefix):
                if name in given:
                    # An open schema lets a caller say it too, and it would be lost.
                    raise RenderError("key_argument_taken", f"/{name}")
                given[name] = prefix + downstream_key
            case never:
                assert_never(never)
        wire: JsonValue = {"tool": settings.tool, "arguments": given, "meta": meta}
        return canonical_bytes(wire, bytes_max=_WIRE_BYTES_MAX)

    async def dispatch(self, call: DispatchCall) -> Answer:
        """Make the stored call at most once, within the budget."""
        settings = _settings(call.document)
        try:
            wire: Any = parse_strict(call.wire, bytes_max=_WIRE_BYTES_MAX)
            out = ToolCall(wire["tool"], wire["arguments"], wire["meta"])
        except Exception:
            return not_sent("wire_invalid")
        end = await self._call(settings, out, call.budget, call.reach)
        try:
            return answer_of(settings, end)
        except Exception:
            # Whatever the answer was: it came after the call had gone, and proves nothing.
            return Answer(Outcome.AMBIGUOUS, "adapter_error")

    async def probe(self, call: ProbeCall) -> Finding:
        """Ask the server by the contract's read-only tool, within the budget."""
        settings = _settings(call.document)
        probe = settings.probe
        if probe is None:
            return Finding(Verdict.UNKNOWN, "no_probe")
        try:
            asked = fill(probe.arguments, call.arguments, call.downstream_key)
        except RenderError as error:
            return Finding(Verdict.UNKNOWN, error.code)
        try:
            end = await self._call(settings, ToolCall(probe.tool, asked, {}), call.budget, _nowhere)
            return finding_of(probe, call.downstream_key, call.arguments, end)
        except Exception:
            return Finding(Verdict.UNKNOWN, "adapter_error")

    async def _call(
        self, settings: McpSettings, call: ToolCall, budget: Budget, reach: Reach
    ) -> End:
        try:
            require_extra("mcp")
            # It takes a second, in which a worker has to go on beating.
            await asyncio.to_thread(import_module, "effect_adapters.mcp.conversation")
            from effect_adapters.mcp.conversation import converse

            way = self._way(settings)
        except SecretUnavailable:
            return NotSent("secret_unavailable")
        except (ExtraMissing, ProgramsInvalid, _NotPrepared) as problem:
            return NotSent(problem.code)
        return await converse(
            way,
            call,
            budget,
            reach,
            mode=settings.protocol,
            lists_tools_first=settings.lists_tools_first,
        )

    def _way(self, settings: McpSettings) -> Any:
        from effect_adapters.mcp.http_transport import http_transport
        from effect_adapters.mcp.program_transport import program_transport

        server = settings.server
        bytes_max = settings.response_bytes_max + _OTHER_BYTES
        match server:
            case McpProgram(program=name):
                program = runnable(allowed_program(name), self._secrets)

                def started(gate: Gate) -> AbstractAsyncContextManager[TransportStreams]:
                    return program_transport(program, gate, bytes_max)

                return started
            case McpUrl(url=url):
                headers = self._headers(server)

                def connected(gate: Gate) -> AbstractAsyncContextManager[TransportStreams]:
                    return http_transport(url, headers, verifying_tls(), gate, bytes_max)

                return connected
            case never:
                assert_never(never)

    def _headers(self, server: McpUrl) -> dict[str, str]:
        headers = {}
        for name, value in server.headers.items():
            text = (
                value
                if isinstance(value, str)
                else value.prefix + secret_value(value.secret, self._secrets)
            )
            if not text.isascii() or not text.isprintable():
                raise _NotPrepared("secret_invalid")
            headers[name] = text
        return headers


def _nowhere(_point: str) -> None:
    """A look-up passes no fault point."""


def _settings(document: ContractDocument) -> McpSettings:
    assert isinstance(document.adapter, McpSettings), "the registry picks adapters by kind"
    return document.adapter
