"""The FastAPI application: routes and authentication.

The API process only accepts and reads effects. It never hosts DBOS and never sends anything: a
submit is one commit in Postgres, and the workers find it there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from effect_broker import __version__
from effect_broker.api import problems
from effect_broker.api.bodies import read_statement, read_submit
from effect_broker.api.documentation import (
    RESOLVE_DOCUMENTATION,
    RESPONSES_GET,
    RESPONSES_LIST,
    RESPONSES_READY,
    RESPONSES_RECEIPT,
    RESPONSES_WISH,
    SUBMIT_DOCUMENTATION,
    add_examples,
)
from effect_broker.api.presentation import effect_body
from effect_broker.api.services import Health, Services, ServicesContext
from effect_broker.intake import EffectRequest, Scope, Tenant
from effect_broker.protocol import wishes
from effect_broker.protocol.ports import Change, Snapshot
from effect_broker.reading import (
    PAGE_LIMIT_DEFAULT,
    PAGE_LIMIT_MAX,
    CursorInvalid,
    EffectDetail,
    EffectFilter,
)
from effect_contracts.canonical import parse_strict
from effect_contracts.errors import (
    NotFound,
    RequestMalformed,
    TransitionRefused,
    Unauthenticated,
)
from effect_contracts.facts import EffectState
from effect_contracts.life import is_final

# A long poll asks the database again after these waits; it holds no connection meanwhile.
_WAIT_FIRST_SECONDS: Final = 0.05
_WAIT_CAP_SECONDS: Final = 0.5
WAIT_SECONDS_MAX: Final = 60.0

# A hundred years: larger ages select the same, and the database's intervals end somewhere.
_AGE_SECONDS_MAX: Final = 100 * 366 * 86400


def create_app(
    services: ServicesContext, *, draining: Callable[[], bool] = lambda: False
) -> FastAPI:
    """Return the application; `services` is entered when it starts and left when it ends.

    Args:
        draining: true once the process has begun to end; long polls then answer at once.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with services() as opened:
            app.state.services = opened
            yield

    app = _Application(
        title="effect-broker",
        version=__version__,
        description="A correctness boundary for tool calls that change the outside world.",
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.draining = draining
    app.include_router(_health)
    app.include_router(_effects)
    routes = [*_health.routes, *_effects.routes]
    problems.install(app, tuple(route for route in routes if isinstance(route, APIRoute)))
    return app


class _Application(FastAPI):
    """FastAPI with whole examples in its OpenAPI document."""

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, made once."""
        if self.openapi_schema is None:
            self.openapi_schema = add_examples(super().openapi())
        return self.openapi_schema


def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


_bearer = HTTPBearer(auto_error=False, description="An API key of the tenant.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


async def _tenant(request: Request, credentials: Credentials) -> Tenant:
    if credentials is None:
        raise Unauthenticated
    return await _services(request).authenticator.tenant(credentials.credentials.strip())


async def _only_known_parameters(request: Request) -> None:
    """Refuse query parameters that the operation does not have.

    A misspelt filter that is ignored would list effects that the caller believes are excluded.
    """
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    known = {parameter.alias for parameter in route.dependant.query_params}
    if not known.issuperset(request.query_params.keys()):
        raise RequestMalformed


Caller = Annotated[Tenant, Depends(_tenant)]
Wait = Annotated[
    float,
    Query(
        ge=0,
        le=WAIT_SECONDS_MAX,
        allow_inf_nan=False,
        description="Seconds to wait for the effect to be final or to wait for a person.",
    ),
]
# Text that a column can hold; NUL cannot be stored, so nothing stored can match it.
_TEXT: Final = r"^[^\x00]*$"

_health = APIRouter(tags=["health"])
_effects = APIRouter(
    prefix="/v1/effects", tags=["effects"], dependencies=[Depends(_only_known_parameters)]
)


@_health.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok", "version": __version__}


@_health.get("/readyz", responses=RESPONSES_READY)
async def readyz(request: Request) -> Response:
    """Submits can be accepted. Without a live worker it says `degraded` and stays 200."""
    health: Health = await _services(request).health()
    status = "unavailable" if not health.ready else "degraded" if health.degraded else "ok"
    body = {"status": status, "checks": health.checks}
    return JSONResponse(body, 200 if health.ready else 503)


@_effects.post("", **SUBMIT_DOCUMENTATION)
async def submit(request: Request, tenant: Caller, wait: Wait = 0.0) -> Response:
    """Make an intent durable. 202 for a new one, 200 for a replay, 409 for another request under
    the same key. Repeating a submit is always safe."""
    body = await read_submit(request)
    submitted = await _services(request).intake.submit(
        tenant,
        EffectRequest(
            operation_key=body.operation_key,
            tool=body.tool,
            arguments=body.arguments,
            trace_id=body.trace_id,
            send_before=body.send_before,
        ),
    )
    effect_id = submitted.intent.effect_id
    detail = await _settled(request, tenant, effect_id, wait)
    answer = effect_body(detail, attempts=False) | {"replayed": not submitted.created}
    status = 202 if submitted.created else 200
    return JSONResponse(answer, status, {"Location": f"/v1/effects/{effect_id}"})


@_effects.get("/{effect_id}", responses=RESPONSES_GET)
async def get_effect(
    request: Request, tenant: Caller, effect_id: str, wait: Wait = 0.0
) -> Response:
    """Return an effect as it stands; with `wait`, return once it is final or waits for a person,
    or when the time is over."""
    detail = await _settled(request, tenant, _known(effect_id), wait)
    return JSONResponse(effect_body(detail, attempts=True))


@_effects.get("", responses=RESPONSES_LIST)
async def list_effects(
    request: Request,
    tenant: Caller,
    status: Annotated[list[EffectState] | None, Query(description="Any of these states.")] = None,
    reason: Annotated[str | None, Query(max_length=64, pattern=_TEXT)] = None,
    tool: Annotated[str | None, Query(max_length=255, pattern=_TEXT)] = None,
    operation_prefix: Annotated[str | None, Query(max_length=255, pattern="^[!-~]*$")] = None,
    older_than_seconds: Annotated[
        float | None, Query(ge=0, le=_AGE_SECONDS_MAX, allow_inf_nan=False)
    ] = None,
    unresolved: Annotated[bool, Query(description="Only effects that are not final.")] = False,
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
    )
    try:
        page = await _services(request).reads.effects(tenant.tenant_id, filters, cursor, limit)
    except CursorInvalid:
        raise RequestMalformed(parameter="cursor") from None
    effects = [effect_body(detail, attempts=False) for detail in page.effects]
    return JSONResponse({"effects": effects, "cursor": page.cursor})


@_effects.get("/{effect_id}/receipt", responses=RESPONSES_RECEIPT)
async def get_receipt(request: Request, tenant: Caller, effect_id: str) -> Response:
    """Return the immutable record of a settled effect, with the target's result."""
    services = _services(request)
    known = _known(effect_id)
    record = await services.reads.receipt(tenant.tenant_id, known)
    if record is None:
        raise NotFound
    answer: dict[str, Any] = {
        "receipt": parse_strict(record.content),
        "digest": record.digest.hex(),
        "result": None,
        "fields": {},
    }
    if record.result is not None:
        plain = services.vault.unseal(tenant.tenant_id, known, "result", record.result)
        stored = parse_strict(plain, bytes_max=len(plain))
        assert isinstance(stored, dict)
        answer |= stored
    return JSONResponse(answer)


@_effects.post("/{effect_id}/resolve", **RESOLVE_DOCUMENTATION)
async def resolve(request: Request, tenant: Caller, effect_id: str) -> Response:
    """Record what a person knows of an effect whose outcome the broker cannot settle.

    It is no second way to send: what follows from it, the pinned contract says. The same decision
    id with the same statement again changes nothing. Needs a key with the scope `operate`."""
    tenant.require(Scope.OPERATE)
    known = _known(effect_id)
    services = _services(request)
    statement = await read_statement(request)
    created = await services.resolving.resolve(
        tenant.tenant_id, known, statement, tenant.credential
    )
    detail = await services.reads.effect(tenant.tenant_id, known)
    return JSONResponse(effect_body(detail, attempts=True) | {"replayed": not created})


@_effects.post("/{effect_id}/reconcile", responses=RESPONSES_WISH)
async def reconcile(request: Request, tenant: Caller, effect_id: str) -> Response:
    """Ask the broker to look now instead of by its schedule. It never forces an unsafe send:
    `changed` is false where only a person or new evidence can tell more."""
    granted = await _wish(request, tenant, effect_id, wishes.reconcile)
    assert granted is not None, "to look is always permitted"
    return await _wished(request, tenant, effect_id, granted)


@_effects.post("/{effect_id}/cancel", responses=RESPONSES_WISH)
async def cancel(request: Request, tenant: Caller, effect_id: str) -> Response:
    """Withdraw an effect before its first attempt; 409 once it may have been sent."""
    granted = await _wish(request, tenant, effect_id, wishes.cancel)
    if granted is None:
        detail = await _services(request).reads.effect(tenant.tenant_id, _known(effect_id))
        raise TransitionRefused(state=detail.intent.state)
    return await _wished(request, tenant, effect_id, granted)


async def _wish(
    request: Request,
    tenant: Tenant,
    effect_id: str,
    plan: Callable[..., Change[wishes.Granted]] | Callable[..., Change[wishes.Granted | None]],
) -> wishes.Granted | None:
    """Make a wish; it may be repeated after any error."""
    services = _services(request)

    def planned(snapshot: Snapshot) -> Change[wishes.Granted | None]:
        actor = f"caller:{tenant.credential}"
        change = plan(snapshot, receipt_id=services.resolving.new_id(), actor=actor)
        return Change(change.result, change.writes)

    store = services.resolving.store
    return await store.change(tenant.tenant_id, _known(effect_id), planned)


async def _wished(
    request: Request, tenant: Tenant, effect_id: str, granted: wishes.Granted
) -> Response:
    detail = await _services(request).reads.effect(tenant.tenant_id, _known(effect_id))
    return JSONResponse(effect_body(detail, attempts=True) | {"changed": granted.changed})


async def _settled(
    request: Request, tenant: Tenant, effect_id: UUID, wait_seconds: float
) -> EffectDetail:
    """Return the effect once it is final or parked, or as it is when the wait is over.

    The wait is over when its time is, when the process drains, and when nobody waits any more.
    """
    reads = _services(request).reads
    draining: Callable[[], bool] = request.app.state.draining
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + wait_seconds
    pause = _WAIT_FIRST_SECONDS
    while True:
        detail = await reads.effect(tenant.tenant_id, effect_id)
        left = ends_at - loop.time()
        if is_final(detail.intent.state) or detail.parked or left <= 0 or draining():
            return detail
        if await request.is_disconnected():
            return detail
        await asyncio.sleep(min(pause, left))
        pause = min(pause * 1.5, _WAIT_CAP_SECONDS)


def _known(effect_id: str) -> UUID:
    """Read an effect id of a path; what is no id is missing, like an id of another tenant."""
    try:
        return UUID(effect_id)
    except ValueError:
        raise NotFound from None
