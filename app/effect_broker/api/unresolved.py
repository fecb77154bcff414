"""The route of the unresolved listing: what waits in one tenant, the most urgent first."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response

from effect_broker.api.callers import TEXT_PATTERN, Caller, only_known_parameters, services_of
from effect_broker.api.documentation import RESPONSES_UNRESOLVED
from effect_broker.api.presentation import unresolved_page_body
from effect_broker.reading import PAGE_LIMIT_DEFAULT, PAGE_LIMIT_MAX, CursorInvalid
from effect_broker.unresolved import (
    REASONS,
    UnresolvedFilter,
)
from effect_contracts.errors import ParameterReason, RequestMalformed
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
        known = ", ".join(sorted(REASONS))
        raise RequestMalformed(ParameterReason.CHOICE, parameter="reason", choices=known)
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
    return JSONResponse(unresolved_page_body(page))
