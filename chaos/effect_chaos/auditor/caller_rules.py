"""The rules on what callers were told: over time, of each other's, and in the end."""

from __future__ import annotations

from collections.abc import Iterator

from effect_chaos.auditor.case import FINAL_STATES, Case, View, possible, succeeded
from effect_chaos.auditor.verdicts import NOBODY, Check, Checks, Rule, must_end
from effect_chaos.records import Answer, Invocation, Operation, Verb

# Refusals that say nothing about the key: who asks, too slow, too much, too often.
_SAYS_NOTHING = frozenset({401, 403, 408, 413, 429})


def _evidence(case: Case) -> Checks:
    """An audit over nothing must not pass."""
    evidence = case.evidence
    acknowledged = any(case.acknowledged(operation) for operation in case.operations)
    found = evidence.arrivals or evidence.rows
    yield Check(NOBODY, None if case.operations else "there is no operation")
    yield Check(NOBODY, None if acknowledged else "no submit was ever acknowledged")
    yield Check(NOBODY, None if found else "the target has received nothing")
    names = {(o.tenant, o.operation_key) for o in case.operations}
    yield Check(
        NOBODY, None if len(names) == len(case.operations) else "an operation is there twice"
    )
    markers = {operation.marker for operation in case.operations}
    yield Check(
        NOBODY, None if len(markers) == len(case.operations) else "two operations share a marker"
    )


def _kept(case: Case) -> Checks:
    for operation in case.operations:
        acknowledged = case.acknowledged(operation)
        if not acknowledged:
            continue
        created = [call for call in acknowledged if call.answer and call.answer.status == 202]
        problem = None
        if len(created) > 1:
            problem = f"{len(created)} submits of one key were each answered as the first"
        yield Check(operation.name, problem)
        known_at = min(call.ended_at for call in acknowledged)
        own = case.effect_ids(operation)
        for call in case.calls(operation, Verb.GET):
            if call.began_at >= known_at and call.answer is not None and call.effect_id in own:
                missing = call.answer.status == 404
                yield Check(
                    operation.name, "an acknowledged effect is not found" if missing else None
                )


def _one_effect(case: Case) -> Checks:
    for operation in case.operations:
        ids = case.effect_ids(operation)
        for view in case.views(operation):
            asked, answer = view.call.effect_id, view.answer
            problem = None
            if answer.operation_key != operation.operation_key:
                problem = "the answer bears another key"
            elif asked is not None and answer.effect_id != asked:
                problem = "the answer bears another effect id than was asked for"
            yield Check(operation.name, problem)
        if ids:
            yield Check(operation.name, f"{len(ids)} effect ids" if len(ids) > 1 else None)
    for effect_id, names in case.owners.items():
        problem = f"effect {effect_id} was given to {len(names)} operations"
        yield Check("/".join(min(names)), problem if len(names) > 1 else None)


def _settled_or_parked(case: Case) -> Checks:
    quiet_at = case.evidence.run.quiet_began_at
    for operation in case.operations:
        view = case.last_view(operation)
        if view is None:
            if case.acknowledged(operation):
                yield Check(operation.name, "acknowledged, and never seen again")
            continue
        problem = None
        if not view.at_rest:
            problem = f"in the end {view.answer.state}, neither final nor waiting for a person"
        elif quiet_at is not None and view.call.began_at < quiet_at:
            problem = "nobody has looked at it since the quiet began"
        yield Check(operation.name, problem)


def _next_action(case: Case) -> Checks:
    for operation in case.operations:
        for view in case.views(operation):
            if not view.at_rest:
                ready = view.answer.next_action_at is not None
                yield Check(
                    operation.name,
                    None if ready else f"{view.answer.state} without a next action or a person",
                )


def _legal_outcome(case: Case) -> Checks:
    for operation in case.operations:
        view = case.last_view(operation)
        if view is None or not view.at_rest:
            continue
        state = view.answer.state or ""
        problem = None
        if view.final and state not in operation.legal_states:
            problem = f"ended as {state} ({view.answer.reason})"
        elif not view.final and not operation.may_park:
            problem = f"parked as {state} ({view.answer.reason})"
        yield Check(operation.name, problem)


# -- receipts ------------------------------------------------------------------------------------


def _receipt_with_end(case: Case) -> Checks:
    for operation in case.operations:
        views = case.views(operation)
        for view in views:
            bears = view.answer.receipt_digest is not None
            problem = None
            if bears != view.final:
                problem = f"{view.answer.state} {'with' if bears else 'without'} a receipt"
            yield Check(operation.name, problem)
        own = case.effect_ids(operation)
        for call in case.calls(operation, Verb.RECEIPT):
            if call.effect_id not in own:
                continue
            if call.answer is not None and call.answer.status in (200, 404):
                yield Check(operation.name, _receipt_problem(call, call.answer, views))


def _receipt_problem(call: Invocation, answer: Answer, views: list[View]) -> str | None:
    ended_before = [v for v in views if v.final and v.call.ended_at <= call.began_at]
    if answer.status == 404:
        return "settled, but the receipt is not found" if ended_before else None
    for view in ended_before:
        if view.answer.state not in (answer.state, "compensated"):
            return f"the receipt says {answer.state}, the effect is {view.answer.state}"
    if any(not view.final for view in views if view.call.began_at >= call.ended_at):
        return "the receipt was there before the end"
    return None


def _receipt_stays(case: Case) -> Checks:
    for operation in case.operations:
        seen: set[str] = set()
        for call in case.calls(operation):
            answer = call.answer
            if answer is None or answer.receipt_digest is None:
                continue
            seen.add(answer.receipt_digest)
            problem = None
            if answer.content is not None:
                if answer.content != answer.receipt_digest:
                    problem = "the digest is not that of the receipt's content"
                elif answer.operation_key != operation.operation_key:
                    problem = "the receipt bears another operation key"
                elif answer.effect_id != call.effect_id:
                    problem = "the receipt bears another effect id than was asked for"
            yield Check(operation.name, problem)
        if seen:
            yield Check(operation.name, f"{len(seen)} receipts" if len(seen) > 1 else None)


# -- over time -----------------------------------------------------------------------------------


def _in_order(views: list[View]) -> Iterator[tuple[View, list[View]]]:
    """Each view with those that had ended before its call began. `views` by their begin."""
    by_end = sorted(views, key=lambda view: view.call.ended_at)
    before: list[View] = []
    for view in views:
        while len(before) < len(by_end) and (
            by_end[len(before)].call.ended_at <= view.call.began_at
        ):
            before.append(by_end[len(before)])
        yield view, before


def _final_stays(case: Case) -> Checks:
    for operation in case.operations:
        views = case.views(operation)
        for view in views:
            agrees = view.final == (view.answer.state in FINAL_STATES)
            said = f"{view.answer.state}, and final is {view.answer.final}"
            yield Check(operation.name, None if agrees else said)
        finals = {str(view.answer.state) for view in views if view.final}
        if finals:
            one = len(finals) == 1 or finals == {"succeeded", "compensated"}
            yield Check(operation.name, None if one else f"final as {', '.join(sorted(finals))}")
        ended, counted = False, 0
        for view, before in _in_order(views):
            ended = ended or any(earlier.final for earlier in before[counted:])
            counted = len(before)
            if ended:
                again = f"final, and then {view.answer.state} again"
                yield Check(operation.name, None if view.final else again)


def _versions_forward(case: Case) -> Checks:
    for operation in case.operations:
        states: dict[int, str | None] = {}
        highest = -1
        counted = 0
        for view, before in _in_order(case.views(operation)):
            for earlier in before[counted:]:
                highest = max(highest, earlier.answer.version or 0)
            counted = len(before)
            version = view.answer.version or 0
            problem = None
            if version < highest:
                problem = f"version {version} was shown after version {highest}"
            elif states.setdefault(version, view.answer.state) != view.answer.state:
                problem = f"version {version} was {states[version]} and is {view.answer.state}"
            yield Check(operation.name, problem)


# -- other requests, other tenants ---------------------------------------------------------------


def _payload_conflict(case: Case) -> Checks:
    for operation in case.operations:
        submits = case.calls(operation, Verb.SUBMIT)
        accepted = [call for call in submits if succeeded(call)]
        digests = {call.request_digest for call in accepted}
        if accepted:
            problem = f"{len(digests)} different requests were accepted under one key"
            yield Check(operation.name, problem if len(digests) > 1 else None)
        for call in submits:
            if call.answer is not None:
                yield Check(operation.name, _conflict_problem(operation, call, submits))


def _conflict_problem(
    operation: Operation, call: Invocation, submits: list[Invocation]
) -> str | None:
    answer = call.answer
    assert answer is not None
    before = [c for c in submits if succeeded(c) and c.ended_at <= call.began_at]
    bound = {c.request_digest for c in before}
    if answer.status == 409:
        others = (c for c in submits if c.request_digest != call.request_digest and possible(c))
        if call.request_digest in bound:
            return "409 for the request that holds the key"
        return None if bound or any(others) else "409, but no other request was ever made"
    refused = 400 <= answer.status < 500 and answer.status not in _SAYS_NOTHING
    if bound and call.request_digest not in bound and refused:
        return f"another request under the same key was answered {answer.status}, not 409"
    return None


def _tenants_apart(case: Case) -> Checks:
    for call in case.evidence.history:
        answer = call.answer
        if answer is None:
            continue
        shown = [line.partition(" ")[0] for line in answer.listed]
        if answer.effect_id is not None:
            shown.append(answer.effect_id)
        if call.effect_id is not None and succeeded(call):
            shown.append(call.effect_id)
        for effect_id in shown:
            owners = case.owners.get(effect_id, frozenset())
            tenants = {tenant for tenant, _ in owners}
            foreign = sorted(tenants - {call.tenant})
            problem = None
            if foreign:
                problem = f"{call.verb} showed an effect of {', '.join(foreign)}"
            yield Check(f"{call.tenant}/{call.operation_key}", problem)


CALLER_RULES = (
    Rule("evidence", "there is something to judge", _evidence),
    Rule("kept", "what was acknowledged is never forgotten", _kept),
    Rule("one_effect", "one operation key is one effect, and no two share it", _one_effect),
    Rule("settled_or_parked", "every effect ends, or waits visibly", _settled_or_parked),
    Rule("next_action", "an open effect has a next action or a person", _next_action),
    Rule("legal_outcome", "every effect ends as its operation allows", _legal_outcome),
    Rule(
        "receipt_with_end", "a receipt with every settled effect, and no other", _receipt_with_end
    ),
    Rule("receipt_stays", "a receipt never changes", _receipt_stays, must_end),
    Rule("final_stays", "a final state never changes", _final_stays),
    Rule("versions_forward", "versions only go forward", _versions_forward),
    Rule("payload_conflict", "another request under the same key is a 409", _payload_conflict),
    Rule("tenants_apart", "no tenant is shown another's effect", _tenants_apart),
)
