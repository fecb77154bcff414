"""A small run in which all is well, and the pieces to make it otherwise."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from effect_chaos.records import (
    Answer,
    Arrival,
    Evidence,
    Invocation,
    Operation,
    Run,
    Safety,
    TableRow,
    TargetObject,
    Verb,
    digest_of,
    marker_of,
)

QUIET_AT = 10.0
Change = Callable[[Evidence], Evidence]


def operation(tenant: str, key: str, safety: Safety, **expected: Any) -> Operation:
    """One operation, with what identifies it."""
    marker = marker_of(tenant, key)
    digest = digest_of({"order": marker})
    return Operation(tenant, key, "tool", "charges", safety, marker, digest, **expected)


PAID = operation("a", "pay:1", Safety.IDEMPOTENT)
MAILED = operation("a", "mail:1", Safety.UNSAFE, may_park=True)
POSTED = operation("b", "pay:1", Safety.TRANSACTIONAL)
SHIPPED = operation("b", "ship:1", Safety.RECONCILABLE, legal_states=("failed_final",))
OPERATIONS = (PAID, MAILED, POSTED, SHIPPED)


def effect_id(of: Operation) -> str:
    return f"effect-{of.tenant}-{of.operation_key}"


def call(of: Operation, verb: Verb, at: float, answer: Answer | None, **more: Any) -> Invocation:
    """One call that took a tenth of a second."""
    if verb is Verb.SUBMIT:
        more = {"request_digest": of.request_digest, **more}
    else:
        more = {"effect_id": effect_id(of), **more}
    return Invocation(0, verb, of.tenant, of.operation_key, at, at + 0.1, answer, **more)


def shown(of: Operation, state: str, version: int, status: int = 200, **more: Any) -> Answer:
    """An effect as an answer shows it; it waits for a person where it neither ends nor acts."""
    final = state in ("succeeded", "failed_final", "cancelled", "compensated")
    acts = state in ("prepared", "dispatching")
    seen = {
        "final": final,
        "waits_for_person": not final and not acts,
        "next_action_at": "2030-01-01T00:00:00Z" if acts else None,
        "receipt_digest": receipt_digest(of) if final else None,
        **more,
    }
    return Answer(
        status,
        effect_id=effect_id(of),
        operation_key=of.operation_key,
        state=state,
        version=version,
        **seen,
    )


def receipt_digest(of: Operation) -> str:
    return hashlib.sha256(of.name.encode()).hexdigest()


def receipt(of: Operation, state: str, external_id: str | None, **more: Any) -> Answer:
    """A receipt as an answer shows it."""
    content = {
        "effect_id": effect_id(of),
        "operation_key": of.operation_key,
        "state": state,
        "receipt_digest": receipt_digest(of),
        "content": receipt_digest(of),
        "external_id": external_id,
        **more,
    }
    return Answer(200, **content)


def arrival(of: Operation, n: int, at: float, plan: str = "ok", **more: Any) -> Arrival:
    """One request of an operation at the target."""
    text = f'\n{{"order":"{of.marker}"}}'
    fields: dict[str, Any] = {
        "n": n,
        "kind": of.kind,
        "method": "POST",
        "path": "/objects/charges",
        "mutating": True,
        "received": True,
        "downstream_key": f"key-{of.tenant}-{of.operation_key}",
        "correlation_key": None,
        "body_digest": hashlib.sha256(text.encode()).hexdigest(),
        "text": text,
        "plan": plan,
        "received_monotonic": at,
        "received_at": at,
    }
    return Arrival(**{**fields, **more})


def target_object(of: Operation, n: int, arrival_n: int, **more: Any) -> TargetObject:
    """One effect of an operation at the target."""
    fields: dict[str, Any] = {
        "n": n,
        "kind": of.kind,
        "object_id": f"ch_{n}",
        "name": None,
        "downstream_key": f"key-{of.tenant}-{of.operation_key}",
        "correlation_key": None,
        "arrival_n": arrival_n,
        "item": None,
        "text": f'{{"order": "{of.marker}"}}',
        "committed_at": float(n),
    }
    return TargetObject(**{**fields, **more})


def row(of: Operation, external_id: str) -> TableRow:
    """One row of the transactional mutation."""
    return TableRow("entries", external_id, f"key-{of.tenant}-{of.operation_key}", of.marker)


def sound() -> Evidence:
    """Four effects, one of each class: a lost answer, a parked one, a row, and a refusal."""
    another = {"request_digest": digest_of({"order": "another"})}
    conflict = Answer(409, code="payload_conflict", effect_id=effect_id(PAID))
    history = [
        call(PAID, Verb.SUBMIT, 1.0, None),
        call(PAID, Verb.SUBMIT, 1.2, shown(PAID, "prepared", 1, 202)),
        call(PAID, Verb.GET, 1.4, shown(PAID, "dispatching", 2)),
        call(PAID, Verb.RECEIPT, 1.6, Answer(404, code="not_found")),
        call(PAID, Verb.GET, 3.0, shown(PAID, "succeeded", 5)),
        call(PAID, Verb.SUBMIT, 3.2, shown(PAID, "succeeded", 5)),
        call(PAID, Verb.SUBMIT, 3.4, conflict, **another),
        call(PAID, Verb.RECEIPT, 3.6, receipt(PAID, "succeeded", "ch_1")),
        call(MAILED, Verb.SUBMIT, 1.0, shown(MAILED, "prepared", 1, 202)),
        call(POSTED, Verb.SUBMIT, 1.0, shown(POSTED, "prepared", 1, 202)),
        call(SHIPPED, Verb.SUBMIT, 1.0, shown(SHIPPED, "prepared", 1, 202)),
        call(PAID, Verb.GET, 11.0, shown(PAID, "succeeded", 5)),
        call(MAILED, Verb.GET, 11.0, shown(MAILED, "outcome_unknown", 3)),
        call(POSTED, Verb.GET, 11.0, shown(POSTED, "succeeded", 3)),
        call(SHIPPED, Verb.GET, 11.0, shown(SHIPPED, "failed_final", 3)),
        call(PAID, Verb.RECEIPT, 11.5, receipt(PAID, "succeeded", "ch_1")),
        call(POSTED, Verb.RECEIPT, 11.5, receipt(POSTED, "succeeded", "77")),
        call(SHIPPED, Verb.RECEIPT, 11.5, receipt(SHIPPED, "failed_final", None)),
        call(PAID, Verb.LIST, 12.0, Answer(200, listed=(f"{effect_id(PAID)} pay:1",))),
    ]
    return Evidence(
        Run(7, 12.0, 0.0, QUIET_AT, 13.0, {"workers": 2}),
        OPERATIONS,
        tuple(replace(one, n=n) for n, one in enumerate(history, 1)),
        (
            arrival(PAID, 1, 1.3, "commit;RST"),
            arrival(PAID, 2, 2.0),
            arrival(MAILED, 3, 1.5, "status(429)"),
            arrival(MAILED, 4, 1.8, "commit;FIN"),
            arrival(SHIPPED, 5, 1.5, "status(422)"),
            arrival(SHIPPED, 6, 1.6, method="GET", mutating=False, body_digest="other"),
        ),
        (target_object(PAID, 1, 1), target_object(MAILED, 2, 4)),
        (row(POSTED, "77"),),
    )


# -- changes -------------------------------------------------------------------------------------


def calls_added(*added: Invocation) -> Change:
    return lambda evidence: replace(evidence, history=(*evidence.history, *added))


def arrivals_added(*added: Arrival) -> Change:
    return lambda evidence: replace(evidence, arrivals=(*evidence.arrivals, *added))


def objects_added(*added: TargetObject) -> Change:
    return lambda evidence: replace(evidence, objects=(*evidence.objects, *added))


def rows_added(*added: TableRow) -> Change:
    return lambda evidence: replace(evidence, rows=(*evidence.rows, *added))


def without_objects(of: Operation) -> Change:
    return lambda evidence: replace(
        evidence, objects=tuple(o for o in evidence.objects if of.marker not in o.text)
    )


def without_calls(of: Operation, verb: Verb, after: float = 0.0) -> Change:
    def apply(evidence: Evidence) -> Evidence:
        def goes(one: Invocation) -> bool:
            about = (one.tenant, one.operation_key) == (of.tenant, of.operation_key)
            return about and one.verb is verb and one.began_at >= after

        return replace(evidence, history=tuple(c for c in evidence.history if not goes(c)))

    return apply


def expecting(of: Operation, **expected: Any) -> Change:
    def apply(evidence: Evidence) -> Evidence:
        changed = tuple(
            replace(o, **expected) if o.name == of.name else o for o in evidence.operations
        )
        return replace(evidence, operations=changed)

    return apply


def both(*changes: Change) -> Change:
    def apply(evidence: Evidence) -> Evidence:
        for change in changes:
            evidence = change(evidence)
        return evidence

    return apply
