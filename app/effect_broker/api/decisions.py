"""The routes of what persons decide of an effect: conclude, confirm, approve, deny, cancel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, BeforeValidator, Field

from effect_broker.api.bodies import (
    STRICT,
    DecisionId,
    StatementBody,
    read_model,
    read_statement,
)
from effect_broker.api.callers import (
    Caller,
    known_id,
    only_known_parameters,
    services_of,
)
from effect_broker.api.documentation import (
    RESOLVE_EXAMPLE,
    RESPONSES_PROPOSALS,
    RESPONSES_WISH,
    documented,
)
from effect_broker.api.presentation import effect_body, moment
from effect_broker.api.services import Services
from effect_broker.intake import Tenant
from effect_broker.protocol import acknowledgement, wishes
from effect_broker.protocol.acknowledgement import Acknowledged, Acknowledgement
from effect_broker.protocol.ports import Change, Snapshot
from effect_broker.resolving import ProposalRecord, Recorded
from effect_contracts.canonical import parse_strict
from effect_contracts.errors import AnotherAlert, TransitionRefused
from effect_contracts.facts import Alert

router = APIRouter(
    prefix="/v1/effects", tags=["decisions"], dependencies=[Depends(only_known_parameters)]
)


def _alert(value: object) -> object:
    return Alert(value) if isinstance(value, str) else value


class _ConfirmBody(BaseModel):
    """The body of `POST /v1/effects/{id}/confirm`."""

    model_config = STRICT

    decision_id: DecisionId


class _ApprovalBody(BaseModel):
    """The body of `POST /v1/effects/{id}/approve` and `deny`."""

    model_config = STRICT

    decision_id: DecisionId
    request_hash: str = Field(pattern=r"^[0-9a-f]{64}$")
    reason: str = Field(min_length=1, max_length=2000)


_CONFIRM: Final = documented(
    _ConfirmBody,
    {"decision_id": "incident-4711"},
    {200: "The effect as it stands now; `replayed` if the decision stood already"},
    problems={
        404: "No such proposal for this effect",
        409: "The effect has changed since, or does not permit it",
    },
)
_APPROVAL_EXAMPLE: Final = {
    "decision_id": "approval-4711",
    "request_hash": "5d" * 32,
    "reason": "The amount is that of the order.",
}
_APPROVAL_PROBLEMS: Final = {
    404: "No such effect of this tenant",
    409: "It waits for no approval, or stands for another request",
}
_APPROVE: Final = documented(
    _ApprovalBody,
    _APPROVAL_EXAMPLE,
    {200: "The effect as it stands now; `replayed` if the decision stood already"},
    problems=_APPROVAL_PROBLEMS,
)


_RESOLVE: Final = documented(
    StatementBody,
    RESOLVE_EXAMPLE,
    {
        200: "The effect as it stands now; `replayed` if the decision stood already",
        202: "The contract asks for a second person; the statement waits for them",
    },
    problems={
        404: "No such effect of this tenant",
        409: "The effect has changed, or does not permit this, or it is too early",
        422: "The statement is incomplete; nothing was stored",
        503: "The database cannot be reached; send the same decision again",
    },
)


@router.post("/{effect_id}/resolve", **_RESOLVE)
async def resolve(request: Request, tenant: Caller, effect_id: str) -> Response:
    """Record what a person knows of an effect whose outcome the broker cannot settle.

    It is no second way to send: what follows from it, the pinned contract says. The same decision
    id with the same statement again changes nothing. Where the contract asks for a second person,
    202 says that the statement waits to be confirmed. Needs a key with the scope `operate`."""
    known = known_id(effect_id)
    services = services_of(request)
    statement = await read_statement(request)
    recorded = await services.resolving.resolve(
        tenant.tenant_id, known, statement, tenant.credential
    )
    return await _stands(services, tenant, known, recorded)


@router.post("/{effect_id}/confirm", **_CONFIRM)
async def confirm(request: Request, tenant: Caller, effect_id: str) -> Response:
    """Make stand what another person has concluded, where the contract asks for two.

    Needs a key with the scope `operate`, and not the one that proposed it."""
    known = known_id(effect_id)
    services = services_of(request)
    body = await read_model(request, _ConfirmBody)
    recorded = await services.resolving.confirm(
        tenant.tenant_id, known, body.decision_id, tenant.credential
    )
    return await _stands(services, tenant, known, recorded)


@router.get("/{effect_id}/proposals", responses=RESPONSES_PROPOSALS)
async def list_proposals(request: Request, tenant: Caller, effect_id: str) -> Response:
    """Return what was concluded of an effect and waits for a second person, the oldest first."""
    known = known_id(effect_id)
    services = services_of(request)
    await services.reads.effect(tenant.tenant_id, known)
    records = await services.resolving.store.proposals(tenant.tenant_id, known)
    return JSONResponse({"proposals": [proposal_body(record) for record in records]})


@router.post("/{effect_id}/approve", **_APPROVE)
async def approve(request: Request, tenant: Caller, effect_id: str) -> Response:
    """Let the first attempt of an effect begin, where its contract asks for an approval.

    It is for the request that the hash names, for one first attempt, and for as long as the
    contract says. Needs a key with the scope `operate`, and not the one that submitted it."""
    return await _judged(request, tenant, effect_id, approved=True)


@router.post("/{effect_id}/deny", **_APPROVE)
async def deny(request: Request, tenant: Caller, effect_id: str) -> Response:
    """Withdraw an effect that waits for an approval, for good.

    Needs a key with the scope `operate`."""
    return await _judged(request, tenant, effect_id, approved=False)


class _AcknowledgeBody(BaseModel):
    """The body of `POST /v1/effects/{id}/acknowledge`."""

    model_config = STRICT

    alert: Annotated[Alert, BeforeValidator(_alert)]
    reason: str = Field(min_length=1, max_length=2000)


_ACKNOWLEDGE: Final = documented(
    _AcknowledgeBody,
    {"alert": "duplicate_detected", "reason": "One of the two charges was refunded: re_000001."},
    {200: "The effect as it stands now; `changed` is false where it has no alert"},
    problems={
        404: "No such effect of this tenant",
        409: "The effect has another alert by now",
    },
)


@router.post("/{effect_id}/acknowledge", **_ACKNOWLEDGE)
async def acknowledge(request: Request, tenant: Caller, effect_id: str) -> Response:
    """Say that the alert of a final effect was dealt with, and how; it no longer waits for anybody.

    Needs a key with the scope `operate`."""
    known = known_id(effect_id)
    services = services_of(request)
    body = await read_model(request, _AcknowledgeBody)
    said = Acknowledgement(body.alert, body.reason, f"operator:{tenant.credential}")
    plan = partial(acknowledgement.acknowledge, said=said)
    became = await services.resolving.store.change(tenant.tenant_id, known, plan)
    if became is Acknowledged.ANOTHER_ALERT:
        raise AnotherAlert
    detail = await services.reads.effect(tenant.tenant_id, known)
    changed = {"changed": became is Acknowledged.NEW}
    return JSONResponse(effect_body(detail, attempts=True) | changed)


def proposal_body(record: ProposalRecord) -> dict[str, Any]:
    """Return a proposal, for the API and the command line."""
    said = parse_strict(record.content)
    assert isinstance(said, dict)
    return {
        **said,
        "decision_id": record.decision_id,
        "proposed_by": record.actor,
        "proposed_at": moment(record.recorded_at),
    }


async def _judged(request: Request, tenant: Tenant, effect_id: str, *, approved: bool) -> Response:
    known = known_id(effect_id)
    services = services_of(request)
    body = await read_model(request, _ApprovalBody)
    created = await services.approving.decide(
        tenant.tenant_id,
        known,
        approved=approved,
        decision_id=body.decision_id,
        request_hash=bytes.fromhex(body.request_hash),
        reason=body.reason,
        credential=tenant.credential,
    )
    recorded = Recorded.NEW if created else Recorded.STOOD
    return await _stands(services, tenant, known, recorded)


async def _stands(
    services: Services, tenant: Tenant, effect_id: UUID, recorded: Recorded
) -> Response:
    detail = await services.reads.effect(tenant.tenant_id, effect_id)
    answer = effect_body(detail, attempts=True) | {"replayed": recorded is Recorded.STOOD}
    if recorded is not Recorded.PROPOSED:
        return JSONResponse(answer)
    return JSONResponse(answer | {"awaits_second_person": True}, 202)


@router.post("/{effect_id}/reconcile", responses=RESPONSES_WISH)
async def reconcile(request: Request, tenant: Caller, effect_id: str) -> Response:
    """Ask the broker to look now instead of by its schedule. It never forces an unsafe send:
    `changed` is false where only a person or new evidence can tell more."""
    granted = await _wish(request, tenant, effect_id, wishes.reconcile)
    assert granted is not None, "to look is always permitted"
    return await _wished(request, tenant, effect_id, granted)


@router.post("/{effect_id}/cancel", responses=RESPONSES_WISH)
async def cancel(request: Request, tenant: Caller, effect_id: str) -> Response:
    """Withdraw an effect before its first attempt; 409 once it may have been sent."""
    granted = await _wish(request, tenant, effect_id, wishes.cancel)
    if granted is None:
        detail = await services_of(request).reads.effect(tenant.tenant_id, known_id(effect_id))
        raise TransitionRefused(state=detail.intent.state)
    return await _wished(request, tenant, effect_id, granted)


async def _wish(
    request: Request,
    tenant: Tenant,
    effect_id: str,
    plan: Callable[..., Change[wishes.Granted]] | Callable[..., Change[wishes.Granted | None]],
) -> wishes.Granted | None:
    """Make a wish; it may be repeated after any error."""
    services = services_of(request)

    def planned(snapshot: Snapshot) -> Change[wishes.Granted | None]:
        actor = f"caller:{tenant.credential}"
        change = plan(snapshot, receipt_id=services.resolving.new_id(), actor=actor)
        return Change(change.result, change.writes)

    store = services.resolving.store
    return await store.change(tenant.tenant_id, known_id(effect_id), planned)


async def _wished(
    request: Request, tenant: Tenant, effect_id: str, granted: wishes.Granted
) -> Response:
    detail = await services_of(request).reads.effect(tenant.tenant_id, known_id(effect_id))
    return JSONResponse(effect_body(detail, attempts=True) | {"changed": granted.changed})
