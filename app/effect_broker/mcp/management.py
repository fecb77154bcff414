"""The broker's own tools for agents: submit, look, ask for a look, list what is unknown.

Each is one call of the SDK and has no behaviour of its own. What a person has to decide (to
resolve, to approve, to cancel) is no tool: a model must not settle what it cannot know.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Final
from uuid import UUID

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from effect_broker import __version__
from effect_broker.mcp.words import Refusal, Told, refusal, told
from effect_broker.sdk import AsyncBroker, BrokerError, NotYet
from effect_broker.sdk.results import outcome_of

# Clients give a tool about a minute; an effect that takes longer goes on, and can be looked at.
WAIT_SECONDS_MAX: Final = 60.0
WAIT_SECONDS: Final = 30.0

INSTRUCTIONS: Final = (
    "Changes of the outside world go through submit_effect. operation_key names the business "
    "intent: use the same one on every retry, and never a random value. A result with "
    "do_not_retry=true means: do not try to make that change again in any way; tell the user."
)


class _Input(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


EffectId = Annotated[
    str,
    Field(
        pattern=r"^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$",
        description="The broker's id of the effect.",
    ),
]
WaitSeconds = Annotated[
    float,
    Field(
        ge=0,
        le=WAIT_SECONDS_MAX,
        allow_inf_nan=False,
        description="How long to wait for an outcome. The effect goes on when the time is over.",
    ),
]


class SubmitInput(_Input):
    operation_key: str = Field(
        description="The stable name of the business intent, such as order:42:charge:v1. The same "
        "on every retry; never random, never made of the arguments."
    )
    tool: str = Field(description="The tool, as a contract of the broker names it.")
    arguments: dict[str, JsonValue] = Field(description="The arguments, as its contract asks.")
    wait_seconds: WaitSeconds = WAIT_SECONDS


class GetInput(_Input):
    effect_id: EffectId
    wait_seconds: WaitSeconds = 0.0


class EffectInput(_Input):
    effect_id: EffectId


class ListInput(_Input):
    tool: str | None = Field(default=None, description="Only effects of this tool.")
    limit: int = Field(default=20, ge=1, le=100)
    cursor: str | None = Field(default=None, description="Of the page before.")


class ReceiptTold(BaseModel):
    """The immutable record of a settled effect."""

    receipt_id: str
    effect_id: str
    state: str
    reason: str
    source: str = Field(description="What the receipt rests on, such as response or probe.")
    external_id: str | None
    attempts: int
    settled_at: datetime
    digest: str = Field(description="SHA-256 of the record.")
    result: Any = Field(description="What the target answered.")
    fields: dict[str, Any]


class UnresolvedTold(BaseModel):
    """An effect that wants attention."""

    effect_id: str
    operation_key: str
    tool: str
    state: str
    reasons: list[str]
    waits_for_person: bool
    do_not_retry: bool = True
    alert: str | None
    created_at: datetime
    age_seconds: float
    key_expires_at: datetime | None
    next_step: str | None
    next_step_at: datetime | None


class UnresolvedPageTold(BaseModel):
    """Effects whose outcome is not settled and that want attention, the most urgent first."""

    effects: list[UnresolvedTold]
    cursor: str | None = Field(description="Asks for the next page; null on the last one.")
    message: str


@dataclass(frozen=True, slots=True)
class _Tool:
    name: str
    title: str
    description: str
    takes: type[_Input]
    gives: type[BaseModel]
    read_only: bool
    run: Callable[[AsyncBroker, Any], Awaitable[BaseModel]]

    def listed(self) -> Tool:
        return Tool(
            name=self.name,
            title=self.title,
            description=self.description,
            input_schema=self.takes.model_json_schema(),
            output_schema=self.gives.model_json_schema(mode="serialization"),
            annotations=ToolAnnotations(
                title=self.title,
                read_only_hint=self.read_only,
                destructive_hint=not self.read_only,
                idempotent_hint=True,
                open_world_hint=not self.read_only,
            ),
        )


async def _submit(broker: AsyncBroker, asked: SubmitInput) -> Told:
    effect = await broker.submit(asked.tool, asked.arguments, operation_key=asked.operation_key)
    return told(await broker.result(effect, deadline=timedelta(seconds=asked.wait_seconds)))


async def _get(broker: AsyncBroker, asked: GetInput) -> Told:
    return told(
        await broker.result(UUID(asked.effect_id), deadline=timedelta(seconds=asked.wait_seconds))
    )


async def _reconcile(broker: AsyncBroker, asked: EffectInput) -> Told:
    effect = await broker.reconcile(UUID(asked.effect_id))
    if effect.final:
        return told(outcome_of(effect, await broker.receipt(effect)))
    return told(outcome_of(effect, None) if effect.waits_for_person else NotYet(effect))


async def _receipt(broker: AsyncBroker, asked: EffectInput) -> ReceiptTold:
    receipt = await broker.receipt(UUID(asked.effect_id))
    return ReceiptTold(
        receipt_id=str(receipt.receipt_id),
        effect_id=str(receipt.effect_id),
        state=receipt.state.value,
        reason=receipt.reason,
        source=receipt.source,
        external_id=receipt.external_id,
        attempts=receipt.attempts,
        settled_at=receipt.settled_at,
        digest=receipt.digest,
        result=receipt.result,
        fields=dict(receipt.fields),
    )


async def _unknown(broker: AsyncBroker, asked: ListInput) -> UnresolvedPageTold:
    page = await broker.unresolved(tool=asked.tool, limit=asked.limit, cursor=asked.cursor)
    effects = [
        UnresolvedTold(
            effect_id=str(row.effect_id),
            operation_key=row.operation_key,
            tool=row.tool,
            state=row.state.value,
            reasons=list(row.reasons),
            waits_for_person=row.waits_for_person,
            alert=row.alert,
            created_at=row.created_at,
            age_seconds=row.age_seconds,
            key_expires_at=row.key_expires_at,
            next_step=row.next_step,
            next_step_at=row.next_step_at,
        )
        for row in page.effects
    ]
    said = (
        "None of these may be tried again, by whatever way: each may have been made. A person "
        "records what is true of those with waits_for_person."
        if effects
        else "Nothing is unresolved."
    )
    return UnresolvedPageTold(effects=effects, cursor=page.cursor, message=said)


TOOLS: Final[tuple[_Tool, ...]] = (
    _Tool(
        "submit_effect",
        "Make a change, once",
        "Make one change of the outside world through the broker, and wait for its outcome. "
        "Calling again with the same operation_key and arguments is always safe: it returns the "
        "stored outcome and never makes the change twice. If the result says do_not_retry, do not "
        "try to make the change again in any way.",
        SubmitInput,
        Told,
        False,
        _submit,
    ),
    _Tool(
        "get_effect",
        "See what became of an effect",
        "Return an effect as it stands, with its outcome in words. Changes nothing.",
        GetInput,
        Told,
        True,
        _get,
    ),
    _Tool(
        "get_receipt",
        "Get the receipt of an effect",
        "Return the receipt of a settled effect: the target's answer and what it rests on. There "
        "is none while the effect is not settled. Changes nothing.",
        EffectInput,
        ReceiptTold,
        True,
        _receipt,
    ),
    _Tool(
        "list_unknown_effects",
        "List effects with an unknown outcome",
        "List the effects whose outcome is not settled and that want attention, the most urgent "
        "first. Changes nothing.",
        ListInput,
        UnresolvedPageTold,
        True,
        _unknown,
    ),
    _Tool(
        "request_reconciliation",
        "Ask the broker to look at the target now",
        "Ask the broker to look now whether an effect was made, instead of at the next moment of "
        "its schedule. It looks and never sends, so it is no way to retry.",
        EffectInput,
        Told,
        False,
        _reconcile,
    ),
)
_BY_NAME: Final = {tool.name: tool for tool in TOOLS}


def management_server(broker: AsyncBroker) -> Server[Any]:
    """Return the server of the broker's own tools."""

    async def list_tools(
        _: ServerRequestContext[Any], params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return ListToolsResult(tools=[tool.listed() for tool in TOOLS])

    async def call_tool(
        _: ServerRequestContext[Any], params: CallToolRequestParams
    ) -> CallToolResult:
        tool = _BY_NAME.get(params.name)
        if tool is None:
            return refused(Refusal(error="unknown_tool", message="There is no such tool."))
        try:
            asked = tool.takes.model_validate(params.arguments or {})
        except ValidationError as problem:
            return refused(_misfit(problem))
        try:
            return given(await tool.run(broker, asked))
        except BrokerError as error:
            return refused(refusal(error))

    return Server(
        "effect-broker",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def given(value: BaseModel) -> CallToolResult:
    """Return a result: its sentence for those who read texts, all of it for those who do not."""
    members = value.model_dump(mode="json")
    text = members.get("message") or value.model_dump_json()
    if isinstance(value, Told):
        text = f"{text}\n(state: {value.state}, effect_id: {value.effect_id})"
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=members)


def refused(value: Refusal) -> CallToolResult:
    """Return the refusal of a call, as an error of the tool."""
    return CallToolResult(
        content=[TextContent(type="text", text=f"{value.error}: {value.message}")],
        structured_content=value.model_dump(mode="json"),
        is_error=True,
    )


def _misfit(problem: ValidationError) -> Refusal:
    # The library's text would quote what was given.
    first = problem.errors(include_input=False, include_url=False)[0]
    place = "/" + "/".join(str(step) for step in first["loc"])
    return Refusal(
        error="invalid_arguments",
        message=f"The arguments do not fit: {first['msg']} at {place}. Nothing was stored or sent.",
        field=place,
    )
