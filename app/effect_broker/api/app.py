"""The FastAPI application: routes and authentication.

The API process only accepts and reads effects. It never hosts DBOS and never sends anything: a
submit is one commit in Postgres, and the workers find it there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute

from effect_broker import __version__
from effect_broker.api import (
    batches,
    decisions,
    drills,
    elections,
    events,
    evidence,
    history,
    holds,
    metrics,
    problems,
    rights,
    subscriptions,
    tools,
    unresolved,
)
from effect_broker.api.bodies import SubmitBody, read_submit
from effect_broker.api.callers import (
    TEXT_PATTERN,
    AgeSeconds,
    Caller,
    KeyPrefix,
    States,
    ToolName,
    known_id,
    only_known_parameters,
    services_of,
)
from effect_broker.api.console import site
from effect_broker.api.documentation import (
    RESPONSES_GET,
    RESPONSES_LIST,
    RESPONSES_READY,
    RESPONSES_RECEIPT,
    SUBMIT_EXAMPLE,
    add_examples,
    documented,
)
from effect_broker.api.limits import RequestLimits
from effect_broker.api.presentation import committed_body, effect_body
from effect_broker.api.services import Health, ServicesContext
from effect_broker.api.waiting import WAIT_SECONDS_MAX, Waits
from effect_broker.intake import EffectRequest, Tenant
from effect_broker.protocol.ports import StoreError
from effect_broker.protocol.submission import Submitted
from effect_broker.reading import (
    PAGE_LIMIT_DEFAULT,
    PAGE_LIMIT_MAX,
    CursorInvalid,
    EffectDetail,
    EffectFilter,
    detail_of,
)
from effect_broker.receipts import opened_result, receipt_body
from effect_contracts.errors import (
    NotFound,
    RateLimited,
    RequestMalformed,
)
from effect_contracts.life import is_final


def create_app(
    services: ServicesContext,
    *,
    draining: Callable[[], bool] = lambda: False,
    connections_max: int | None = None,
    limits: RequestLimits | None = None,
) -> FastAPI:
    """Return the application; `services` is entered when it starts and left when it ends.

    Args:
        draining: true once the process has begun to end; long polls then answer at once.
        connections_max: of the process; long polls get a share of them.
        limits: of requests by tenant; without it only refused keys are counted.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with services() as opened:
            waits = Waits.for_connections(opened.reads.standing_still, connections_max)
            async with waits.asking():
                app.state.services = opened
                app.state.waits = waits
                app.state.stream_ends = events.StreamEnds()
                yield

    app = _Application(
        title="effect-broker",
        version=__version__,
        description="A correctness boundary for tool calls that change the outside world.",
        lifespan=lifespan,
        redirect_slashes=False,
        # These pages load their scripts from a server of strangers; /openapi.json stays.
        docs_url=None,
        redoc_url=None,
    )
    app.state.draining = draining
    app.state.limits = limits or RequestLimits()
    routers = (
        _health,
        _effects,
        elections.router,
        decisions.router,
        history.router,
        batches.router,
        unresolved.router,
        holds.router,
        drills.router,
        evidence.router,
        events.router,
        subscriptions.router,
        tools.router,
        metrics.router,
    )
    for router in routers:
        app.include_router(router)
    routes = [route for router in routers for route in router.routes]
    site.mount(app)
    api_routes = tuple(route for route in routes if isinstance(route, APIRoute))
    rights.check_routes(api_routes)
    problems.install(app, api_routes)
    return app


class _Application(FastAPI):
    """FastAPI with whole examples in its OpenAPI document."""

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, made once."""
        if self.openapi_schema is None:
            self.openapi_schema = add_examples(super().openapi())
        return self.openapi_schema


Wait = Annotated[
    float,
    Query(
        ge=0,
        le=WAIT_SECONDS_MAX,
        allow_inf_nan=False,
        description=(
            "Seconds to wait for the effect to be final or to wait for a person. A submit is never "
            "refused for it: where too many wait already, it answers at once."
        ),
    ),
]

_health = APIRouter(tags=["health"])
_effects = APIRouter(
    prefix="/v1/effects", tags=["effects"], dependencies=[Depends(only_known_parameters)]
)


@_health.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok", "version": __version__}


@_health.get("/readyz", responses=RESPONSES_READY)
async def readyz(request: Request) -> Response:
    """Submits can be accepted. Without a live worker it says `degraded` and stays 200."""
    health: Health = await services_of(request).health()
    status = "unavailable" if not health.ready else "degraded" if health.degraded else "ok"
    body = {"status": status, "checks": health.checks}
    return JSONResponse(body, 200 if health.ready else 503)


_SUBMIT: Final = documented(
    SubmitBody,
    SUBMIT_EXAMPLE,
    {
        202: "A new intent, durable now",
        200: "A replay: the effect of this key as it stands",
    },
    problems={
        409: "The key is bound to another request; nothing was sent",
        422: "The request cannot become an intent; nothing was stored",
        429: "The tenant makes too many requests; nothing was stored, submit again later",
        503: "The database cannot be reached; submit again",
    },
)


@_effects.post("", **_SUBMIT)
async def submit(request: Request, tenant: Caller, wait: Wait = 0.0) -> Response:
    """Make an intent durable. 202 for a new one, 200 for a replay, 409 for another request under
    the same key. Repeating a submit is always safe."""
    body = await read_submit(request)
    submitted = await services_of(request).intake.submit(
        tenant,
        EffectRequest(
            operation_key=body.operation_key,
            tool=body.tool,
            arguments=body.arguments,
            trace_id=body.trace_id,
            traceparent=_traceparent(request),
            send_before=body.send_before,
            parent_id=body.parent_effect_id,
            compensates_id=body.compensates,
        ),
    )
    effect_id = submitted.intent.effect_id
    answer = await _after_commit(request, tenant, submitted, wait)
    answer["replayed"] = not submitted.created
    status = 202 if submitted.created else 200
    return JSONResponse(answer, status, {"Location": f"/v1/effects/{effect_id}"})


@_effects.get("/{effect_id}", responses=RESPONSES_GET)
async def get_effect(
    request: Request, tenant: Caller, effect_id: str, wait: Wait = 0.0
) -> Response:
    """Return an effect as it stands; with `wait`, return once it is final or waits for a person,
    or when the time is over."""
    # A place first: who finds none has cost nothing.
    with _place(request, tenant, wait):
        detail = await services_of(request).reads.effect(tenant.tenant_id, known_id(effect_id))
        detail = await _once_still(request, tenant, detail, wait)
    return JSONResponse(effect_body(detail, attempts=True))


@_effects.get("", responses=RESPONSES_LIST)
async def list_effects(
    request: Request,
    tenant: Caller,
    status: States = None,
    reason: Annotated[str | None, Query(max_length=64, pattern=TEXT_PATTERN)] = None,
    tool: ToolName = None,
    operation_prefix: KeyPrefix = None,
    older_than_seconds: AgeSeconds = None,
    unresolved: Annotated[bool, Query(description="Only effects that are not final.")] = False,
    parent: Annotated[UUID | None, Query(description="Delegated by this effect.")] = None,
    cursor: Annotated[str | None, Query(max_length=255)] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_LIMIT_MAX)] = PAGE_LIMIT_DEFAULT,
) -> Response:
    """Return effects of the tenant, newest first, a page at a time; `cursor` of one answer is the
    `cursor` of the next request, null on the last page."""
    filters = EffectFilter(
        states=frozenset(status or ()),
        reason=reason,
        tool=tool,
        operation_prefix=operation_prefix,
        older_than_seconds=older_than_seconds,
        unresolved=unresolved,
        parent_id=parent,
    )
    try:
        page = await services_of(request).reads.effects(tenant.tenant_id, filters, cursor, limit)
    except CursorInvalid:
        raise RequestMalformed(parameter="cursor") from None
    effects = [effect_body(detail, attempts=False) for detail in page.effects]
    return JSONResponse({"effects": effects, "cursor": page.cursor})


@_effects.get("/{effect_id}/receipt", responses=RESPONSES_RECEIPT)
async def get_receipt(request: Request, tenant: Caller, effect_id: str) -> Response:
    """Return the immutable record of a settled effect, with the target's result.

    `document` holds the record and its signatures for whoever verifies it without this broker."""
    services = services_of(request)
    known = known_id(effect_id)
    record = await services.reads.receipt(tenant.tenant_id, known)
    if record is None:
        raise NotFound
    result = opened_result(record, tenant.tenant_id, known, services.vault)
    return JSONResponse(receipt_body(record) | result)


def _traceparent(request: Request) -> str | None:
    """The trace context that the caller sends; of several, none is the caller's."""
    sent = request.headers.getlist("traceparent")
    return sent[0] if len(sent) == 1 else None


async def _after_commit(
    request: Request, tenant: Tenant, submitted: Submitted, wait_seconds: float
) -> dict[str, Any]:
    """Return what is known of an effect that is durable. No outage may look like a refusal here,
    and no crowd of waits: then the answer is what was known last, and comes at once."""
    intent, standing = submitted.intent, submitted.standing
    if standing is not None:
        detail = detail_of(intent, standing)
    else:
        try:
            detail = await services_of(request).reads.effect(tenant.tenant_id, intent.effect_id)
        except StoreError:
            return committed_body(intent)
    with suppress(RateLimited), _place(request, tenant, wait_seconds):
        detail = await _once_still(request, tenant, detail, wait_seconds)
    return effect_body(detail, attempts=False)


def _place(request: Request, tenant: Tenant, wait_seconds: float) -> AbstractContextManager[None]:
    """Hold a place for a wait; a request that does not wait needs none.

    Raises:
        RateLimited: there are too many waits.
    """
    waits: Waits = request.app.state.waits
    return waits.place(tenant.tenant_id) if wait_seconds > 0 else nullcontext()


async def _once_still(
    request: Request, tenant: Tenant, detail: EffectDetail, wait_seconds: float
) -> EffectDetail:
    """Return the effect once it is final or parked, or as it is when the wait is over.

    The wait is over when its time is, when the process drains, and when nobody waits any more.
    Whoever waited has to be let in at the end as at the beginning.

    Raises:
        Unauthenticated, TenantDisabled: the key is no longer good.
    """
    services = services_of(request)
    waits: Waits = request.app.state.waits
    draining: Callable[[], bool] = request.app.state.draining
    if wait_seconds <= 0 or is_final(detail.intent.state) or detail.parked:
        return detail

    async def given_up() -> bool:
        return draining() or await request.is_disconnected()

    effect_id = detail.intent.effect_id
    await waits.until_still((tenant.tenant_id, effect_id), wait_seconds, given_up)
    try:
        await services.authenticator.tenant(request.state.api_key)
        return await services.reads.effect(tenant.tenant_id, effect_id)
    except StoreError:
        return detail
