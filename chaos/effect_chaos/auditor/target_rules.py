"""The rules that hold between what callers were told and what the target holds."""

from __future__ import annotations

import re

from effect_chaos.auditor.case import DONE_STATES, UNDONE_STATES, Case, possible
from effect_chaos.auditor.verdicts import NOBODY, Check, Checks, Rule, must_end
from effect_chaos.records import Arrival, Operation, Safety, Verb

_STATUS = re.compile(r"\bstatus\(\s*(\d+)")
_COMMITS = re.compile(r"\b(?:commit|gate)\b")


def _no_duplicate(case: Case) -> Checks:
    for operation in case.operations:
        made = case.made(operation)
        problem = None
        if len(made) > operation.effects_most:
            what = f"{len(made)} effects, at most {operation.effects_most}: {_few(made)}"
            if not operation.duplicate_reported:
                problem = what
            elif not case.reported(operation):
                problem = f"{what}; the target lies, but nothing reports it"
        yield Check(operation.name, problem)


def _state_agrees(case: Case) -> Checks:
    for operation in case.operations:
        view = case.last_view(operation)
        if view is None or not view.final:
            continue
        state, made = view.answer.state, case.made(operation)
        problem = None
        if state in DONE_STATES and len(made) < operation.effects_least:
            problem = f"{state}, but the target holds {len(made)}: the effect is lost"
        elif state in UNDONE_STATES and made:
            told = operation.duplicate_reported and case.reported(operation)
            problem = None if told else f"{state}, but the target holds {_few(made)}"
        yield Check(operation.name, problem)


def _own_object(case: Case) -> Checks:
    for operation in case.operations:
        ids = {o.object_id for o in case.objects(operation)}
        ids |= {r.external_id for r in case.rows(operation)}
        by_person = bool(case.calls(operation, Verb.RESOLVE))
        for call in case.calls(operation, Verb.RECEIPT):
            answer = call.answer
            if answer is None or answer.content is None or answer.state not in DONE_STATES:
                continue
            problem = None
            if answer.external_id is None:
                if operation.effects_least and not by_person:
                    problem = "the receipt of a success names no object"
            elif answer.external_id not in ids and operation.effects_least:
                problem = (
                    f"the receipt names {answer.external_id}, the target made {_few(ids)} for it"
                )
            yield Check(operation.name, problem)


def _one_key(case: Case) -> Checks:
    for operation in case.operations:
        sends = case.sends(operation)
        if not sends or not operation.sends_key:
            continue
        keys = {_key(arrival) for arrival in sends}
        problem = None
        if None in keys:
            problem = "a request came without a key"
        elif len(keys) > 1:
            problem = f"{len(sends)} requests with {len(keys)} keys"
        yield Check(operation.name, problem)


def _same_bytes(case: Case) -> Checks:
    for operation in case.operations:
        sends = case.sends(operation)
        if not sends:
            continue
        forms = {(a.method, a.path, a.body_digest) for a in sends}
        problem = None
        if len(forms) > 1:
            problem = f"{len(sends)} requests in {len(forms)} forms"
        yield Check(operation.name, problem)


def _keys_apart(case: Case) -> Checks:
    owners: dict[str, set[tuple[str, str]]] = {}
    for arrival in case.sent:
        key = _key(arrival)
        if key is not None:
            owners.setdefault(key, set()).update(case.owner_names(arrival.text))
    for made in case.evidence.objects:
        key = made.downstream_key or made.correlation_key
        if key is not None:
            owners.setdefault(key, set()).update(case.owner_names(made.text))
    for row in case.evidence.rows:
        if row.downstream_key is not None:
            owners.setdefault(row.downstream_key, set()).update(case.owner_names(row.text))
    for names in owners.values():
        first = "/".join(min(names)) if names else NOBODY
        problem = None
        if len(names) > 1:
            problem = f"its key is also that of {_few({'/'.join(n) for n in names} - {first})}"
        yield Check(first, problem)


def _unsafe_once(case: Case) -> Checks:
    for operation in case.operations:
        if operation.safety is not Safety.UNSAFE:
            continue
        sends = [a for a in case.sends(operation) if not _refused(a, operation)]
        problem = None
        if len(sends) > 1:
            problem = f"{len(sends)} requests that may have had an effect"
        yield Check(operation.name, problem)


def _intent_first(case: Case) -> Checks:
    for arrival in case.sent:
        names = case.owner_names(arrival.text)
        if not names:
            yield Check(NOBODY, f"request {arrival.n} at {arrival.kind!r} is of no operation")
        for name in names:
            operation = case.by_name[name]
            asked = (c for c in case.calls(operation, Verb.SUBMIT) if possible(c))
            began_at = min((call.began_at for call in asked), default=None)
            problem = None
            if began_at is None:
                problem = f"request {arrival.n} at the target, but no submit could stand"
            elif arrival.received_monotonic < began_at:
                early = began_at - arrival.received_monotonic
                problem = f"request {arrival.n} came {early:.3f} s before the first submit"
            yield Check(operation.name, problem)
    for made in case.evidence.objects:
        owned = bool(case.owner_names(made.text))
        yield Check(
            NOBODY,
            None if owned else f"object {made.object_id} of {made.kind!r} is of no operation",
        )
    for row in case.evidence.rows:
        owned = bool(case.owner_names(row.text))
        yield Check(NOBODY, None if owned else f"row {row.external_id} is of no operation")


def _refused(arrival: Arrival, operation: Operation) -> bool:
    """Whether the target did nothing and said so in words that the contract lists as proof."""
    status = _STATUS.search(arrival.plan)
    return (
        status is not None
        and int(status.group(1)) in operation.refusing_statuses
        and _COMMITS.search(arrival.plan) is None
    )


def _key(arrival: Arrival) -> str | None:
    return arrival.downstream_key or arrival.correlation_key


def _few(names: set[str] | frozenset[str], most: int = 4) -> str:
    shown = ", ".join(sorted(names)[:most]) or "nothing"
    return shown if len(names) <= most else f"{shown}, … ({len(names)})"


def _succeeds(operation: Operation) -> bool:
    """Whether the workload leaves the operation no other end than its effect."""
    only_done = set(operation.legal_states) <= DONE_STATES
    return only_done and not operation.may_park and operation.effects_least > 0


def _must_succeed(case: Case) -> bool:
    return any(_succeeds(o) for o in case.operations)


def _must_be_sent(case: Case) -> bool:
    """What has its effect at the target, and not in a table, has come there as a request."""
    return any(_succeeds(o) and o.safety is not Safety.TRANSACTIONAL for o in case.operations)


def _must_send_key(case: Case) -> bool:
    return any(
        _succeeds(o) and o.sends_key and o.safety is not Safety.TRANSACTIONAL
        for o in case.operations
    )


def _has_unsafe(case: Case) -> bool:
    return any(o.safety is Safety.UNSAFE for o in case.operations)


TARGET_RULES = (
    Rule("no_duplicate", "no more effects at the target than allowed", _no_duplicate),
    Rule("state_agrees", "the final state is what the target holds", _state_agrees, must_end),
    Rule(
        "own_object", "a receipt names an object of its own operation", _own_object, _must_succeed
    ),
    Rule("one_key", "the same downstream key on every request", _one_key, _must_send_key),
    Rule("same_bytes", "the same bytes on every request", _same_bytes, _must_be_sent),
    Rule("keys_apart", "no two operations share a key", _keys_apart, _must_send_key),
    Rule("unsafe_once", "an unsafe operation is sent at most once", _unsafe_once, _has_unsafe),
    Rule(
        "intent_first", "nothing reaches the target without an intent", _intent_first, _must_be_sent
    ),
)
