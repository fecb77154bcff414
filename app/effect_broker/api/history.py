"""The route of an effect's history: its events, and how it stood after any of them."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response

from effect_broker.api.callers import Caller, known_id, only_known_parameters, services_of
from effect_broker.api.documentation import RESPONSES_HISTORY
from effect_broker.history import (
    PAGE_LIMIT_DEFAULT,
    PAGE_LIMIT_MAX,
    EventPage,
    SequenceMissing,
    event_page,
    point_in_time,
)
from effect_contracts.canonical import JsonValue
from effect_contracts.errors import RequestMalformed
from effect_contracts.trace.log import EventRecord

# What the column of the version can hold.
_SEQUENCE_MAX: Final = 2**31 - 1

router = APIRouter(
    prefix="/v1/effects", tags=["effects"], dependencies=[Depends(only_known_parameters)]
)


@router.get("/{effect_id}/history", responses=RESPONSES_HISTORY)
async def get_history(
    request: Request,
    tenant: Caller,
    effect_id: str,
    at_sequence: Annotated[
        int | None,
        Query(ge=1, le=_SEQUENCE_MAX, description="The effect as it stood after this event."),
    ] = None,
    compare_to: Annotated[
        int | None,
        Query(ge=1, le=_SEQUENCE_MAX, description="With at_sequence: what changed between."),
    ] = None,
    cursor: Annotated[str | None, Query(max_length=10, pattern="^[0-9]+$")] = None,
    limit: Annotated[int | None, Query(ge=1, le=PAGE_LIMIT_MAX)] = None,
) -> Response:
    """Return the events of an effect, oldest first, a page at a time; or, with `at_sequence`, the
    effect as it stood after that event. Both say whether the chain of digests is intact.

    Nothing is looked up or decided for it: the answer is folded from the stored events."""
    reads, tenant_id = services_of(request).history, tenant.tenant_id
    known = known_id(effect_id)
    if at_sequence is None:
        if compare_to is not None:
            raise RequestMalformed(parameter="compare_to")
        after = int(cursor or 0)
        if after > _SEQUENCE_MAX:
            raise RequestMalformed(parameter="cursor")
        page = await event_page(reads, tenant_id, known, after, limit or PAGE_LIMIT_DEFAULT)
        return JSONResponse({"effect_id": str(known), **page_body(page)})
    for name, given in (("cursor", cursor), ("limit", limit)):
        if given is not None:
            raise RequestMalformed(parameter=name)
    try:
        point = await point_in_time(reads, tenant_id, known, at_sequence, compare_to)
    except SequenceMissing:
        raise RequestMalformed(parameter="at_sequence") from None
    return JSONResponse({"effect_id": str(known), **point.to_json()})


def page_body(page: EventPage) -> dict[str, Any]:
    """Return the members of a page."""
    return {
        "version": page.version,
        "events": [_event_body(record) for record in page.events],
        "cursor": None if page.following is None else str(page.following),
        "complete": page.complete,
        "chain": page.chain.to_json(),
    }


def _event_body(record: EventRecord) -> dict[str, JsonValue]:
    body: dict[str, JsonValue] = record.model_dump(exclude={"metadata", "at"})
    # The text is what was digested; the object is for the reader. The column holds JSON objects.
    return body | {
        "at": record.at.isoformat(),
        "metadata": json.loads(record.metadata),
        "metadata_text": record.metadata,
    }
