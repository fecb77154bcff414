"""The routes of evidence: providers deliver what they know, operators see what became of it."""

from __future__ import annotations

from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response

from effect_broker.api.bodies import read_raw
from effect_broker.api.callers import Caller, only_known_parameters, services_of
from effect_broker.api.documentation import RESPONSES_DELIVERIES, RESPONSES_DELIVERY
from effect_broker.evidence_inbox import DeliveryFilter, line_body
from effect_broker.protocol.webhook import DeliveryStatus
from effect_broker.reading import PAGE_LIMIT_DEFAULT, PAGE_LIMIT_MAX, CursorInvalid
from effect_contracts.errors import RequestMalformed

_CONTRACT_PATTERN: Final = r"^[a-z][a-z0-9-]{0,62}$"
_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"type": "object"},
                "example": {"id": "evt_1", "type": "charge.succeeded", "data": {}},
            }
        },
    }
}

router = APIRouter(prefix="/v1/evidence", tags=["evidence"])


@router.post("/{tenant}/{contract}", responses=RESPONSES_DELIVERY, openapi_extra=_BODY)
async def receive(request: Request, tenant: str, contract: str) -> Response:
    """Take in a signed webhook delivery of the target of a contract.

    There is no API key: the contract's `webhook` section says how a delivery is signed. 200 means
    that it is stored and will not be lost; the same delivery again is 200 too, and changes nothing.
    Whatever is not believed is 404, whether tenant and contract exist or not."""
    body = await read_raw(request)
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in
               request.headers.raw]  # fmt: skip
    received = await services_of(request).inbox.receive(tenant, contract, headers, body)
    return JSONResponse({"status": received.status.value, "duplicate": received.duplicate})


@router.get("", responses=RESPONSES_DELIVERIES, dependencies=[Depends(only_known_parameters)])
async def list_deliveries(
    request: Request,
    tenant: Caller,
    status: Annotated[list[DeliveryStatus] | None, Query(description="Any of these.")] = None,
    contract: Annotated[str | None, Query(pattern=_CONTRACT_PATTERN)] = None,
    effect_id: Annotated[UUID | None, Query(description="Matched with this effect.")] = None,
    cursor: Annotated[str | None, Query(max_length=255)] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_LIMIT_MAX)] = PAGE_LIMIT_DEFAULT,
) -> Response:
    """Return the deliveries to the tenant's webhooks, newest first, a page at a time.

    Needs a key with the scope `operate`."""
    filters = DeliveryFilter(frozenset(status or ()), contract, effect_id)
    reads = services_of(request).deliveries
    try:
        page = await reads.deliveries(tenant.tenant_id, filters, cursor, limit)
    except CursorInvalid:
        raise RequestMalformed(parameter="cursor") from None
    lines = [line_body(line) for line in page.lines]
    return JSONResponse({"deliveries": lines, "cursor": page.cursor})
