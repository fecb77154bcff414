"""The route of the event stream: a tenant's events in one order, with a cursor and a long poll."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response

from effect_broker.api.callers import Caller, only_known_parameters, services_of
from effect_broker.api.documentation import RESPONSES_EVENTS
from effect_broker.api.waiting import Waits
from effect_broker.event_stream import (
    PAGE_LIMIT_DEFAULT,
    PAGE_LIMIT_MAX,
    StreamPage,
    StreamReads,
    stream_page,
)
from effect_broker.protocol.ports import StoreError
from effect_contracts.event_stream import CURSOR_CHARS_MAX, EventFilter, Place
from effect_contracts.facts import EffectState
from effect_contracts.trace.kinds import EventKind

WAIT_SECONDS_MAX: Final = 60.0
TYPES_MAX: Final = 50

# All waits of a tenant look at the end of its stream together, so often.
_LOOK_SECONDS: Final = 0.5

router = APIRouter(
    prefix="/v1/events", tags=["events"], dependencies=[Depends(only_known_parameters)]
)


@router.get("", responses=RESPONSES_EVENTS)
async def list_events(
    request: Request,
    tenant: Caller,
    after: Annotated[
        str | None,
        Query(max_length=CURSOR_CHARS_MAX, description="The cursor of the page before."),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_LIMIT_MAX)] = PAGE_LIMIT_DEFAULT,
    types: Annotated[
        list[EventKind] | None,
        Query(max_length=TYPES_MAX, description="Any of these."),
    ] = None,
    states: Annotated[
        list[EffectState] | None, Query(description="The effect came to any of these.")
    ] = None,
    wait_seconds: Annotated[
        float,
        Query(
            ge=0,
            le=WAIT_SECONDS_MAX,
            allow_inf_nan=False,
            description="Seconds to wait for an event where there is none yet.",
        ),
    ] = 0.0,
) -> Response:
    """Return the tenant's events after a cursor, in an order that never passes over any: of one
    effect by sequence, and what commits late is never put before what was read already.

    `cursor` is where to go on, also from an empty page. `pruned` says that retention may have
    removed events that would be here. Without `after` it begins with the oldest event there is."""
    wanted = EventFilter(
        frozenset(kind.value for kind in types or ()),
        frozenset(state.value for state in states or ()),
    )
    asked = _Asked(services_of(request).stream, tenant.tenant_id, wanted, limit)
    if wait_seconds <= 0:
        page = await asked.page(after)
    else:
        waits: Waits = request.app.state.waits
        with waits.place(tenant.tenant_id):
            page = await _waited(request, asked, after, wait_seconds)
    return JSONResponse(page.to_json())


@dataclass(frozen=True, slots=True)
class _Asked:
    reads: StreamReads
    tenant_id: UUID
    wanted: EventFilter
    limit: int

    async def page(self, cursor: str | None) -> StreamPage:
        return await stream_page(self.reads, self.tenant_id, cursor, self.wanted, self.limit)


async def _waited(request: Request, asked: _Asked, after: str | None, seconds: float) -> StreamPage:
    """Return the first page with an event on it, or the last one when the time is over.

    Whoever waited has to be let in at the end as at the beginning. An outage ends no wait.
    """
    draining: Callable[[], bool] = request.app.state.draining
    ends: StreamEnds = request.app.state.stream_ends
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + seconds
    page = await asked.page(after)
    while not page.events:
        left = ends_at - loop.time()
        if left <= 0 or draining() or await request.is_disconnected():
            break
        if not page.more:
            await asyncio.sleep(min(left, _LOOK_SECONDS))
            end = await ends.of(asked.reads, asked.tenant_id)
            if end is None or end <= page.place:
                continue
            await services_of(request).authenticator.tenant(request.state.api_key)
        pruned = page.pruned
        page = await asked.page(page.cursor)
        if pruned and not page.pruned:
            page = StreamPage(page.events, page.place, page.cursor, page.more, pruned)
    return page


class StreamEnds:
    """Where the streams of the waiting tenants end; asked for once for all waits of a tenant."""

    def __init__(self) -> None:
        self._asked: dict[UUID, tuple[float, asyncio.Task[Place | None]]] = {}

    async def of(self, reads: StreamReads, tenant_id: UUID) -> Place | None:
        """Return the last place that can be read, at most `_LOOK_SECONDS` old; None without one,
        and where the database does not answer."""
        now = asyncio.get_running_loop().time()
        known = self._asked.get(tenant_id)
        if known is None or now - known[0] >= _LOOK_SECONDS:
            self._asked = {t: a for t, a in self._asked.items() if now - a[0] < _LOOK_SECONDS}
            known = self._asked[tenant_id] = (now, asyncio.create_task(_end(reads, tenant_id)))
        return await asyncio.shield(known[1])


async def _end(reads: StreamReads, tenant_id: UUID) -> Any:
    try:
        return await reads.end(tenant_id)
    except StoreError:
        return None
