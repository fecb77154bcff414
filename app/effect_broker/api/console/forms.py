"""The forms of the console: each goes through the service behind the API's own route.

Every form answers with a redirect when it was taken, so that reloading sends nothing again, and
with itself, filled in, when it was not. The decision id is part of the form: the same form twice is
one decision.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final
from uuid import UUID

from fastapi import Request
from fastapi.responses import Response

from effect_broker.api.bodies import StatementBody, validated
from effect_broker.api.callers import known_id, services_of
from effect_broker.api.console import access
from effect_broker.api.console.access import PATH, Visit, read_form, require_token, visit_of
from effect_broker.api.console.answers import FIELDS, trouble_of
from effect_broker.api.console.logins import LoginLimit
from effect_broker.api.console.pages import show_effect, show_holds
from effect_broker.api.console.rendering import page, see_other
from effect_broker.api.console.views import (
    JudgeForm,
    ResolveForm,
    Trouble,
    effect_view,
    new_decision_id,
)
from effect_broker.clock import new_id
from effect_broker.holding import REASON_CHARS_MAX, HoldMissing, HoldScope, SubjectUnknown
from effect_broker.protocol import acknowledgement, wishes
from effect_broker.protocol.acknowledgement import Acknowledged, Acknowledgement
from effect_broker.protocol.ports import Change, Snapshot
from effect_broker.resolving import Recorded, Statement
from effect_contracts.canonical import JsonValue
from effect_contracts.errors import (
    AccessError,
    AnotherAlert,
    ConflictError,
    EffectError,
    InvalidRequest,
    NotFound,
    RequestReason,
)
from effect_contracts.facts import Alert
from effect_contracts.problem_codes import ProblemCode

_MOMENT: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)(?: ?(?:UTC|Z))?"
)
_DECISION_ID: Final = re.compile(r"[!-~]{1,255}")
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_VERSION: Final = re.compile(r"[1-9][0-9]{0,8}")
_NEXT: Final = re.compile(PATH + r"/(?:effects/[0-9a-f-]{36}|approvals|holds|health|)")
_TEXT_CHARS_MAX: Final = 255

_SAID: Final = {
    Recorded.NEW: "recorded",
    Recorded.STOOD: "stood",
    Recorded.PROPOSED: "proposed",
}

# After these the same decision id would mean another decision.
_NEW_DECISION: Final = {ProblemCode.STALE_VERSION, ProblemCode.DECISION_CONFLICT}


# Signing in ----------------------------------------------------------------------------------


async def login_page(request: Request) -> Response:
    """The form to sign in."""
    return _login(_next(request.query_params.get("next", "")))


async def login(request: Request) -> Response:
    """Begin a session of the API key that was typed."""
    fields = await read_form(request)
    limit: LoginLimit = request.app.state.console_logins
    limit.count(request.client.host if request.client else "")
    following = _next(fields.get("next", ""))
    session_id = await access.sign_in(request, fields.get("api_key", "").strip())
    if session_id is None:
        return _login(following, refused=True, status=401)
    response = see_other(following or f"{PATH}/")
    access.set_session(request, response, session_id)
    return response


async def logout(request: Request) -> Response:
    """End the session."""
    visit, _ = await _sent(request)
    await services_of(request).console.sessions.end(visit.session_id)
    response = see_other(f"{PATH}/login")
    access.drop_session(request, response)
    return response


def _login(following: str | None, *, refused: bool = False, status: int = 200) -> Response:
    content = {"following": following, "refused": refused}
    response = page("login", content, visit=None, status=status)
    if status == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="effect-broker"'
    return response


def _next(given: str) -> str | None:
    """Where to go after signing in: a page of the console, and nowhere else."""
    return given if _NEXT.fullmatch(given) else None


# Effects -------------------------------------------------------------------------------------


async def resolve(request: Request) -> Response:
    """Record what a person knows of an effect."""
    visit, fields = await _sent(request)
    effect_id = known_id(request.path_params["effect_id"])
    form = _resolve_form(fields)

    async def record() -> str:
        recorded = await services_of(request).resolving.resolve(
            visit.session.tenant.tenant_id, effect_id, _statement(form), visit.credential
        )
        return _SAID[recorded]

    return await _decided(request, visit, effect_id, record, resolving=form)


async def confirm(request: Request) -> Response:
    """Confirm what another person has concluded."""
    visit, fields = await _sent(request)
    effect_id = known_id(request.path_params["effect_id"])
    decision_id = _decision_id(fields)

    async def record() -> str:
        recorded = await services_of(request).resolving.confirm(
            visit.session.tenant.tenant_id, effect_id, decision_id, visit.credential
        )
        return "stood" if recorded is Recorded.STOOD else "confirmed"

    return await _decided(request, visit, effect_id, record)


async def judge(request: Request) -> Response:
    """Approve or deny an effect before its first attempt, by the hash of what was shown."""
    visit, fields = await _sent(request)
    effect_id = known_id(request.path_params["effect_id"])
    form = JudgeForm(_decision_id(fields), fields.get("reason", ""))
    verdict, request_hash = fields.get("verdict", ""), fields.get("request_hash", "")
    if verdict not in {"approve", "deny"} or not _HASH.fullmatch(request_hash):
        raise InvalidRequest(RequestReason.FORMAT, field="/request_hash")
    approved = verdict == "approve"

    async def record() -> str:
        created = await services_of(request).approving.decide(
            visit.session.tenant.tenant_id,
            effect_id,
            approved=approved,
            decision_id=form.decision_id,
            request_hash=bytes.fromhex(request_hash),
            reason=_reason(form.reason),
            credential=visit.credential,
        )
        return ("approved" if approved else "denied") if created else "stood"

    return await _decided(request, visit, effect_id, record, judging=form)


async def look(request: Request) -> Response:
    """Ask the broker to look now; it may be asked again after any error."""
    visit, _ = await _sent(request)
    effect_id = known_id(request.path_params["effect_id"])
    services = services_of(request)
    actor = f"operator:{visit.credential}"

    def plan(snapshot: Snapshot) -> Change[wishes.Granted]:
        return wishes.reconcile(snapshot, receipt_id=services.resolving.new_id(), actor=actor)

    store = services.resolving.store
    granted = await store.change(visit.session.tenant.tenant_id, effect_id, plan)
    return _done(request, visit, effect_id, "looking" if granted.changed else "no_look")


async def acknowledge(request: Request) -> Response:
    """Take note that the alert which was shown has been dealt with."""
    visit, fields = await _sent(request)
    effect_id = known_id(request.path_params["effect_id"])
    try:
        alert = Alert(fields.get("alert", ""))
    except ValueError:
        raise InvalidRequest(RequestReason.FORMAT, field="/alert") from None

    async def record() -> str:
        said = Acknowledgement(
            alert, _reason(fields.get("reason", "")), f"operator:{visit.credential}"
        )
        store = services_of(request).resolving.store
        became = await store.change(
            visit.session.tenant.tenant_id,
            effect_id,
            partial(acknowledgement.acknowledge, said=said),
        )
        if became is Acknowledged.ANOTHER_ALERT:
            raise AnotherAlert
        return "recorded" if became is Acknowledged.NEW else "stood"

    return await _decided(request, visit, effect_id, record)


async def _decided(
    request: Request,
    visit: Visit,
    effect_id: UUID,
    record: Callable[[], Awaitable[str]],
    *,
    resolving: ResolveForm | None = None,
    judging: JudgeForm | None = None,
) -> Response:
    """Record a decision and go on, or show the effect as it is now with the form and why not."""
    try:
        return _done(request, visit, effect_id, await record())
    except (ConflictError, AccessError, InvalidRequest) as refused:
        if isinstance(refused, NotFound):
            raise
        problem: EffectError = refused
    view = await effect_view(request, visit, effect_id)
    if problem.code in _NEW_DECISION:
        # What was concluded of another version has to be concluded anew.
        fresh, version = new_decision_id(), view.detail.intent.version
        if resolving is not None:
            resolving = replace(
                resolving, decision_id=fresh, expected_version=version, conclusion=""
            )
        if judging is not None:
            judging = replace(judging, decision_id=fresh)
    return show_effect(
        request,
        visit,
        view,
        resolving=resolving,
        judging=judging,
        trouble=trouble_of(problem),
        status=problem.status,
    )


def _done(request: Request, visit: Visit, effect_id: UUID, code: str) -> Response:
    response = see_other(f"{PATH}/effects/{effect_id}")
    access.set_flash(request, response, visit, code)
    return response


def _resolve_form(fields: Mapping[str, str]) -> ResolveForm:
    version = fields.get("expected_version", "")
    if not _VERSION.fullmatch(version):
        raise InvalidRequest(RequestReason.FORMAT, field="/expected_version")
    return ResolveForm(
        decision_id=_decision_id(fields),
        expected_version=int(version),
        **{
            name: fields.get(name, "").strip()
            for name in (
                "conclusion", "reason", "kind", "reference", "observed_at", "external_id",
            )
        },
    )  # fmt: skip


def _statement(form: ResolveForm) -> Statement:
    """Read a form as strictly as the API reads a body.

    Raises:
        InvalidRequest: names the field.
    """
    if not form.conclusion:
        raise InvalidRequest(RequestReason.MISSING, field="/conclusion")
    moment = _MOMENT.fullmatch(form.observed_at)
    if moment is None:
        raise InvalidRequest(RequestReason.FORMAT, field="/observed_at")
    item: dict[str, JsonValue] = {
        "kind": form.kind,
        "observed_at": f"{moment[1]}T{moment[2]}+00:00",
        "reference": form.reference,
    }
    body: dict[str, JsonValue] = {
        "decision_id": form.decision_id,
        "expected_version": form.expected_version,
        "conclusion": form.conclusion,
        "reason": form.reason,
        "evidence": [item],
    }
    if form.external_id:
        if form.conclusion != "committed":
            raise InvalidRequest(RequestReason.FORMAT, field="/external_id")
        body["external_id"] = form.external_id
    return validated(StatementBody, body).statement()


def _decision_id(fields: Mapping[str, str]) -> str:
    given = fields.get("decision_id", "")
    if not _DECISION_ID.fullmatch(given):
        raise InvalidRequest(RequestReason.FORMAT, field="/decision_id")
    return given


def _reason(text: str) -> str:
    reason = text.strip()
    if not 1 <= len(reason) <= REASON_CHARS_MAX:
        raise InvalidRequest(RequestReason.LENGTH, field="/reason")
    return reason


# Holds ---------------------------------------------------------------------------------------


async def place_hold(request: Request) -> Response:
    """Stop the dispatches of a tool, a contract version, or all of the tenant."""
    visit, fields = await _sent(request)
    tenant_id = visit.session.tenant.tenant_id
    try:
        scope, reason = _scope(tenant_id, fields), _reason(fields.get("reason", ""))
        placed = (
            await services_of(request)
            .holds(tenant_id)
            .place(new_id(), scope, reason, f"operator:{visit.credential}")
        )
    except InvalidRequest as refused:
        return await _not_held(request, visit, fields, trouble_of(refused))
    except SubjectUnknown:
        trouble = Trouble(
            "There is no contract of that name. Nothing was paused.",
            "Write the tool or the contract as the page of an effect shows it.",
            fields.get("subject"),
        )
        return await _not_held(request, visit, fields, trouble)
    code = "held" if placed.created else "held_before"
    return _held(request, visit, code if placed.effective else "held_soon")


async def lift_hold(request: Request) -> Response:
    """Let go on what a hold stops."""
    visit, fields = await _sent(request)
    try:
        hold_id = UUID(request.path_params["hold_id"])
        reason = _reason(fields.get("reason", ""))
        _, changed = (
            await services_of(request)
            .holds(visit.session.tenant.tenant_id)
            .lift(hold_id, reason, f"operator:{visit.credential}")
        )
    except InvalidRequest as refused:
        return await _not_held(request, visit, {}, trouble_of(refused))
    except (ValueError, HoldMissing):
        raise NotFound from None
    return _held(request, visit, "lifted" if changed else "lifted_before")


def _scope(tenant_id: UUID, fields: Mapping[str, str]) -> HoldScope:
    """Return what is to be stopped.

    Raises:
        InvalidRequest: it is not said.
    """
    tool, name, version = (fields.get(field, "").strip() for field in ("tool", "name", "version"))
    if max(len(tool), len(name), len(version)) > _TEXT_CHARS_MAX:
        raise InvalidRequest(RequestReason.LENGTH, field="/tool")
    match fields.get("subject"):
        case "all":
            return HoldScope(tenant_id)
        case "tool" if tool:
            return HoldScope(tenant_id, tool)
        case "contract" if name and version:
            return HoldScope(tenant_id, contract=(name, version))
        case _:
            raise InvalidRequest(RequestReason.MISSING, field="/subject")


async def _not_held(
    request: Request, visit: Visit, fields: Mapping[str, str], trouble: Trouble
) -> Response:
    kept = {
        k: v for k, v in fields.items() if k in {"subject", "tool", "name", "version", "reason"}
    }
    return await show_holds(request, visit, kept, trouble=trouble, status=422)


def _held(request: Request, visit: Visit, code: str) -> Response:
    response = see_other(f"{PATH}/holds")
    access.set_flash(request, response, visit, code)
    return response


async def _sent(request: Request) -> tuple[Visit, dict[str, str]]:
    """Return who has sent a form, and its fields.

    Raises:
        ForeignForm, NotSignedIn, Forbidden, StoreError, RequestMalformed, InvalidRequest.
    """
    fields = await read_form(request)
    setattr(request.state, FIELDS, fields)
    visit = await visit_of(request)
    require_token(visit, fields)
    return visit, fields
