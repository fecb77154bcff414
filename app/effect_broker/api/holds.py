"""The routes of holds: a tenant's operator stops dispatches and lets them go on."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field, model_validator

from effect_broker.api.bodies import STRICT, read_model
from effect_broker.api.callers import Caller, known_id, only_known_parameters, services_of
from effect_broker.api.documentation import RESPONSES_HOLDS, documented
from effect_broker.clock import new_id
from effect_broker.holding import (
    REASON_CHARS_MAX,
    HoldMissing,
    HoldRecord,
    HoldScope,
    SubjectUnknown,
)
from effect_contracts.errors import NotFound, UnknownTool

_LIMIT_MAX: Final = 200

router = APIRouter(
    prefix="/v1/holds", tags=["holds"], dependencies=[Depends(only_known_parameters)]
)


class _ContractBody(BaseModel):
    model_config = STRICT

    name: str = Field(min_length=1, max_length=255)
    version: str = Field(min_length=1, max_length=255)


class _HoldBody(BaseModel):
    """The body of `POST /v1/holds`: a tool, a contract version, or all effects of the tenant."""

    model_config = STRICT

    tool: str | None = Field(default=None, min_length=1, max_length=255)
    contract: _ContractBody | None = None
    reason: str = Field(min_length=1, max_length=REASON_CHARS_MAX)

    @model_validator(mode="after")
    def _has_one_subject(self) -> _HoldBody:
        if self.tool is not None and self.contract is not None:
            raise ValueError("a hold is about a tool or about a contract version")
        return self


class _LiftBody(BaseModel):
    """The body of `POST /v1/holds/{id}/lift`."""

    model_config = STRICT

    reason: str = Field(min_length=1, max_length=REASON_CHARS_MAX)


_PLACE: Final = documented(
    _HoldBody,
    {"tool": "demo.charge", "reason": "The provider reports double postings."},
    {201: "The hold is in force", 200: "A hold of this scope stood already"},
    problems={404: "No contract of this name and version"},
)
_LIFT: Final = documented(
    _LiftBody,
    {"reason": "The provider has confirmed the fix."},
    {200: "The hold is lifted"},
    problems={404: "No such hold of this tenant"},
)


@router.post("", **_PLACE)
async def place_hold(request: Request, tenant: Caller) -> Response:
    """Stop the dispatches of a tool, of a contract version, or of all effects of the tenant.

    Submits are accepted and wait; probes and settlements go on. 201 for a new hold, 200 for one
    that stood already. `effective` is false where a stopped process may still grant an attempt;
    ask again after some seconds. Needs a key with the scope `operate`."""
    body = await read_model(request, _HoldBody)
    contract = None if body.contract is None else (body.contract.name, body.contract.version)
    scope = HoldScope(tenant.tenant_id, body.tool, contract)
    try:
        placed = (
            await services_of(request)
            .holds(tenant.tenant_id)
            .place(new_id(), scope, body.reason, f"operator:{tenant.credential}")
        )
    except SubjectUnknown:
        raise UnknownTool if contract is None else NotFound from None
    answer = hold_body(placed.hold) | {
        "replayed": not placed.created,
        "effective": placed.effective,
    }
    return JSONResponse(answer, 201 if placed.created else 200)


@router.get("", responses=RESPONSES_HOLDS)
async def list_holds(
    request: Request,
    tenant: Caller,
    lifted: Annotated[bool, Query(description="Those of the past too.")] = False,
    limit: Annotated[int, Query(ge=1, le=_LIMIT_MAX)] = _LIMIT_MAX,
) -> Response:
    """Return what stops this tenant's dispatches, the newest first."""
    records = await services_of(request).holds(tenant.tenant_id).listing(lifted=lifted, limit=limit)
    return JSONResponse({"holds": [hold_body(record) for record in records]})


@router.post("/{hold_id}/lift", **_LIFT)
async def lift_hold(request: Request, tenant: Caller, hold_id: str) -> Response:
    """Let go on what a hold of this tenant stops. `changed` is false where it was lifted before.

    Needs a key with the scope `operate`."""
    body = await read_model(request, _LiftBody)
    try:
        record, changed = (
            await services_of(request)
            .holds(tenant.tenant_id)
            .lift(known_id(hold_id), body.reason, f"operator:{tenant.credential}")
        )
    except HoldMissing:
        raise NotFound from None
    return JSONResponse(hold_body(record) | {"changed": changed})


def hold_body(record: HoldRecord) -> dict[str, Any]:
    """Return the members of a hold, for the API and the command line."""
    contract = record.scope.contract
    return {
        "hold_id": str(record.hold_id),
        "kind": record.kind.value,
        "every_tenant": record.scope.tenant_id is None,
        "tenant": record.tenant,
        "tool": record.scope.tool,
        "contract": None if contract is None else {"name": contract[0], "version": contract[1]},
        "reason": record.reason,
        "placed_by": record.placed_by,
        "placed_at": record.placed_at.isoformat(),
        "lifted_by": record.lifted_by,
        "lifted_at": None if record.lifted_at is None else record.lifted_at.isoformat(),
        "lift_reason": record.lift_reason,
    }
