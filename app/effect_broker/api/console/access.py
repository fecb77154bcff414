"""Who is at the console: sessions, and what proves that a form is ours.

A session is a cookie with 256 random bits, which scripts cannot read and other sites cannot send.
Of a form three things are asked: it comes from our own origin, as the browser says; it belongs to
a session; and it carries that session's token, an HMAC that nobody else can make. The key itself is
typed once and kept nowhere. Nothing secret is ever in an address.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from fastapi import Request
from fastapi.responses import Response

from effect_broker.api.bodies import read_raw
from effect_broker.api.callers import services_of
from effect_broker.console import OpenSession
from effect_broker.intake import Scope, Tenant
from effect_contracts.errors import (
    EffectError,
    InvalidRequest,
    RequestMalformed,
    RequestReason,
)

COOKIE: Final = "effect_broker_console"
FLASH_COOKIE: Final = "effect_broker_console_said"
PATH: Final = "/console"
TOKEN_FIELD: Final = "token"
_SESSION_BYTES: Final = 32
_FIELDS_MAX: Final = 64


class NotSignedIn(Exception):
    """There is no session, or it has ended."""


class ForeignForm(Exception):
    """The form was not sent by a page of this console; nothing was done."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A request of somebody who is signed in."""

    session: OpenSession
    session_id: str = field(repr=False)

    @property
    def credential(self) -> str:
        """The id of the API key."""
        return self.session.tenant.credential

    @property
    def token(self) -> str:
        """What each form of this session carries."""
        return self.sign("form")

    def sign(self, text: str) -> str:
        """Return what nobody without the session's id can make of a text."""
        return hmac.new(self.session_id.encode(), text.encode(), hashlib.sha256).hexdigest()


async def visit_of(request: Request) -> Visit:
    """Return who asks.

    Raises:
        NotSignedIn: nobody does. Forbidden: the key may not operate any more.
        TenantDisabled, StoreError.
    """
    session_id = request.cookies.get(_name(request), "")
    if not session_id or len(session_id) > 2 * _SESSION_BYTES:
        raise NotSignedIn
    found = await services_of(request).console.sessions.find(session_id)
    if found is None:
        raise NotSignedIn
    _require(found.tenant)
    return Visit(found, session_id)


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form that our own pages have sent.

    Raises:
        ForeignForm: the browser says that another site sent it, or says nothing.
        PayloadTooLarge, RequestMalformed, InvalidRequest.
    """
    require_own_origin(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded" or "content-encoding" in request.headers:
        raise RequestMalformed
    raw = await read_raw(request)
    try:
        pairs = parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(raw),
            errors="strict",
            max_num_fields=_FIELDS_MAX,
        )
    except ValueError:
        raise RequestMalformed from None
    fields = {name: value.replace("\r\n", "\n").replace("\r", "\n") for name, value in pairs}
    if len(fields) < len(pairs):
        raise RequestMalformed  # twice the same field means two things
    for name, value in fields.items():
        if "\x00" in value:
            raise InvalidRequest(RequestReason.FORMAT, field=f"/{name}"[:64])
    return fields


def require_own_origin(request: Request) -> None:
    """Judge where a form comes from by what the browser says of itself.

    Raises:
        ForeignForm.
    """
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is None and origin is None:
        raise ForeignForm
    if site is not None and site != "same-origin":
        raise ForeignForm
    if origin is not None and not _is_own(request, origin):
        raise ForeignForm


def require_token(visit: Visit, fields: dict[str, str]) -> None:
    """See that a form carries the token of the session.

    Raises:
        ForeignForm.
    """
    given = fields.get(TOKEN_FIELD, "")
    if not hmac.compare_digest(given.encode(), visit.token.encode()):
        raise ForeignForm


async def sign_in(request: Request, api_key: str) -> str | None:
    """Begin a session of an API key and return its id; None where the key is no good one.

    Raises:
        Forbidden: the key may not operate. TenantDisabled, StoreError.
    """
    services = services_of(request)
    try:
        tenant = await services.authenticator.tenant(api_key)
    except EffectError as refused:
        if refused.status != 401:
            raise
        return None
    _require(tenant)
    session_id = secrets.token_urlsafe(_SESSION_BYTES)
    begun = await services.console.sessions.begin(session_id, tenant)
    return session_id if begun else None


def _require(tenant: Tenant) -> None:
    """Everything can be seen here, and everything concluded."""
    for right in (Scope.READ, Scope.OPERATE):
        tenant.require(right)


def set_session(request: Request, response: Response, session_id: str) -> None:
    """Give the browser its session."""
    _set(request, response, _name(request), session_id)


def drop_session(request: Request, response: Response) -> None:
    """Take the session from the browser."""
    response.delete_cookie(
        _name(request), path=PATH, secure=_is_secure(request), httponly=True, samesite="strict"
    )


def set_flash(request: Request, response: Response, visit: Visit, code: str) -> None:
    """Leave a word for the next page: one of a fixed list, signed, so that nobody forges it."""
    _set(request, response, FLASH_COOKIE, f"{code}.{visit.sign('said:' + code)}")


def take_flash(request: Request, visit: Visit) -> str | None:
    """Return the code of the word that the last form has left."""
    code, _, signature = request.cookies.get(FLASH_COOKIE, "").partition(".")
    expected = visit.sign("said:" + code)
    return code if hmac.compare_digest(signature.encode(), expected.encode()) else None


def drop_flash(request: Request, response: Response) -> None:
    """Forget the word once it is shown."""
    response.delete_cookie(
        FLASH_COOKIE, path=PATH, secure=_is_secure(request), httponly=True, samesite="strict"
    )


def _set(request: Request, response: Response, name: str, value: str) -> None:
    # No Max-Age: it goes when the browser does, and the database ends it before that.
    response.set_cookie(
        name, value, path=PATH, secure=_is_secure(request), httponly=True, samesite="strict"
    )


def _name(request: Request) -> str:
    """Browsers take a name with this prefix only over https, so that plain http cannot plant it."""
    return f"__Secure-{COOKIE}" if _is_secure(request) else COOKIE


def _is_secure(request: Request) -> bool:
    own = services_of(request).console.origin
    return (own or str(request.url)).startswith("https://")


def _is_own(request: Request, origin: str) -> bool:
    own = services_of(request).console.origin
    if own is not None:
        return origin == own
    return urlsplit(origin).netloc == request.headers.get("host", "")
