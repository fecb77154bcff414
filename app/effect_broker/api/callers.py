"""What every route shares: who calls, the parts behind it, and which parameters it takes."""

from __future__ import annotations

import re
from typing import Annotated, Final
from uuid import UUID

from fastapi import Depends, Request
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from effect_broker.api.limits import RequestLimits
from effect_broker.api.rights import right_of
from effect_broker.api.services import Services
from effect_broker.intake import Tenant
from effect_contracts.errors import (
    NotFound,
    ParameterReason,
    RequestMalformed,
    Unauthenticated,
)

# What may be repeated in an answer: a name, and no text that somebody has put there by mistake.
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# Text that a column can hold; NUL cannot be stored, so nothing stored can match it.
TEXT_PATTERN: Final = r"^[^\x00]*$"


def services_of(request: Request) -> Services:
    """Return the parts that the routes stand on."""
    services: Services = request.app.state.services
    return services


_bearer = HTTPBearer(auto_error=False, description="An API key of the tenant.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


async def _tenant(request: Request, credentials: Credentials) -> Tenant:
    if credentials is None:
        raise Unauthenticated
    api_key = request.state.api_key = credentials.credentials.strip()
    authenticator = services_of(request).authenticator
    limits: RequestLimits = request.app.state.limits
    host = request.client.host if request.client else None
    limits.check_address(host, api_key, seen_good=authenticator.has_served(api_key))
    try:
        tenant = await authenticator.tenant(api_key)
    except Unauthenticated:
        limits.count_refused(host, api_key)
        raise
    limits.admit(tenant.tenant_id)
    tenant.require(right_of(request.method, _route_of(request).path_format))
    return tenant


def _route_of(request: Request) -> APIRoute:
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    return route


async def only_known_parameters(request: Request) -> None:
    """Refuse query parameters that the operation does not have.

    A misspelt filter that is ignored would list effects that the caller believes are excluded.
    """
    known = {parameter.alias for parameter in _route_of(request).dependant.query_params}
    for name in request.query_params.keys() - known:
        shown = name if _NAME.fullmatch(name) else None
        raise RequestMalformed(ParameterReason.UNKNOWN, parameter=shown)


Caller = Annotated[Tenant, Depends(_tenant)]


def known_effect_id(effect_id: str) -> UUID:
    """Read an effect id of a path; what is no id is missing, like an id of another tenant."""
    try:
        return UUID(effect_id)
    except ValueError:
        raise NotFound from None
