"""The routes of decisions on many effects."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, BeforeValidator, Field

from effect_broker.api.bodies import STRICT, Concluded, EvidenceBody, id_value, read_model
from effect_broker.api.callers import Caller, only_known_parameters, services_of
from effect_broker.api.documentation import RESPONSES_BATCH, RESPONSES_BATCHES, documented
from effect_broker.api.presentation import moment, unresolved_body
from effect_broker.batches import (
    EFFECTS_MAX,
    NAMED_MAX,
    BatchEffect,
    Batching,
    BatchRecord,
    BatchStatement,
    Group,
    NamedEffect,
)
from effect_broker.resolving import EVIDENCE_ITEMS_MAX, EvidenceItem
from effect_broker.unresolved import REASONS, UnresolvedEffect
from effect_contracts.canonical import parse_strict
from effect_contracts.errors import InvalidRequest, NotFound, RequestReason

_LISTED_MAX: Final = 50
_DECISION_ID: Final = r"^[!-~]{1,200}$"

router = APIRouter(
    prefix="/v1/decisions", tags=["decisions"], dependencies=[Depends(only_known_parameters)]
)


_Line = Annotated[str, Field(min_length=1, max_length=500)]
_Text = Annotated[str, Field(min_length=1, max_length=255)]


class _GroupBody(BaseModel):
    """What the effects have in common."""

    model_config = STRICT

    tool: _Text | None = None
    reason: Annotated[str, Field(max_length=64)] | None = None
    trace_id: _Text | None = None
    operation_prefix: Annotated[str, Field(pattern=r"^[!-~]{1,255}$")] | None = None


class _NamedBody(BaseModel):
    """One effect, with the version that was looked at."""

    model_config = STRICT

    effect_id: Annotated[UUID, BeforeValidator(id_value)]
    expected_version: int = Field(ge=1, le=2**31 - 1)
    external_id: _Text | None = None


class BatchBody(BaseModel):
    """The body of `POST /v1/decisions`."""

    model_config = STRICT

    decision_id: Annotated[str, Field(pattern=_DECISION_ID)]
    group: _GroupBody
    conclusion: Concluded
    reason: str = Field(min_length=1, max_length=2000, repr=False)
    causes: list[_Line] = Field(min_length=1, max_length=NAMED_MAX)
    remedies: list[_Line] = Field(default=[], max_length=NAMED_MAX)
    evidence: list[EvidenceBody] = Field(min_length=1, max_length=EVIDENCE_ITEMS_MAX)
    effects: list[_NamedBody] = Field(min_length=1, max_length=EFFECTS_MAX)

    def statement(self) -> BatchStatement:
        """Return the statement.

        Raises:
            InvalidRequest: the reason is none that an effect can have.
        """
        if self.group.reason is not None and self.group.reason not in REASONS:
            raise InvalidRequest(RequestReason.FORMAT, field="/group/reason")
        return BatchStatement(
            decision_id=self.decision_id,
            group=Group(**self.group.model_dump()),
            conclusion=self.conclusion,
            reason=self.reason,
            causes=tuple(self.causes),
            remedies=tuple(self.remedies),
            evidence=tuple(EvidenceItem(**item.model_dump()) for item in self.evidence),
            effects=tuple(NamedEffect(**named.model_dump()) for named in self.effects),
        )


_EXAMPLE: Final = {
    "decision_id": "incident-4711",
    "group": {"tool": "demo.charge", "reason": "outcome_unknown"},
    "conclusion": "committed",
    "reason": "All of them stand in the provider's export of that hour.",
    "causes": ["The provider's gateway answered 504 and charged."],
    "remedies": ["The provider has raised the gateway's time-out."],
    "evidence": [
        {
            "kind": "export",
            "observed_at": "2026-11-29T12:05:00Z",
            "digest": "sha256:" + "5d" * 32,
        }
    ],
    "effects": [
        {"effect_id": "0c0e3a1f-7a64-8e0c-9b3f-2d5a4d1c8e77", "expected_version": 3,
         "external_id": "ch_000001"}
    ],
}  # fmt: skip
_DECIDE: Final = documented(
    BatchBody,
    _EXAMPLE,
    {200: "The decision, with what became of each effect"},
    problems={409: "The decision id stands for another statement"},
)


@router.post("", **_DECIDE)
async def decide(request: Request, tenant: Caller) -> Response:
    """Conclude the same of many effects: each is resolved by itself, under the rules of `resolve`.

    Those that have changed meanwhile, or are not of the group, are left out and named. The same
    decision again, after an outage, goes on where it stopped. Needs a key with the scope
    `operate`."""
    statement = (await read_model(request, BatchBody)).statement()
    batching = services_of(request).batching
    record = await batching.decide(tenant.tenant_id, statement, tenant.credential)
    return JSONResponse(await _whole(batching, tenant.tenant_id, record))


@router.get("", responses=RESPONSES_BATCHES)
async def list_decisions(
    request: Request,
    tenant: Caller,
    limit: Annotated[int, Query(ge=1, le=_LISTED_MAX)] = _LISTED_MAX,
) -> Response:
    """Return the newest decisions, each with whether something unresolved is in its group."""
    batching = services_of(request).batching
    decisions = []
    for record in await batching.store.batches(tenant.tenant_id, limit):
        waiting = await unresolved_of(batching, tenant.tenant_id, record, limit=1)
        decisions.append(batch_body(record) | {"open": bool(waiting)})
    return JSONResponse({"decisions": decisions})


@router.get("/{decision_id:path}", responses=RESPONSES_BATCH)
async def get_decision(request: Request, tenant: Caller, decision_id: str) -> Response:
    """Return a decision with what became of each effect, and what is unresolved in its group."""
    batching = services_of(request).batching
    record = None
    if re.fullmatch(_DECISION_ID, decision_id):
        record = await batching.store.batch(tenant.tenant_id, decision_id)
    if record is None:
        raise NotFound
    return JSONResponse(await _whole(batching, tenant.tenant_id, record))


async def _whole(batching: Batching, tenant_id: UUID, record: BatchRecord) -> dict[str, Any]:
    effects = await batching.store.batch_effects(tenant_id, record.decision_id)
    waiting = await unresolved_of(batching, tenant_id, record, limit=EFFECTS_MAX)
    return whole_body(record, effects, waiting)


async def unresolved_of(
    batching: Batching, tenant_id: UUID, record: BatchRecord, *, limit: int
) -> tuple[UnresolvedEffect, ...]:
    """Return what is unresolved in the group of a decision, the most urgent first."""
    said = parse_strict(record.content)
    assert isinstance(said, dict)
    group: Any = said["group"]
    page = await batching.store.unresolved(tenant_id, Group(**group).filter(), None, limit)
    return page.effects


def batch_body(record: BatchRecord) -> dict[str, Any]:
    """Return the statement of a decision."""
    said = parse_strict(record.content)
    assert isinstance(said, dict)
    said = {name: value for name, value in said.items() if name != "effects"}
    return {
        "decision_id": record.decision_id,
        "decided_by": record.actor,
        "decided_at": moment(record.recorded_at),
        **said,
    }


def whole_body(
    record: BatchRecord,
    effects: tuple[BatchEffect, ...],
    waiting: tuple[UnresolvedEffect, ...],
) -> dict[str, Any]:
    """Return a decision with its effects; `reopened_by` is what the decision does not name."""
    named = {effect.effect_id for effect in effects}
    new = [unresolved_body(row) for row in waiting if row.intent.effect_id not in named]
    told = [
        {"effect_id": str(e.effect_id), "outcome": e.outcome.value, "code": e.code} for e in effects
    ]
    return batch_body(record) | {"open": bool(waiting), "effects": told, "reopened_by": new}
