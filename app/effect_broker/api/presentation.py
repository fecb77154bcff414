"""How effects look from outside: one shape for every answer and every listing."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from effect_broker.protocol.ports import AttemptRow, Intent
from effect_broker.protocol.resolution import Permitted
from effect_broker.reading import EffectDetail
from effect_broker.unresolved import LastEvidence, NextStep, UnresolvedEffect, UnresolvedPage
from effect_contracts.facts import EffectState, SafetyClass
from effect_contracts.life import is_final

# What a caller may conclude, in words; the README's guarantee table says the same at length.
GUARANTEES = {
    SafetyClass.TRANSACTIONAL: "exactly one committed effect per operation key",
    SafetyClass.IDEMPOTENT: "one observable effect while the target's contract holds",
    SafetyClass.RECONCILABLE: "one effect if the target's look-up is truthful and bounded",
    SafetyClass.UNSAFE: "no duplicate from the broker; an omission is possible",
}


def moment(at: datetime | None) -> str | None:
    """Return a moment as RFC 3339 text."""
    return at.isoformat() if at else None


def intent_body(intent: Intent) -> dict[str, Any]:
    """Return what is known of an intent from its own row."""
    path = f"/v1/effects/{intent.effect_id}"
    return {
        "effect_id": str(intent.effect_id),
        "operation_key": intent.operation_key,
        "tool": intent.tool,
        "contract": {"name": intent.contract_name, "version": intent.contract_version},
        "request_hash": intent.request_hash.hex(),
        "safety": intent.safety.value,
        "guarantee": GUARANTEES[intent.safety],
        "state": intent.state.value,
        "final": is_final(intent.state),
        "reason": intent.reason,
        "version": intent.version,
        "next_action_at": moment(intent.next_action_at),
        "created_at": moment(intent.created_at),
        "updated_at": moment(intent.updated_at),
        "links": {"self": path, "receipt": f"{path}/receipt"},
    }


def attempt_body(row: AttemptRow) -> dict[str, Any]:
    """Return one attempt; `outcome` is null while it is open."""
    fact = row.fact
    return {
        "ordinal": fact.ordinal,
        "started_at": moment(fact.started_at),
        "deadline_at": moment(fact.deadline_at),
        "recorded_at": moment(fact.recorded_at),
        "outcome": fact.outcome.value if fact.outcome else None,
        "code": fact.code,
        "external_id": fact.external_id,
        "executor_id": row.executor_id,
    }


def effect_body(detail: EffectDetail, *, attempts: bool) -> dict[str, Any]:
    """Return an effect as it stands, with its attempts if asked for."""
    body = intent_body(detail.intent)
    body["waits_for_person"] = detail.parked
    body["alert"] = detail.alert.value if detail.alert else None
    body["requested_by"] = detail.requested_by
    body["trace_id"] = detail.trace_id
    body["preview"] = dict(detail.preview)
    body["receipt_digest"] = detail.receipt_digest.hex() if detail.receipt_digest else None
    body["now"] = moment(detail.now)
    body |= links_body(detail)
    if attempts:
        body["attempts"] = [attempt_body(row) for row in detail.attempts]
    return body


def links_body(detail: EffectDetail) -> dict[str, Any]:
    """Return what an effect is to others, and they to it.

    `classification` is of a failed parent whose children are all settled: it says what was done
    all the same.
    """
    links = detail.links
    children = links.children
    told = None
    if children is not None:
        told = {
            "total": children.total,
            "settled": children.settled,
            "succeeded": children.succeeded,
            "failed": children.failed,
            "unresolved": children.unresolved,
            "outcome": children.outcome,
        }
    failed = detail.intent.state is EffectState.FAILED_FINAL
    outcome = None if children is None else children.outcome
    undoing = links.compensated_by
    return {
        "parent_effect_id": None if links.parent_id is None else str(links.parent_id),
        "compensates": None if links.compensates_id is None else str(links.compensates_id),
        "compensated_by": (
            None if undoing is None else {"effect_id": str(undoing[0]), "state": undoing[1].value}
        ),
        "children": told,
        "classification": f"children_{outcome}" if failed and outcome else None,
    }


def committed_body(intent: Intent) -> dict[str, Any]:
    """Return an effect of which only the row is known that a submit has committed or met.

    For the outage between the commit and the answer: what the row does not tell is null, and so
    is `now`, by which a reader knows such an answer.
    """
    unknown = (
        "alert", "requested_by", "trace_id", "preview", "receipt_digest", "now",
        "parent_effect_id", "compensates", "compensated_by", "children", "classification",
    )  # fmt: skip
    body = intent_body(intent) | dict.fromkeys(unknown)
    # An open effect without a next action is one that waits for a person, and no other.
    waits = intent.next_action_at is None and not is_final(intent.state)
    return body | {"waits_for_person": waits}


# What waits -----------------------------------------------------------------------------------


def unresolved_page_body(page: UnresolvedPage) -> dict[str, Any]:
    """Return a page, for the API and the command line."""
    return {"unresolved": [unresolved_body(row) for row in page.effects], "cursor": page.cursor}


def unresolved_body(row: UnresolvedEffect) -> dict[str, Any]:
    """Return one unresolved effect."""
    intent = row.intent
    path = f"/v1/effects/{intent.effect_id}"
    left = row.key_expires_in_seconds
    return {
        "effect_id": str(intent.effect_id),
        "operation_key": intent.operation_key,
        "tenant": row.tenant,
        "tool": intent.tool,
        "contract": {"name": intent.contract_name, "version": intent.contract_version},
        "safety": intent.safety.value,
        "state": intent.state.value,
        "reason": row.reasons[0],
        "reasons": list(row.reasons),
        "waits_for_person": row.parked,
        "alert": row.alert.value if row.alert else None,
        "created_at": moment(intent.created_at),
        "age_seconds": round(row.age_seconds, 3),
        "key_expires_at": moment(row.key_expires_at),
        "key_expires_in_minutes": None if left is None else round(left / 60, 1),
        "last_evidence": _evidence_body(row.last_evidence),
        "next_action": _step_body(row.next_step),
        "permitted_resolutions": [_permitted_body(one, row) for one in row.permitted],
        "version": intent.version,
        "now": moment(row.now),
        "links": {"self": path, "resolve": f"{path}/resolve"},
    }


def _evidence_body(evidence: LastEvidence | None) -> dict[str, Any] | None:
    if evidence is None:
        return None
    return {
        "source": evidence.source,
        "says": evidence.says,
        "code": evidence.code,
        "at": moment(evidence.at),
    }


def _step_body(step: NextStep | None) -> dict[str, Any] | None:
    return None if step is None else {"step": step.step.value, "at": moment(step.at)}


def _permitted_body(permitted: Permitted, row: UnresolvedEffect) -> dict[str, Any]:
    after = permitted.observed_after
    return {
        "conclusion": permitted.conclusion.value,
        "observed_after": moment(after),
        "possible_now": after is None or after < row.now,
    }
