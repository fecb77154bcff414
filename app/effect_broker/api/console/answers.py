"""From what goes wrong to a page that says what to do: the one boundary of the console's errors.

As everywhere, no text of a foreign exception reaches a page or a log.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import wraps
from typing import Final, TypeAlias

from fastapi import Request
from fastapi.responses import Response
from starlette.requests import ClientDisconnect

from effect_broker.api.bodies import BODY_LEFT
from effect_broker.api.console import words
from effect_broker.api.console.access import PATH, ForeignForm, NotSignedIn
from effect_broker.api.console.rendering import page, see_other
from effect_broker.api.console.views import Trouble
from effect_broker.api.problems import translated
from effect_broker.log_events import event
from effect_contracts.errors import (
    EffectError,
    Forbidden,
    InternalError,
    InvalidRequest,
    NotFound,
    RateLimited,
    RequestMalformed,
    RequestReason,
    StorageUnavailable,
    TenantDisabled,
)
from effect_contracts.problem_codes import ProblemCode

_log = logging.getLogger(__name__)

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]

# Where the fields of a form are kept while it is worked on, so that nobody has to write twice.
FIELDS: Final = "console_fields"

_FIELD_TITLES: Final = {
    "conclusion": "What do you know?",
    "reason": "Why",
    "reference": "Where it can be seen again",
    "observed_at": "When you began to look",
    "external_id": "The target's id",
    "kind": "What you looked at",
}


def answered(endpoint: Endpoint) -> Endpoint:
    """Return the endpoint with every error as a page."""

    @wraps(endpoint)
    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ClientDisconnect:
            raise
        except NotSignedIn:
            return _signed_out(request)
        except ForeignForm:
            return error_page(
                "This form was not sent by a page of this console. Nothing was done.",
                "Open the page again and send its form. If that does not help, the console is "
                "behind a proxy that hides its own name: set EFFECT_BROKER_CONSOLE_ORIGIN.",
                403,
            )
        except Exception as error:
            return _answer(request, error)

    return answer


def error_page(what: str, advice: str, status: int) -> Response:
    """Return a page that says what is wrong and what to do."""
    return page("error", {"what": what, "advice": advice}, visit=None, status=status)


def _signed_out(request: Request) -> Response:
    if request.method in {"GET", "HEAD"}:
        where = request.url.path
        return see_other(f"{PATH}/login" + (f"?next={where}" if where != f"{PATH}/" else ""))
    fields: Mapping[str, str] = getattr(request.state, FIELDS, {})
    content = {"reason": fields.get("reason", ""), "reference": fields.get("reference", "")}
    response = page("ended", content, visit=None, status=401)
    response.headers["WWW-Authenticate"] = 'Bearer realm="effect-broker"'
    return response


def _answer(request: Request, error: Exception) -> Response:
    known = translated(error)
    if isinstance(known, InternalError) and not isinstance(error, EffectError):
        frames = "".join(traceback.format_tb(error.__traceback__))
        kind = type(error).__name__
        _log.error("unexpected %s\n%s", kind, frames, extra=event("unexpected", problem=kind))
    elif isinstance(known, StorageUnavailable) and not isinstance(error, EffectError):
        kind = type(error).__name__
        _log.warning("%s: %s", kind, error, extra=event("request_failed", problem=kind))
    fields: Mapping[str, str] = getattr(request.state, FIELDS, {})
    if request.method == "POST" and fields and known.status >= 500:
        # Whether it was recorded is not known. The same form again is the same decision.
        content = {"fields": fields, "action": request.url.path}
        response = page("again", content, visit=None, status=known.status)
    else:
        response = error_page(*_words(known), known.status)
    if known.retry_after_seconds is not None:
        response.headers["Retry-After"] = str(known.retry_after_seconds)
    if getattr(request.state, BODY_LEFT, False):
        response.headers["Connection"] = "close"
    return response


def _words(error: EffectError) -> tuple[str, str]:
    match error:
        case NotFound():
            return ("There is no such page or effect.", "It may belong to another tenant.")
        case Forbidden():
            return (
                "This API key may not operate.",
                "Sign in with a key that has the scopes `read` and `operate`: "
                "`effect-broker keys create --tenant NAME --scope read --scope operate`.",
            )
        case TenantDisabled():
            return (
                "This tenant is disabled.",
                "`effect-broker tenants enable NAME` enables it again.",
            )
        case RateLimited():
            return ("Too many tries to sign in.", f"Try again in {error.retry_after_seconds} s.")
        case RequestMalformed():
            return ("The request cannot be read.", "Begin again on the first page.")
        case StorageUnavailable():
            return (
                "The database does not answer.",
                "Nothing is lost by that. Load the page again in some seconds; "
                "`effect-broker doctor` says more.",
            )
        case _:
            return (error.detail, "Nothing was changed. Begin again on the first page.")


def trouble_of(error: EffectError) -> Trouble:
    """Return why a decision was not taken and what to do, in the words of the form."""
    match error.code:
        case ProblemCode.STALE_VERSION:
            return Trouble(
                "It has changed while you were looking. Nothing was recorded.",
                "The page shows it as it is now. Read the timeline again, then decide anew; what "
                "you have written is still in the form.",
            )
        case ProblemCode.TOO_EARLY:
            moment = words.clock(datetime.fromisoformat(str(error.extras["not_before"])))
            return Trouble(
                "You looked too early. Nothing was recorded.",
                "The target may have changed after your look, or what you saw is older than this "
                f"effect. Look at the target again, beginning after {moment}, and record that.",
                "observed_at",
            )
        case ProblemCode.DECISION_CONFLICT:
            return Trouble(
                "This form was sent before, with other words. Those stand; these changed nothing.",
                "See in the timeline what was recorded. If you want to say more, send the form "
                "again: it is a new decision now.",
            )
        case ProblemCode.SECOND_PERSON_REQUIRED:
            return Trouble(
                "This takes another person. Nothing was changed.",
                "Whoever submitted or proposed it cannot be the one who agrees. Ask another "
                "operator, with a key of their own, to open this page.",
            )
        case ProblemCode.ANOTHER_REQUEST:
            return Trouble(
                "The effect stands for another request than the one that you have read.",
                "Nothing was changed. Read the arguments again, and decide on what they say.",
            )
        case ProblemCode.ANOTHER_ALERT:
            return Trouble(
                "It has another alert by now. Nothing was changed.",
                "The page shows it. Look at the target again before you say that it is done.",
            )
        case ProblemCode.ILLEGAL_TRANSITION:
            return Trouble(
                "It does not permit this as it stands now. Nothing was recorded.",
                "The page shows it as it is now, with what can be recorded and why not.",
            )
        case _ if isinstance(error, InvalidRequest):
            return _field_trouble(error)
        case _:
            return Trouble(error.detail, "Nothing was changed.")


def _field_trouble(error: InvalidRequest) -> Trouble:
    name = (error.field or "").rpartition("/")[2]
    if name == "evidence":  # of its members only this one can be left out
        name = "observed_at" if error.reason is RequestReason.FUTURE else "reference"
    title = _FIELD_TITLES.get(name, name)
    if error.reason is RequestReason.FUTURE:
        advice = "That moment has not come yet. Times are in UTC."
    elif name == "observed_at":
        advice = "Write it as 2026-11-30 03:12:05, in UTC."
    elif name == "conclusion":
        advice = "Choose one."
    elif error.reason is RequestReason.LENGTH:
        advice = "Fill it in, and keep it short (a reason has 2000 characters at most)."
    elif name == "external_id":
        advice = "Leave it empty unless it happened; it holds printable characters only."
    else:
        advice = "Fill it in as the form says."
    return Trouble(f"“{title}” is missing or cannot be used. Nothing was recorded.", advice, name)
