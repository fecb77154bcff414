"""Every rule of the auditor, on small folders: it lets a sound run pass, and sees its own fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from auditor.story import (
    MAILED,
    PAID,
    POSTED,
    SHIPPED,
    Change,
    arrival,
    arrivals_added,
    both,
    call,
    calls_added,
    effect_id,
    expecting,
    objects_added,
    operation,
    receipt,
    row,
    rows_added,
    shown,
    sound,
    target_object,
    without_calls,
    without_objects,
)
from effect_chaos.auditor import RULES, audit, violations
from effect_chaos.auditor.verdicts import Verdict
from effect_chaos.records import Answer, Evidence, Safety, Verb, digest_of

# What is wrong, by rule: each case is the sound run with one change.
WRONG: dict[str, dict[str, Change]] = {
    "evidence": {
        "nothing at all": lambda e: replace(
            e, operations=(), history=(), arrivals=(), objects=(), rows=()
        ),
        "nothing acknowledged": lambda e: replace(
            e, history=tuple(replace(c, answer=None) for c in e.history)
        ),
        "nothing at the target": lambda e: replace(e, arrivals=(), rows=()),
        "one operation twice": lambda e: replace(e, operations=(*e.operations, PAID)),
    },
    "kept": {
        "not found": calls_added(call(PAID, Verb.GET, 5.0, Answer(404))),
        "accepted as new again": calls_added(
            call(SHIPPED, Verb.SUBMIT, 5.0, shown(SHIPPED, "prepared", 1, 202))
        ),
    },
    "one_effect": {
        "a second id": calls_added(
            call(
                PAID,
                Verb.SUBMIT,
                5.0,
                replace(shown(PAID, "succeeded", 5), effect_id="another"),
            )
        ),
        "another key in the answer": calls_added(
            call(
                PAID,
                Verb.SUBMIT,
                5.0,
                replace(shown(PAID, "succeeded", 5), operation_key="pay:2"),
            )
        ),
        "another id than was asked for": calls_added(
            call(PAID, Verb.GET, 5.0, shown(PAID, "succeeded", 5), effect_id="another")
        ),
        "an id of two operations": calls_added(
            call(
                MAILED,
                Verb.SUBMIT,
                5.0,
                replace(shown(MAILED, "outcome_unknown", 3), effect_id=effect_id(PAID)),
            )
        ),
    },
    "settled_or_parked": {
        "still open": calls_added(call(MAILED, Verb.GET, 11.2, shown(MAILED, "dispatching", 4))),
        "not looked at since the quiet": without_calls(POSTED, Verb.GET),
        "acknowledged and never shown": both(
            without_calls(POSTED, Verb.GET),
            without_calls(POSTED, Verb.SUBMIT),
            calls_added(call(POSTED, Verb.SUBMIT, 1.0, Answer(202, effect_id=effect_id(POSTED)))),
        ),
    },
    "next_action": {
        "open without one": calls_added(
            call(PAID, Verb.GET, 1.5, shown(PAID, "dispatching", 2, next_action_at=None))
        ),
    },
    "legal_outcome": {
        "another end": expecting(SHIPPED, legal_states=("succeeded",)),
        "parked": expecting(MAILED, may_park=False),
    },
    "receipt_with_end": {
        "success without": calls_added(
            call(PAID, Verb.GET, 5.0, shown(PAID, "succeeded", 5, receipt_digest=None))
        ),
        "a receipt of an open effect": calls_added(
            call(MAILED, Verb.GET, 5.0, shown(MAILED, "outcome_unknown", 3, receipt_digest="d"))
        ),
        "settled and not found": calls_added(call(PAID, Verb.RECEIPT, 5.0, Answer(404))),
        "another state": calls_added(
            call(PAID, Verb.RECEIPT, 5.0, receipt(PAID, "failed_final", None))
        ),
        "before the end": calls_added(
            call(PAID, Verb.RECEIPT, 1.25, receipt(PAID, "succeeded", "ch_1"))
        ),
    },
    "receipt_stays": {
        "another digest": calls_added(
            call(PAID, Verb.RECEIPT, 5.0, receipt(PAID, "succeeded", "ch_1", receipt_digest="d"))
        ),
        "another content": calls_added(
            call(PAID, Verb.RECEIPT, 5.0, receipt(PAID, "succeeded", "ch_1", content="c"))
        ),
        "another key": calls_added(
            call(PAID, Verb.RECEIPT, 5.0, receipt(PAID, "succeeded", "ch_1", operation_key="k"))
        ),
        "another effect": calls_added(
            call(PAID, Verb.RECEIPT, 5.0, receipt(PAID, "succeeded", "ch_1", effect_id="e"))
        ),
        "another digest in the effect": calls_added(
            call(PAID, Verb.GET, 5.0, shown(PAID, "succeeded", 5, receipt_digest="d"))
        ),
    },
    "final_stays": {
        "open again": calls_added(call(PAID, Verb.GET, 5.0, shown(PAID, "dispatching", 6))),
        "another end": calls_added(call(PAID, Verb.GET, 5.0, shown(PAID, "failed_final", 6))),
        "an end that is none": calls_added(
            call(PAID, Verb.GET, 1.5, shown(PAID, "dispatching", 2, final=True))
        ),
    },
    "versions_forward": {
        "backwards": calls_added(call(PAID, Verb.GET, 5.0, shown(PAID, "succeeded", 4))),
        "two states of one version": calls_added(
            call(PAID, Verb.GET, 1.5, shown(PAID, "prepared", 2))
        ),
    },
    "payload_conflict": {
        "accepted": calls_added(
            call(PAID, Verb.SUBMIT, 5.0, shown(PAID, "succeeded", 5), request_digest="other")
        ),
        "refused in other words": calls_added(
            call(PAID, Verb.SUBMIT, 5.0, Answer(422), request_digest="other")
        ),
        "an honest replay is refused": calls_added(
            call(PAID, Verb.SUBMIT, 5.0, Answer(409, code="payload_conflict"))
        ),
        "a conflict with nothing": both(
            without_calls(SHIPPED, Verb.SUBMIT),
            calls_added(call(SHIPPED, Verb.SUBMIT, 5.0, Answer(409, code="payload_conflict"))),
        ),
    },
    "tenants_apart": {
        "read": calls_added(
            call(PAID, Verb.GET, 5.0, shown(POSTED, "succeeded", 3), effect_id=effect_id(POSTED))
        ),
        "named in a refusal": calls_added(
            call(SHIPPED, Verb.SUBMIT, 5.0, Answer(409, effect_id=effect_id(PAID)))
        ),
        "listed": calls_added(
            call(PAID, Verb.LIST, 5.0, Answer(200, listed=(f"{effect_id(POSTED)} pay:1",)))
        ),
    },
    "no_duplicate": {
        "two objects": objects_added(target_object(PAID, 3, 2)),
        "two rows": rows_added(row(POSTED, "78")),
        "one where none is allowed": expecting(MAILED, effects_most=0),
        "two at a liar, and nobody says so": both(
            expecting(PAID, duplicate_reported=True), objects_added(target_object(PAID, 3, 2))
        ),
    },
    "state_agrees": {
        "success without an object": without_objects(PAID),
        "success without a row": lambda e: replace(e, rows=()),
        "failure with an object": objects_added(target_object(SHIPPED, 3, 5)),
    },
    "own_object": {
        "one that does not exist": calls_added(
            call(PAID, Verb.RECEIPT, 5.0, receipt(PAID, "succeeded", "ch_9"))
        ),
        "another operation's": calls_added(
            call(PAID, Verb.RECEIPT, 5.0, receipt(PAID, "succeeded", "ch_2"))
        ),
        "none": calls_added(call(PAID, Verb.RECEIPT, 5.0, receipt(PAID, "succeeded", None))),
    },
    "one_key": {
        "another": arrivals_added(arrival(PAID, 9, 2.5, downstream_key="new")),
        "none": arrivals_added(arrival(PAID, 9, 2.5, downstream_key=None)),
    },
    "same_bytes": {
        "another body": arrivals_added(arrival(PAID, 9, 2.5, body_digest="new")),
        "another path": arrivals_added(arrival(PAID, 9, 2.5, path="/objects/refunds")),
    },
    "keys_apart": {
        "at the target": arrivals_added(
            arrival(SHIPPED, 9, 2.5, downstream_key=arrival(PAID, 1, 1.0).downstream_key)
        ),
        "in the table": rows_added(
            replace(row(POSTED, "78"), downstream_key=arrival(PAID, 1, 1.0).downstream_key)
        ),
    },
    "unsafe_once": {
        "sent again": arrivals_added(arrival(MAILED, 9, 2.5)),
        "sent again after a refusal that did commit": arrivals_added(
            arrival(MAILED, 9, 2.5, "commit;status(429)")
        ),
        "sent again after another status": expecting(MAILED, refusing_statuses=()),
    },
    "intent_first": {
        "before the submit": arrivals_added(arrival(POSTED, 9, 0.5)),
        "of no operation": arrivals_added(arrival(operation("c", "x", Safety.UNSAFE), 9, 2.5)),
        "an object of none": objects_added(target_object(operation("c", "x", Safety.UNSAFE), 9, 2)),
        "a row of none": rows_added(row(operation("c", "x", Safety.TRANSACTIONAL), "9")),
        "after a refused submit": both(
            without_calls(SHIPPED, Verb.SUBMIT),
            calls_added(call(SHIPPED, Verb.SUBMIT, 1.0, Answer(422))),
        ),
    },
}

# What looks wrong and is not: each case is the sound run with one change.
RIGHT: dict[str, Change] = {
    "answers that overtake each other": calls_added(
        replace(call(PAID, Verb.GET, 1.15, shown(PAID, "prepared", 1)), ended_at=4.0),
    ),
    "a duplicate at a liar, with an alert": both(
        expecting(PAID, duplicate_reported=True),
        objects_added(target_object(PAID, 3, 2)),
        calls_added(
            call(PAID, Verb.GET, 12.0, shown(PAID, "succeeded", 6, alerts=("duplicate_detected",)))
        ),
    ),
    "a success that the target drops": both(
        expecting(PAID, effects_least=0), without_objects(PAID)
    ),
    "a batch of two": both(
        expecting(PAID, effects_most=2), objects_added(target_object(PAID, 3, 2))
    ),
    "one object that is written twice": objects_added(target_object(PAID, 3, 2, object_id="ch_1")),
    "compensated after its success": both(
        expecting(PAID, legal_states=("succeeded", "compensated")),
        calls_added(call(PAID, Verb.GET, 12.0, shown(PAID, "compensated", 6))),
    ),
    "another payload that came first, without an answer": both(
        without_calls(SHIPPED, Verb.SUBMIT),
        calls_added(
            call(SHIPPED, Verb.SUBMIT, 0.5, None, request_digest="other"),
            call(SHIPPED, Verb.SUBMIT, 1.0, Answer(409, code="payload_conflict")),
        ),
    ),
    "too many requests": calls_added(
        call(PAID, Verb.SUBMIT, 5.0, Answer(429), request_digest="other")
    ),
    "another tenant's effect is not found": calls_added(
        call(POSTED, Verb.GET, 5.0, Answer(404), effect_id=effect_id(PAID)),
        call(POSTED, Verb.RECEIPT, 5.0, Answer(404), effect_id=effect_id(PAID)),
    ),
    "a request without a key that the contract does not send": both(
        expecting(PAID, sends_key=False),
        lambda e: replace(e, arrivals=tuple(replace(a, downstream_key=None) for a in e.arrivals)),
        expecting(MAILED, sends_key=False),
        expecting(SHIPPED, sends_key=False),
    ),
    "a request that was cut before it was whole": arrivals_added(
        arrival(MAILED, 9, 2.5, received=False, body_digest="part")
    ),
    "a success on an operator's word names no object": both(
        calls_added(
            call(POSTED, Verb.RESOLVE, 2.0, Answer(200)),
            call(POSTED, Verb.RECEIPT, 12.0, receipt(POSTED, "succeeded", None)),
        ),
    ),
}


def _verdict(evidence: Evidence, rule: str) -> Verdict:
    return next(verdict for verdict in audit(evidence) if verdict.rule.name == rule)


def test_a_sound_run_breaks_no_rule_and_every_rule_has_looked() -> None:
    verdicts = audit(sound())
    assert [str(violation) for violation in violations(verdicts)] == []
    assert [verdict.rule.name for verdict in verdicts if not verdict.checked] == []


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        pytest.param(rule, change, id=f"{rule}-{name.replace(' ', '-')}")
        for rule, changes in WRONG.items()
        for name, change in changes.items()
    ],
)
def test_a_fault_is_seen_by_its_rule(rule: str, change: Change) -> None:
    assert _verdict(change(sound()), rule).violations


@pytest.mark.parametrize("change", RIGHT.values(), ids=[n.replace(" ", "-") for n in RIGHT])
def test_what_is_allowed_is_not_accused(change: Change) -> None:
    assert [str(violation) for violation in violations(audit(change(sound())))] == []


def test_every_rule_has_a_fault_to_see() -> None:
    assert WRONG.keys() == {rule.name for rule in RULES}


def test_a_violation_names_operation_and_rule() -> None:
    evidence = objects_added(target_object(PAID, 3, 2))(sound())
    (violation,) = _verdict(evidence, "no_duplicate").violations
    assert violation.operation == PAID.name
    assert str(violation).startswith("no_duplicate: a/pay:1: 2 effects")


def test_a_marker_tells_operations_apart_whatever_their_keys() -> None:
    evidence = arrivals_added(arrival(SHIPPED, 9, 2.5, downstream_key="new"))(sound())
    assert [v.operation for v in _verdict(evidence, "one_key").violations] == [SHIPPED.name]


def test_a_digest_does_not_depend_on_the_order_of_members() -> None:
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    assert digest_of({"a": 1}) != digest_of({"a": 2})
