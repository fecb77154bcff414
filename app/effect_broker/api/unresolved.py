"""The route of the unresolved listing: what waits in one tenant, the most urgent first."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response

from effect_broker.api.callers import TEXT_PATTERN, Caller, only_known_parameters, services_of
from effect_broker.api.documentation import RESPONSES_UNRESOLVED
from effect_broker.api.presentation import moment
from effect_broker.protocol.resolution import Permitted
from effect_broker.reading import PAGE_LIMIT_DEFAULT, PAGE_LIMIT_MAX, CursorInvalid
from effect_broker.unresolved import (
    REASONS,
    LastEvidence,
    NextStep,
    UnresolvedEffect,
    UnresolvedFilter,
    UnresolvedPage,
)
from effect_contracts.errors import RequestMalformed
from effect_contracts.facts import EffectState

# A hundred years: larger ages select the same, and the database's intervals end somewhere.
_AGE_SECONDS_MAX: Final = 100 * 366 * 86400

router = APIRouter(
    prefix="/v1/unresolved", tags=["effects"], dependencies=[Depends(only_known_parameters)]
)


@router.get("", responses=RESPONSES_UNRESOLVED)
async def list_unresolved(
    request: Request,
    tenant: Caller,
    status: Annotated[list[EffectState] | None, Query(description="Any of these states.")] = None,
    reason: Annotated[
        str | None, Query(description=f"One of {', '.join(sorted(REASONS))}.")
    ] = None,
    tool: Annotated[str | None, Query(max_length=255, pattern=TEXT_PATTERN)] = None,
    operation_prefix: Annotated[str | None, Query(max_length=255, pattern="^[!-~]*$")] = None,
    older_than_seconds: Annotated[
        float | None, Query(ge=0, le=_AGE_SECONDS_MAX, allow_inf_nan=False)
    ] = None,
    cursor: Annotated[str | None, Query(max_length=255)] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_LIMIT_MAX)] = PAGE_LIMIT_DEFAULT,
) -> Response:
    """Return what is not final and not simply on its way, and final effects with an alert: the one
    whose key expires first comes first, then the oldest. `cursor` of one answer is the `cursor` of
    the next request, null on the last page."""
    if reason is not None and reason not in REASONS:
        raise RequestMalformed(parameter="reason")
    filters = UnresolvedFilter(
        states=frozenset(status or ()),
        reason=reason,
        tool=tool,
        operation_prefix=operation_prefix,
        older_than_seconds=older_than_seconds,
    )
    reads = services_of(request).unresolved
    try:
        page = await reads.unresolved(tenant.tenant_id, filters, cursor, limit)
    except CursorInvalid:
        raise RequestMalformed(parameter="cursor") from None
    return JSONResponse(page_body(page))


def page_body(page: UnresolvedPage) -> dict[str, Any]:
    """Return a page, for the API and the command line."""
    return {"unresolved": [row_body(row) for row in page.effects], "cursor": page.cursor}


def row_body(row: UnresolvedEffect) -> dict[str, Any]:
    """Return one unresolved effect."""
    intent = row.intent
    path = f"/v1/effects/{intent.effect_id}"
    left = row.key_expires_in_seconds
    return {
        "effect_id": str(intent.effect_id),
        "operation_key": intent.operation_key,
        "tenant": row.tenant,
        "tool": intent.tool,
        "contract": {"name": intent.contract_name, "version": intent.contract_version},
        "safety": intent.safety.value,
        "state": intent.state.value,
        "reason": row.reasons[0],
        "reasons": list(row.reasons),
        "waits_for_person": row.parked,
        "alert": row.alert.value if row.alert else None,
        "created_at": moment(intent.created_at),
        "age_seconds": round(row.age_seconds, 3),
        "key_expires_at": moment(row.key_expires_at),
        "key_expires_in_minutes": None if left is None else round(left / 60, 1),
        "last_evidence": _evidence_body(row.last_evidence),
        "next_action": _step_body(row.next_step),
        "permitted_resolutions": [_permitted_body(one, row) for one in row.permitted],
        "version": intent.version,
        "now": moment(row.now),
        "links": {"self": path, "resolve": f"{path}/resolve"},
    }


def _evidence_body(evidence: LastEvidence | None) -> dict[str, Any] | None:
    if evidence is None:
        return None
    return {
        "source": evidence.source,
        "says": evidence.says,
        "code": evidence.code,
        "at": moment(evidence.at),
    }


def _step_body(step: NextStep | None) -> dict[str, Any] | None:
    return None if step is None else {"step": step.step.value, "at": moment(step.at)}


def _permitted_body(permitted: Permitted, row: UnresolvedEffect) -> dict[str, Any]:
    after = permitted.observed_after
    return {
        "conclusion": permitted.conclusion.value,
        "observed_after": moment(after),
        "possible_now": after is None or after < row.now,
    }
