"""The pages of the console that only read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from fastapi import Request
from fastapi.responses import Response

from effect_broker.api.callers import known_id, services_of
from effect_broker.api.console import words
from effect_broker.api.console.access import PATH, Visit, drop_flash, take_flash, visit_of
from effect_broker.api.console.rendering import page, see_other
from effect_broker.api.console.views import (
    EVIDENCE_KINDS,
    EffectView,
    JudgeForm,
    ResolveForm,
    Trouble,
    effect_view,
    new_decision_id,
    new_resolve_form,
    proposal_of,
)
from effect_broker.console import COUNTED_MAX, LISTED_MAX
from effect_broker.holding import HoldRecord
from effect_broker.reading import CursorInvalid, EffectFilter
from effect_broker.unresolved import REASONS, UnresolvedEffect, UnresolvedFilter
from effect_contracts.counting import span
from effect_contracts.decide import Reason
from effect_contracts.errors import RequestMalformed

_PAGE_ROWS: Final = 50
_TEXT_CHARS_MAX: Final = 255
_KEY: Final = re.compile(r"[!-~]{1,255}")

# What forms leave for the next page, by its code.
SAID: Final[Mapping[str, str]] = {
    "recorded": "Recorded. The page shows the effect as it is now.",
    "stood": "This was recorded already. Nothing was changed by sending it again.",
    "proposed": "Recorded as a proposal. It counts once another operator has confirmed it.",
    "confirmed": "Confirmed. The page shows the effect as it is now.",
    "approved": "Approved. It is sent as soon as a worker takes it up.",
    "denied": "Denied. It is withdrawn and will not be sent.",
    "looking": "Asked for a look now. Load the page again in some seconds.",
    "no_look": "A look would tell nothing new: only a person or new evidence can, or it is due.",
    "held": "Paused. Nothing more is sent in this scope.",
    "held_soon": "Paused. One process has not noticed yet and may still send for some seconds; "
    "send the form again to be sure.",
    "held_before": "It was paused already. Nothing was changed.",
    "lifted": "Lifted. What it stopped goes on by itself.",
    "lifted_before": "It was lifted already. Nothing was changed.",
}


async def queue(request: Request) -> Response:
    """What waits, the most urgent first."""
    visit = await visit_of(request)
    reason, tool = _text(request, "reason"), _text(request, "tool")
    if reason is not None and reason not in REASONS:
        raise RequestMalformed(parameter="reason")
    filters = UnresolvedFilter(reason=reason, tool=tool)
    tenant_id = visit.session.tenant.tenant_id
    services = services_of(request)
    try:
        found = await services.unresolved.unresolved(
            tenant_id, filters, _text(request, "cursor"), _PAGE_ROWS
        )
    except CursorInvalid:
        raise RequestMalformed(parameter="cursor") from None
    counts = await services.console.reads.queue(tenant_id)
    health = await services.health()
    content = {
        "rows": [_row(row) for row in found.effects],
        "cursor": found.cursor,
        "reason": reason,
        "tool": tool,
        "reasons": sorted(REASONS),
        "first": request.query_params.get("cursor") is None,
        "counts": counts,
        "health": health,
    }
    return _shown(request, visit, "queue", content)


def _row(row: UnresolvedEffect) -> dict[str, Any]:
    return {
        "row": row,
        "state": words.STATES[row.intent.state],
        "said": words.words(row.reasons[0]),
        "expiry": words.expiry(row),
        "age": span(row.age_seconds),
        "learned": words.learned(row.last_evidence, row.now),
        "following": words.step(
            row.next_step, row.reasons[0], alert=row.alert is not None, now=row.now
        ),
        # A person is needed: nothing happens by itself.
        "person": row.next_step is None,
    }


async def search(request: Request) -> Response:
    """Effects by operation key, or by effect id."""
    visit = await visit_of(request)
    wanted = (_text(request, "key") or "").strip()
    try:
        return see_other(f"{PATH}/effects/{UUID(wanted)}")
    except ValueError:
        pass
    effects: tuple[Any, ...] = ()
    more = False
    if _KEY.fullmatch(wanted):
        found = await services_of(request).reads.effects(
            visit.session.tenant.tenant_id,
            EffectFilter(operation_prefix=wanted),
            None,
            _PAGE_ROWS,
        )
        effects, more = found.effects, found.cursor is not None
        if len(effects) == 1 and effects[0].intent.operation_key == wanted:
            return see_other(f"{PATH}/effects/{effects[0].intent.effect_id}")
    rows = [{"detail": detail, "state": words.STATES[detail.intent.state]} for detail in effects]
    return _shown(request, visit, "search", {"key": wanted, "rows": rows, "more": more})


async def effect(request: Request) -> Response:
    """One effect: what it is, what can be done, and how it came to be so."""
    visit = await visit_of(request)
    view = await effect_view(request, visit, known_id(request.path_params["effect_id"]))
    return show_effect(request, visit, view)


def show_effect(
    request: Request,
    visit: Visit,
    view: EffectView,
    *,
    resolving: ResolveForm | None = None,
    judging: JudgeForm | None = None,
    trouble: Trouble | None = None,
    status: int = 200,
) -> Response:
    """Return the page of an effect, with a form as it was filled in and why it was not taken."""
    content = {
        "view": view,
        "intent": view.detail.intent,
        "now": view.detail.now,
        "form": resolving or new_resolve_form(view),
        "judging": judging or JudgeForm(new_decision_id()),
        "trouble": trouble,
        "trouble_at": "judge" if judging else "resolve" if resolving else "page",
        "kinds": EVIDENCE_KINDS,
        "outcomes": words.OUTCOMES,
        "verdicts": words.VERDICTS,
        "sources": words.SOURCES,
    }
    return _shown(request, visit, "effect", content, status)


async def approvals(request: Request) -> Response:
    """What waits for a yes or no, and what waits for a second person."""
    visit = await visit_of(request)
    tenant_id = visit.session.tenant.tenant_id
    services = services_of(request)
    waiting = await services.reads.effects(
        tenant_id,
        EffectFilter(reason=Reason.AWAITING_APPROVAL.value, unresolved=True),
        None,
        LISTED_MAX,
    )
    proposals = await services.console.reads.proposals(tenant_id)
    content = {
        "waiting": waiting.effects,
        "more": waiting.cursor is not None,
        "proposals": [
            {"effect": one, "proposal": proposal_of(one.proposal, one.version, visit)}
            for one in proposals
        ],
    }
    return _shown(request, visit, "approvals", content)


async def holds(request: Request) -> Response:
    """What stops dispatches, and the forms to pause and to lift."""
    visit = await visit_of(request)
    given = {"subject": "tool", "tool": _text(request, "tool") or ""}
    return await show_holds(request, visit, given)


async def show_holds(
    request: Request,
    visit: Visit,
    given: Mapping[str, str],
    *,
    trouble: Trouble | None = None,
    status: int = 200,
) -> Response:
    """Return the page of the holds, with a form as it was filled in and why it was not taken."""
    listing = services_of(request).holds(visit.session.tenant.tenant_id).listing
    records = await listing(lifted=True, limit=LISTED_MAX)
    standing = [record for record in records if record.lifted_at is None]
    if len(records) == LISTED_MAX:
        # The newest are not all: what is in force must not be hidden by what was lifted.
        standing = list(await listing(lifted=False, limit=LISTED_MAX))
    content = {
        "standing": [{"hold": one, "subject": subject(one)} for one in standing],
        "past": [{"hold": r, "subject": subject(r)} for r in records if r.lifted_at is not None],
        "given": {"subject": "", "tool": "", "name": "", "version": "", "reason": "", **given},
        "trouble": trouble,
    }
    return _shown(request, visit, "holds", content, status)


def subject(record: HoldRecord) -> str:
    """Return what a hold stops."""
    scope = record.scope
    whose = "of every tenant" if scope.tenant_id is None else "of this tenant"
    if scope.tool is not None:
        return f"tool {scope.tool} {whose}"
    if scope.contract is not None:
        return f"contract {scope.contract[0]} {scope.contract[1]} {whose}"
    return f"everything {whose}"


async def health(request: Request) -> Response:
    """Whether submits are accepted, who works, and how the queue stands."""
    visit = await visit_of(request)
    services = services_of(request)
    content = {
        "health": await services.health(),
        "checks": words.CHECKS,
        "workers": await services.console.reads.workers(),
        "counts": await services.console.reads.queue(visit.session.tenant.tenant_id),
        "counted_max": COUNTED_MAX,
    }
    return _shown(request, visit, "health", content)


def _shown(
    request: Request, visit: Visit, name: str, content: Mapping[str, Any], status: int = 200
) -> Response:
    """Return a page, with the word that the last form has left."""
    code = take_flash(request, visit)
    response = page(
        name, content, visit=visit, status=status, flash=SAID.get(code) if code else None
    )
    if code is not None:
        drop_flash(request, response)
    return response


def _text(request: Request, name: str) -> str | None:
    """Return a query parameter; an empty one is none.

    Raises:
        RequestMalformed: it cannot be looked for.
    """
    value = request.query_params.get(name) or None
    if value is not None and (len(value) > _TEXT_CHARS_MAX or "\x00" in value):
        raise RequestMalformed(parameter=name)
    return value
