"""The routes of subscriptions: who wants to be told of events, how that goes, and dead letters."""

from __future__ import annotations

from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator

from effect_broker.api.bodies import STRICT, read_model
from effect_broker.api.callers import Caller, only_known_parameters, services_of
from effect_broker.api.documentation import (
    RESPONSES_DEAD_LETTERS,
    RESPONSES_SUBSCRIPTION,
    RESPONSES_SUBSCRIPTION_GONE,
    RESPONSES_SUBSCRIPTIONS,
    documented,
)
from effect_broker.api.events import TYPES_MAX
from effect_broker.reading import PAGE_LIMIT_DEFAULT, PAGE_LIMIT_MAX, CursorInvalid
from effect_broker.subscriptions import (
    DESCRIPTION_CHARS_MAX,
    OVERLAP_SECONDS,
    OVERLAP_SECONDS_MAX,
    SubscriptionOrder,
    SubscriptionRecord,
)
from effect_contracts.errors import NotFound, RequestMalformed
from effect_contracts.event_stream import CURSOR_CHARS_MAX, EventFilter
from effect_contracts.facts import EffectState
from effect_contracts.trace.kinds import EventKind

_EVENT_ID: Final = r"^[0-9a-f-]{36}\.[0-9]{1,10}\.[0-9a-f]{8}$"

router = APIRouter(
    prefix="/v1/subscriptions",
    tags=["subscriptions"],
    dependencies=[Depends(only_known_parameters)],
)


def _state(value: object) -> object:
    return EffectState(value) if isinstance(value, str) else value


def _kind(value: object) -> object:
    return EventKind(value) if isinstance(value, str) else value


def _printable(text: str) -> str:
    """It is printed on terminals."""
    if not text.isprintable():
        raise ValueError("printable characters only")
    return text


class SubscriptionBody(BaseModel):
    """The body of `POST /v1/subscriptions`; empty lists mean all."""

    model_config = STRICT

    url: str = Field(min_length=8, max_length=2048, repr=False)
    types: list[Annotated[EventKind, BeforeValidator(_kind)]] = Field(
        default_factory=list, max_length=TYPES_MAX
    )
    states: list[Annotated[EffectState, BeforeValidator(_state)]] = Field(
        default_factory=list, max_length=TYPES_MAX
    )
    description: Annotated[str, AfterValidator(_printable)] = Field(
        default="", max_length=DESCRIPTION_CHARS_MAX
    )
    after: str | None = Field(default=None, max_length=CURSOR_CHARS_MAX)

    def order(self) -> SubscriptionOrder:
        """Return what is asked for."""
        wanted = EventFilter(
            frozenset(kind.value for kind in self.types),
            frozenset(state.value for state in self.states),
        )
        return SubscriptionOrder(self.url, wanted, self.description, self.after)


class RedeliverBody(BaseModel):
    """The body of `POST …/dead-letters/redeliver`: one event, or all."""

    model_config = STRICT

    event_id: str | None = Field(default=None, pattern=_EVENT_ID)
    every: bool = False

    @model_validator(mode="after")
    def _one_or_all(self) -> RedeliverBody:
        if (self.event_id is None) != self.every:
            raise ValueError("name one event, or say every")
        return self

    def event(self) -> tuple[UUID, int] | None:
        """Return the effect and the number of the event, None for all.

        Raises:
            NotFound: no event has this id.
        """
        if self.event_id is None:
            return None
        effect_id, sequence, _ = self.event_id.split(".")
        if not 1 <= int(sequence) < 2**31:
            raise NotFound
        return _known(effect_id), int(sequence)


class ReplaceSecretBody(BaseModel):
    """The body of `POST …/replace-secret`; with 0 the old secret signs nothing any more."""

    model_config = STRICT

    overlap_seconds: int = Field(default=int(OVERLAP_SECONDS), ge=0, le=int(OVERLAP_SECONDS_MAX))


_CREATE: Final = documented(
    SubscriptionBody,
    {
        "url": "https://hooks.acme.example/effects",
        "states": ["succeeded", "failed_final", "manual_review"],
        "description": "The order service",
    },
    {201: "The subscription, and its secret, which is told this once"},
    problems={409: "The tenant has as many as it may have, or `after` is of another database"},
)
_REPLACE_SECRET: Final = documented(
    ReplaceSecretBody,
    {"overlap_seconds": 86_400},
    {200: "The subscription, and its new secret, which is told this once"},
    problems={
        404: "No such subscription of this tenant",
        409: "As many old secrets as may be sign still",
    },
)
_REDELIVER: Final = documented(
    RedeliverBody,
    {"every": True},
    {200: "How many wait again"},
    problems={404: "No such subscription of this tenant, or no such dead letter"},
)


@router.post("", **_CREATE)
async def create(request: Request, tenant: Caller) -> Response:
    """Deliver the tenant's events to a URL, signed as Standard Webhooks are.

    From now on, or with `after` from a cursor of the event stream on. Needs a key with the scope
    `admin`."""
    order = (await read_model(request, SubscriptionBody)).order()
    record, secret = await services_of(request).subscribing.create(
        tenant.tenant_id, order, f"operator:{tenant.credential}"
    )
    location = {"Location": f"/v1/subscriptions/{record.subscription_id}"}
    return JSONResponse(record.to_json() | {"secret": secret}, 201, location)


@router.get("", responses=RESPONSES_SUBSCRIPTIONS)
async def list_subscriptions(request: Request, tenant: Caller) -> Response:
    """Return the subscriptions of the tenant and how they go. Needs the scope `operate`."""
    records = await services_of(request).subscribing.store.listing(tenant.tenant_id)
    return JSONResponse({"subscriptions": [record.to_json() for record in records]})


@router.get("/{subscription_id}", responses=RESPONSES_SUBSCRIPTION)
async def get_subscription(request: Request, tenant: Caller, subscription_id: str) -> Response:
    """Return a subscription and how it goes. Needs the scope `operate`."""
    subscribing = services_of(request).subscribing
    return _answer(await subscribing.one(tenant.tenant_id, _known(subscription_id)))


@router.delete("/{subscription_id}", status_code=204, responses=RESPONSES_SUBSCRIPTION_GONE)
async def delete_subscription(request: Request, tenant: Caller, subscription_id: str) -> Response:
    """End a subscription: nothing more is begun, and its dead letters go with it.

    Needs the scope `admin`."""
    await services_of(request).subscribing.remove(tenant.tenant_id, _known(subscription_id))
    return Response(status_code=204)


@router.post("/{subscription_id}/pause", responses=RESPONSES_SUBSCRIPTION)
async def pause_subscription(request: Request, tenant: Caller, subscription_id: str) -> Response:
    """Deliver nothing until it is resumed; what happens meanwhile is delivered then.

    Needs the scope `operate`."""
    subscribing = services_of(request).subscribing
    return _answer(await subscribing.pause(tenant.tenant_id, _known(subscription_id)))


@router.post("/{subscription_id}/resume", responses=RESPONSES_SUBSCRIPTION)
async def resume_subscription(request: Request, tenant: Caller, subscription_id: str) -> Response:
    """Let a subscription go on where it stands, also one that failed for long.

    Needs the scope `operate`."""
    subscribing = services_of(request).subscribing
    return _answer(await subscribing.resume(tenant.tenant_id, _known(subscription_id)))


@router.post("/{subscription_id}/replace-secret", **_REPLACE_SECRET)
async def replace_secret(request: Request, tenant: Caller, subscription_id: str) -> Response:
    """Make a new secret; for the overlap the old one signs every delivery as well.

    Needs the scope `admin`."""
    overlap_seconds = (await read_model(request, ReplaceSecretBody)).overlap_seconds
    record, secret = await services_of(request).subscribing.replace_secret(
        tenant.tenant_id, _known(subscription_id), float(overlap_seconds)
    )
    return JSONResponse(record.to_json() | {"secret": secret})


@router.get("/{subscription_id}/dead-letters", responses=RESPONSES_DEAD_LETTERS)
async def list_dead_letters(
    request: Request,
    tenant: Caller,
    subscription_id: str,
    cursor: Annotated[str | None, Query(max_length=255)] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_LIMIT_MAX)] = PAGE_LIMIT_DEFAULT,
) -> Response:
    """Return the events that were given up, the oldest first, a page at a time.

    Needs the scope `operate`."""
    subscribing, known = services_of(request).subscribing, _known(subscription_id)
    await subscribing.one(tenant.tenant_id, known)
    try:
        page = await subscribing.store.dead_letters(tenant.tenant_id, known, cursor, limit)
    except CursorInvalid:
        raise RequestMalformed(parameter="cursor") from None
    return JSONResponse(page.to_json())


@router.post("/{subscription_id}/dead-letters/redeliver", **_REDELIVER)
async def redeliver(request: Request, tenant: Caller, subscription_id: str) -> Response:
    """Try dead letters again from the start: one by its `event_id`, or `every` one.

    Later events of the same effect may have been delivered before. Needs the scope `operate`."""
    event = (await read_model(request, RedeliverBody)).event()
    again = await services_of(request).subscribing.redeliver(
        tenant.tenant_id, _known(subscription_id), event
    )
    return JSONResponse({"redelivered": again})


def _answer(record: SubscriptionRecord) -> Response:
    return JSONResponse(record.to_json())


def _known(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotFound from None
