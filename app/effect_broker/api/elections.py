"""The routes of effects that their callers perform: elect, extend the lease, tell the outcome.

The holder of an election is known by a token of its own making, 256 random bits that stand in no
answer, no history and no log. Repeating any of these requests is safe.
"""

from __future__ import annotations

from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, BeforeValidator, Field, model_validator

from effect_broker.api.bodies import STRICT, read_json, validated
from effect_broker.api.callers import (
    Caller,
    known_id,
    only_known_parameters,
    services_of,
)
from effect_broker.api.documentation import documented
from effect_broker.api.presentation import committed_body, effect_body
from effect_broker.api.services import Services
from effect_broker.intake import EffectRequest, Tenant, require_object
from effect_broker.performing import OUTCOMES, Elector, Statement
from effect_contracts.canonical import JsonValue
from effect_contracts.errors import InvalidPayload, PayloadReason
from effect_contracts.facts import Outcome
from effect_contracts.keys import check_operation_key

router = APIRouter(
    prefix="/v1/effects", tags=["elections"], dependencies=[Depends(only_known_parameters)]
)

# At least 256 bits in base64url: what nobody guesses.
Token = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{43,128}$", repr=False)]
# Ordinals are counted by the database's integers.
Ordinal = Annotated[int, Path(ge=1, le=2**31 - 1)]


def _outcome(value: object) -> object:
    if not isinstance(value, str):
        return value
    outcome = Outcome(value)
    if outcome not in OUTCOMES:
        raise ValueError("a caller does not say this of its own call")
    return outcome


class _ElectBody(BaseModel):
    """The body of `POST /v1/effects/elect`."""

    model_config = STRICT

    operation_key: str
    tool: str = Field(min_length=1, max_length=255)
    # Checked by the parser already.
    arguments: dict[str, Any] = Field(repr=False)
    election: Token
    trace_id: str | None = Field(default=None, max_length=255)


class _ExtendBody(BaseModel):
    """The body of `POST /v1/effects/{id}/attempts/{ordinal}/extend`."""

    model_config = STRICT

    election: Token


class _OutcomeBody(BaseModel):
    """The body of `POST /v1/effects/{id}/attempts/{ordinal}/confirm`."""

    model_config = STRICT

    election: Token
    outcome: Annotated[Outcome, BeforeValidator(_outcome)]
    code: str = Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")
    external_id: str | None = Field(default=None, pattern=r"^[!-~]{1,255}$")
    result: Any = Field(default=None, repr=False)
    fields: dict[str, Any] = Field(default_factory=dict, repr=False)
    retry_after_seconds: float | None = Field(default=None, ge=0, le=1e9, allow_inf_nan=False)

    @model_validator(mode="after")
    def _only_a_commit_has_a_result(self) -> _OutcomeBody:
        told = (self.external_id, self.result, self.fields)
        if self.outcome is not Outcome.COMMITTED and told != (None, None, {}):
            raise ValueError("only what was committed has an id and a result")
        if self.retry_after_seconds is not None and self.outcome is not Outcome.RETRYABLE:
            raise ValueError("only what may be tried again has a time for it")
        return self


_TOKEN_EXAMPLE: Final = "q2Zb0mJvYb3wV1fXH8c9n5sTt7uR4eLk6pQdAaWyGzM"
_ELECT: Final = documented(
    _ElectBody,
    {
        "operation_key": "order:42:charge:v1",
        "tool": "shop.charge",
        "arguments": {"order": "42", "amount": 1200, "currency": "eur"},
        "election": _TOKEN_EXAMPLE,
    },
    {200: "`elected`, with the lease and the downstream key; or where the effect stands"},
    problems={
        409: "The key is bound to another request (`field` is the first difference)",
        422: "The request breaks a rule, or the contract does not let its caller perform it",
    },
)
_EXTEND: Final = documented(
    _ExtendBody,
    {"election": _TOKEN_EXAMPLE},
    {200: "`held`, and for how long from now on"},
    problems={404: "No such effect of this tenant"},
)
_CONFIRM: Final = documented(
    _OutcomeBody,
    {
        "election": _TOKEN_EXAMPLE,
        "outcome": "committed",
        "code": "ok",
        "external_id": "ch_4711",
        "result": {"charged": True},
    },
    {200: "The effect as it stands now; `replayed` if the same was told before"},
    problems={
        404: "No such effect of this tenant",
        409: "`election_lost`: it came too late and was recorded as a fact; `illegal_transition`: "
        "no such attempt is this caller's, or another outcome stands",
    },
)


@router.post("/elect", **_ELECT)
async def elect(request: Request, tenant: Caller) -> Response:
    """Make an intent durable and elect its caller to perform it, in one commit.

    `elected` is true for one caller at a time, until its lease ends. All others are told where the
    effect stands: its receipt, or when to ask again. An election alone proves nothing."""
    return JSONResponse(await elected(services_of(request), tenant, await read_json(request)))


@router.post("/{effect_id}/attempts/{ordinal}/extend", **_EXTEND)
async def extend(request: Request, tenant: Caller, effect_id: str, ordinal: Ordinal) -> Response:
    """Let the lease of an election last longer, as far as the contract permits.

    `held` is false once the election is over, whoever has ended it."""
    known = known_id(effect_id)
    value = await read_json(request)
    return JSONResponse(await extended(services_of(request), tenant, known, ordinal, value))


@router.post("/{effect_id}/attempts/{ordinal}/confirm", **_CONFIRM)
async def tell(request: Request, tenant: Caller, effect_id: str, ordinal: Ordinal) -> Response:
    """Record what the caller's own call showed; `committed` settles the effect with a receipt.

    `not_sent`, `rejected` and `retryable` are for what is proved not to have happened; everything
    that nobody knows is `ambiguous`."""
    known = known_id(effect_id)
    value = await read_json(request)
    return JSONResponse(await told(services_of(request), tenant, known, ordinal, value))


# The same without a request, for who has the application in its own process ---------------------


async def elected(services: Services, tenant: Tenant, value: JsonValue) -> dict[str, Any]:
    """Elect as the body says; return the answer's body.

    Raises:
        EffectError, StoreError.
    """
    members = _object(value)
    check_operation_key(members.get("operation_key"))
    if "arguments" in members:
        require_object(members["arguments"])
    body = validated(_ElectBody, members, depth=1)
    wanted = EffectRequest(
        operation_key=body.operation_key,
        tool=body.tool,
        arguments=body.arguments,
        trace_id=body.trace_id,
    )
    elector = await services.performing.elect(tenant, wanted, body.election)
    if elector.election.elected:
        return elected_body(elector)
    detail = await services.reads.effect(tenant.tenant_id, elector.intent.effect_id)
    return {"elected": False, "effect": effect_body(detail, attempts=False)}


async def extended(
    services: Services, tenant: Tenant, effect_id: UUID, ordinal: int, value: JsonValue
) -> dict[str, Any]:
    """Extend the lease as the body says; return the answer's body.

    Raises:
        EffectError, StoreError.
    """
    body = validated(_ExtendBody, _object(value))
    extension = await services.performing.extend(tenant, effect_id, ordinal, body.election)
    return {"held": extension.held, "lease_seconds": extension.lease_seconds}


async def told(
    services: Services, tenant: Tenant, effect_id: UUID, ordinal: int, value: JsonValue
) -> dict[str, Any]:
    """Record what the body tells; return the answer's body.

    Raises:
        EffectError, StoreError.
    """
    body = validated(_OutcomeBody, _object(value))
    said = Statement(
        outcome=body.outcome,
        code=body.code,
        external_id=body.external_id,
        result=body.result,
        fields=body.fields,
        retry_after_seconds=body.retry_after_seconds,
    )
    recorded = await services.performing.tell(tenant, effect_id, ordinal, body.election, said)
    return {
        "effect_id": str(effect_id),
        "state": recorded.view.state.value,
        "reason": recorded.view.reason,
        "version": recorded.view.version,
        "replayed": recorded.repeated,
    }


def _object(value: JsonValue) -> dict[str, JsonValue]:
    if not isinstance(value, dict):
        raise InvalidPayload(PayloadReason.NOT_AN_OBJECT, field="")
    return value


def elected_body(elector: Elector) -> dict[str, Any]:
    """Return what the elected gets to know, and nobody else."""
    intent, election = elector.intent, elector.election
    effect = committed_body(intent) | {
        "state": election.view.state.value,
        "reason": election.view.reason,
        "version": election.view.version,
        "waits_for_person": False,
    }
    return {
        "elected": True,
        "effect": effect,
        "ordinal": election.ordinal,
        "lease_seconds": election.lease_seconds,
        "lease_extends": elector.lease_extends,
        "downstream_key": intent.downstream_key,
    }
