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
from effect_broker.api.presentation import committed_body, effect_body
from effect_broker.api.services import Health, Services, ServicesContext
from effect_broker.api.waiting import Waits
from effect_broker.intake import EffectRequest, Scope, Tenant
from effect_broker.protocol import wishes
from effect_broker.protocol.ports import Change, Intent, Snapshot, StoreError
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
    RateLimited,
    RequestMalformed,
    TransitionRefused,
    Unauthenticated,
)
from effect_contracts.facts import EffectState
from effect_contracts.life import is_final

WAIT_SECONDS_MAX: Final = 60.0

# A hundred years: larger ages select the same, and the database's intervals end somewhere.
_AGE_SECONDS_MAX: Final = 100 * 366 * 86400


def create_app(
    services: ServicesContext,
    *,
    draining: Callable[[], bool] = lambda: False,
    connections_max: int | None = None,
) -> FastAPI:
    """Return the application; `services` is entered when it starts and left when it ends.

    Args:
        draining: true once the process has begun to end; long polls then answer at once.
        connections_max: of the process; long polls get a share of them.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with services() as opened:
            waits = Waits.for_connections(opened.reads.standing_still, connections_max)
            async with waits.asking():
                app.state.services = opened
                app.state.waits = waits
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
    request.state.api_key = credentials.credentials.strip()
    return await _services(request).authenticator.tenant(request.state.api_key)


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
        description=(
            "Seconds to wait for the effect to be final or to wait for a person. A submit is never "
            "refused for it: where too many wait already, it answers at once."
        ),
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
    answer = await _after_commit(request, tenant, submitted.intent, wait)
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
        detail = await _services(request).reads.effect(tenant.tenant_id, _known(effect_id))
        detail = await _once_still(request, tenant, detail, wait)
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


async def _after_commit(
    request: Request, tenant: Tenant, intent: Intent, wait_seconds: float
) -> dict[str, Any]:
    """Return what is known of an effect that is durable. No outage may look like a refusal here,
    and no crowd of waits: then the answer is what was known last, and comes at once."""
    try:
        detail = await _services(request).reads.effect(tenant.tenant_id, intent.effect_id)
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
    services = _services(request)
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


def _known(effect_id: str) -> UUID:
    """Read an effect id of a path; what is no id is missing, like an id of another tenant."""
    try:
        return UUID(effect_id)
    except ValueError:
        raise NotFound from None
