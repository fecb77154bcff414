"""Tools of MCP servers under a key, for both servers of the official SDK (2.3).

The key is the member `dev.effect-broker/idempotency-key` of the call's `_meta`; what is asked is
the tool and its arguments as they came. Kept is a result that is no error. Everything else is
answered by a result with `isError` whose only text is a JSON object, so that a contract can tell
what it means (a plain `isError` proves nothing):

    {"idempotency": "in_progress", "detail": "…"}

`idempotency` is a code of `effect_broker.receiving.terms.Refusal`, or `not_done`: the tool has
failed and nothing was changed. A crash is told to `on_failure` alone. A replayed result has
`{"replayed": true}` in its `_meta` under `dev.effect-broker/idempotency`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import traceback
import typing
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar, cast

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.utilities.func_metadata import func_metadata
from mcp.shared.exceptions import MCPError

from effect_broker.receiving.running import Ended, Failed, Ran, Refused, Replayed, run_once
from effect_broker.receiving.terms import (
    SENTENCES,
    KeptResult,
    KeyedRequest,
    KeyStore,
    NothingDone,
    Refusal,
    StoreUnavailable,
    key_is_valid,
    request_digest,
)
from effect_contracts.errors import InvalidPayload
from effect_contracts.mcp_settings import META_KEY

META_ANSWER: Final = "dev.effect-broker/idempotency"
_CONTEXT_NAME: Final = "receiving_context"

RequestContext: TypeAlias = ServerRequestContext[Any, Any]
ScopeOf: TypeAlias = Callable[[RequestContext], "str | None"]
Called: TypeAlias = types.CallToolResult | types.InputRequiredResult
OnCallTool: TypeAlias = Callable[[RequestContext, types.CallToolRequestParams], Awaitable[Called]]
OnFailure: TypeAlias = Callable[[BaseException], object]
Tool = TypeVar("Tool", bound=Callable[..., Any])

LOOK_UP_TOOL: Final = types.Tool(
    name="did_key_land",
    title="Did this key land?",
    description="Says whether the call with an idempotency key was carried out: landed, refused, "
    "in_progress, unknown or not_landed, with its first result. Changes nothing.",
    input_schema={
        "type": "object",
        "properties": {"key": {"type": "string", "minLength": 1, "maxLength": 255}},
        "required": ["key"],
    },
    annotations=types.ToolAnnotations(read_only_hint=True),
)


def one_caller(_context: RequestContext) -> str:
    """The scope of a server that has one caller alone, such as one over stdin and stdout."""
    return "one"


def idempotent(
    store: KeyStore,
    *,
    scope_of: ScopeOf = one_caller,
    required: bool = True,
    on_failure: OnFailure = traceback.print_exception,
) -> Callable[[Tool], Tool]:
    """Return a decorator for tool functions of an `MCPServer`; it goes below `@server.tool()`.

    Args:
        store: where keys are kept.
        scope_of: whose key it is. A server with several callers must tell them apart; None refuses.
        required: a call without a key is refused; else it is carried out without any promise.
        on_failure: gets what a tool has raised; by default it goes to stderr.
    """

    keys = _Keys(store, scope_of, required, on_failure)

    def decorated(function: Tool) -> Tool:
        hints = typing.get_type_hints(function, include_extras=True)
        signature = inspect.signature(function, eval_str=True)
        own = next((n for n, hint in hints.items() if _is_context(hint)), None)
        converted = func_metadata(function, skip_names=tuple(signature.parameters)).convert_result

        @functools.wraps(function)
        async def under_key(**given: Any) -> Called:
            context = given[own] if own else given.pop(_CONTEXT_NAME)

            async def call() -> Called:
                if inspect.iscoroutinefunction(function):
                    return converted(await function(**given))
                return converted(await _in_thread(functools.partial(function, **given)))

            request = cast(Context[Any, Any], context).request_context
            asked = dict(request.params or {})
            return await _call_once(keys, request, asked["name"], asked.get("arguments"), call)

        if own is None:
            hints[_CONTEXT_NAME] = Context
            added = inspect.Parameter(
                _CONTEXT_NAME, inspect.Parameter.KEYWORD_ONLY, annotation=Context
            )
            signature = signature.replace(parameters=[*signature.parameters.values(), added])
        under_key.__annotations__ = hints
        under_key.__signature__ = signature  # type: ignore[attr-defined]
        return cast(Tool, under_key)

    return decorated


def idempotent_calls(
    store: KeyStore,
    on_call_tool: OnCallTool,
    *,
    tools: Collection[str],
    scope_of: ScopeOf = one_caller,
    required: bool = True,
    on_failure: OnFailure = traceback.print_exception,
) -> OnCallTool:
    """Return the `on_call_tool` of a lowlevel `Server` whose `tools` are under keys.

    It answers `LOOK_UP_TOOL` too; put that into the server's list. The other arguments are those of
    `idempotent`.
    """

    keys = _Keys(store, scope_of, required, on_failure)

    async def called(context: RequestContext, params: types.CallToolRequestParams) -> Called:
        if params.name == LOOK_UP_TOOL.name:
            key = (params.arguments or {}).get("key")
            return await _look_up(store, scope_of(context), key if isinstance(key, str) else "")
        if params.name not in tools:
            return await on_call_tool(context, params)

        async def call() -> Called:
            return await on_call_tool(context, params)

        return await _call_once(keys, context, params.name, params.arguments, call)

    return called


def register_look_up(
    server: MCPServer[Any], store: KeyStore, *, scope_of: ScopeOf = one_caller
) -> None:
    """Add the read-only tool `did_key_land` to an `MCPServer`."""

    async def did_key_land(key: str, context: Context[Any, Any]) -> types.CallToolResult:
        return await _look_up(store, scope_of(context.request_context), key)

    server.add_tool(
        did_key_land,
        name=LOOK_UP_TOOL.name,
        title=LOOK_UP_TOOL.title,
        description=LOOK_UP_TOOL.description,
        annotations=LOOK_UP_TOOL.annotations,
    )


@dataclass(frozen=True, slots=True)
class _Keys:
    """Where the keys of a server are kept, and how they are treated."""

    store: KeyStore
    scope_of: ScopeOf
    required: bool
    on_failure: OnFailure


async def _call_once(
    keys: _Keys,
    context: RequestContext,
    tool: str,
    arguments: Any,
    call: Callable[[], Awaitable[Called]],
) -> Called:
    store = keys.store
    key = dict(context.meta or {}).get(META_KEY)
    if key is None:
        return await call() if not keys.required else _refusal(Refusal.KEY_MISSING)
    if not isinstance(key, str) or not key_is_valid(key):
        return _refusal(Refusal.KEY_INVALID)
    owner = keys.scope_of(context)
    if owner is None:
        return _refusal(Refusal.UNAUTHENTICATED)
    try:
        digest = request_digest({"tool": tool, "arguments": arguments or {}})
    except InvalidPayload:
        return _error("arguments_invalid", "The arguments have no canonical form (RFC 8785).")
    said: list[Called] = []

    async def work() -> KeptResult | None:
        result = await call()
        said.append(result)
        return _kept(store, result)

    ended = await run_once(store, KeyedRequest(owner, key, digest), work)
    if isinstance(ended, Failed) and ended.error is not None and not _was_meant(ended.error):
        keys.on_failure(ended.error)
    return _told(ended, said)


async def _in_thread(function: Callable[[], Any]) -> Any:
    """Run a plain function in a thread; a call that is cancelled meanwhile ends after it.

    A thread cannot be stopped. Were its claim given up under it, the next call with the key would
    be at work beside it, and what it still writes would be in no transaction of the claim's.
    """
    cancelled: asyncio.CancelledError | None = None
    work = asyncio.ensure_future(asyncio.to_thread(function))
    # The server's own cancelling comes again at every turn of the loop; this keeps it outside.
    with anyio.CancelScope(shield=True):
        while not work.done():
            try:
                await asyncio.wait({work})
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        work.exception()  # seen: nobody is there any more to be told
        raise cancelled
    return work.result()


def _kept(store: KeyStore, result: Called) -> KeptResult | None:
    if not isinstance(result, types.CallToolResult) or result.is_error:
        return None
    kept = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    body = json.dumps(kept, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    return None if len(body) > store.result_bytes_max else KeptResult(200, (), body)


def _told(ended: Ended, said: list[Called]) -> Called:
    match ended:
        case Ran():
            return said[0]
        case Replayed(result):
            replayed = types.CallToolResult.model_validate_json(result.body)
            meta = {**(replayed.meta or {}), META_ANSWER: {"replayed": True}}
            return replayed.model_copy(update={"meta": meta})
        case Refused(reason):
            return _refusal(reason)
        case Failed(error=MCPError() as error):
            raise error  # an answer of the protocol, which the tool has chosen
        case Failed(not_done, error):
            code = "not_done" if not_done else Refusal.OUTCOME_UNKNOWN.value
            return _error(code, _failure(said, error))
        case never:
            typing.assert_never(never)


def _was_meant(error: BaseException) -> bool:
    """Whether a tool has raised this for its caller, and not by a mistake."""
    return isinstance(error, ToolError | NothingDone | MCPError) and error.__cause__ is None


def _failure(said: list[Called], error: BaseException | None) -> str:
    """Return what the model is told of a failure: the tool's own words, and of a crash none."""
    if isinstance(error, ToolError | NothingDone) and str(error):
        return str(error)
    if error is None and said and isinstance(said[0], types.CallToolResult):
        if not said[0].is_error:
            return "The result is larger than what is kept under a key."
        return "\n".join(b.text for b in said[0].content if isinstance(b, types.TextContent))
    return "The tool has failed."


async def _look_up(store: KeyStore, owner: str | None, key: str) -> types.CallToolResult:
    if owner is None:
        return _refusal(Refusal.UNAUTHENTICATED)
    if not key_is_valid(key):
        return _refusal(Refusal.KEY_INVALID)
    try:
        standing = await store.look_up(owner, key)
    except StoreUnavailable:
        return _refusal(Refusal.STORE_UNAVAILABLE)
    told = standing.as_json(key)
    text = types.TextContent(type="text", text=json.dumps(told, ensure_ascii=False))
    return types.CallToolResult(content=[text], structured_content=told)


def _refusal(reason: Refusal) -> types.CallToolResult:
    return _error(reason.value, SENTENCES[reason])


def _error(code: str, detail: str) -> types.CallToolResult:
    text = json.dumps({"idempotency": code, "detail": detail}, ensure_ascii=False)
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)


def _is_context(hint: Any) -> bool:
    candidates = (hint, *typing.get_args(hint))
    return any(inspect.isclass(found) and issubclass(found, Context) for found in candidates)
