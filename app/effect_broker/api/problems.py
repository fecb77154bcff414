"""Problem details (RFC 9457) for every answer that is not a success; one boundary maps errors.

No text of a foreign exception reaches a caller or a log: it may hold arguments. What is not
expected is logged by type and frames and answered as `internal`.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from effect_broker.api.bodies import BODY_LEFT
from effect_broker.keyring import KeyRingProblem
from effect_broker.log_events import event
from effect_broker.protocol.ports import EffectMissing, StoreError, VaultError
from effect_contracts.errors import (
    EffectError,
    InternalError,
    KeyRingMissing,
    MethodNotAllowed,
    NotFound,
    ParameterReason,
    RequestMalformed,
    StorageUnavailable,
    problem,
)

_log = logging.getLogger(__name__)

# How pydantic names what a number or a length may be at least or at most.
_LIMITS: Final = ("ge", "le", "gt", "lt", "min_length", "max_length")

MEDIA_TYPE: Final = "application/problem+json"

# Longer paths are the caller's own invention; the answer need not carry them back.
_INSTANCE_CHARS_MAX: Final = 512


def problem_response(error: EffectError, request: Request) -> Response:
    """Return the problem body of an error of the tree, with its headers."""
    headers: dict[str, str] = {}
    if error.retry_after_seconds is not None:
        headers["Retry-After"] = str(error.retry_after_seconds)
    if error.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="effect-broker"'
    if getattr(request.state, BODY_LEFT, False):
        headers["Connection"] = "close"
    body = problem(error, _instance(request))
    return JSONResponse(body, error.status, headers, media_type=MEDIA_TYPE)


def translated(error: Exception) -> EffectError:
    """Map what the inner parts raise onto the tree that callers see."""
    match error:
        case EffectError():
            return error
        case EffectMissing():
            return NotFound()
        case StoreError():
            return StorageUnavailable()
        case VaultError() | KeyRingProblem():
            return KeyRingMissing()
        case RequestValidationError():
            errors = error.errors()
            return _malformed(errors[0]) if errors else RequestMalformed()
        case HTTPException(status_code=404):
            return NotFound()
        case HTTPException(status_code=405):
            return MethodNotAllowed()
        case HTTPException():
            return RequestMalformed()
        case _:
            return InternalError()


def _malformed(error: Mapping[str, Any]) -> RequestMalformed:
    """What is wrong with a parameter, without its value: pydantic's own texts may hold it."""
    place: tuple[int | str, ...] = error["loc"]
    kind, context = str(error["type"]), error.get("ctx") or {}
    # The second part is the parameter's name; what follows counts repetitions.
    parameter = str(place[1]) if len(place) > 1 else None
    limits = [int(context[name]) for name in _LIMITS if name in context]
    return RequestMalformed(
        _kind_of(kind),
        parameter=parameter,
        limit=limits[0] if limits else None,
        choices=context.get("expected"),
    )


def _kind_of(kind: str) -> ParameterReason:
    if kind == "missing":
        return ParameterReason.MISSING
    if kind in ("enum", "literal_error"):
        return ParameterReason.CHOICE
    if kind.endswith(("_parsing", "_type")) or kind in ("int_from_float", "finite_number"):
        return ParameterReason.TYPE
    if kind.endswith(("too_long", "too_short")):
        return ParameterReason.LENGTH
    if kind.startswith(("less_than", "greater_than")):
        return ParameterReason.RANGE
    return ParameterReason.FORMAT


def install(app: FastAPI, routes: tuple[APIRoute, ...]) -> None:
    """Make every error of the application a problem body; `routes` are what 405 may offer."""

    async def handle(request: Request, error: Exception) -> Response:
        known = translated(error)
        _note(error)
        response = problem_response(known, request)
        if isinstance(known, MethodNotAllowed):
            response.headers["Allow"] = ", ".join(_allowed(request, routes))
        return response

    own = (EffectError, StoreError, VaultError, KeyRingProblem)
    for kind in (*own, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, handle)
    app.add_middleware(_LastResort)


def _note(error: Exception) -> None:
    """Log what an operator can mend; the texts of these errors hold no argument and no secret."""
    if isinstance(error, EffectMissing):
        return
    if isinstance(error, StoreError | VaultError | KeyRingProblem):
        kind = type(error).__name__
        _log.warning("%s: %s", kind, error, extra=event("request_failed", problem=kind))


def _allowed(request: Request, routes: tuple[APIRoute, ...]) -> list[str]:
    """The methods of every route on this path; the router itself knows those of the first."""
    path = request.scope["path"]
    found: set[str] = set()
    for route in routes:
        if route.path_regex.match(path):
            found |= set(route.methods or ())
    return sorted(found)


def _instance(request: Request) -> str | None:
    """The path as it came, still escaped, so that it is a URI reference whatever is in it."""
    raw: bytes = request.scope.get("raw_path") or b""
    path = raw.partition(b"?")[0].decode("ascii", "replace")
    return path if 0 < len(path) <= _INSTANCE_CHARS_MAX else None


class _LastResort:
    """Answers what nobody expected.

    The framework would answer it too, and then raise it again for the server to log with its text.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except ClientDisconnect:
            return  # it went away while it sent its body: nobody is there to be answered
        except asyncio.CancelledError:
            # The process ends and waits no longer. Nothing is known of a submit then, and it may
            # be sent again, as after any 503.
            if not begun:
                await problem_response(StorageUnavailable(), Request(scope))(scope, receive, send)
        except Exception as error:
            frames = "".join(traceback.format_tb(error.__traceback__))
            kind = type(error).__name__
            _log.error("unexpected %s\n%s", kind, frames, extra=event("unexpected", problem=kind))
            if begun:
                raise InternalError from None  # a broken answer must not look like a whole one
            await problem_response(InternalError(), Request(scope))(scope, receive, send)
