"""A fork tells what another contract would not have begun: of the moment before it was begun."""

from __future__ import annotations

import json

from contracts.test_fork import _cut, _lost, forked, parsed
from effect_contracts.decide import Action, Reason
from effect_contracts.document import ContractDocument
from effect_contracts.fork import fork


def test_the_moment_before_an_attempt_is_told_where_the_other_contract_would_wait() -> None:
    """Once it has begun both contracts say the same: that an attempt is open."""
    _, made = forked(_lost(), version="2", oversight={"approval_valid_seconds": 60})
    before = next(step for step in made.steps if step.before)
    assert (before.sequence, before.kind) == (2, "attempt_started")
    assert before.pinned.action is Action.DISPATCH
    assert before.other.reason is Reason.AWAITING_APPROVAL
    assert before.differs
    assert before.to_json()["before"] is True


def test_nothing_else_is_told_twice() -> None:
    header, document, line = parsed(_lost())
    content = json.loads(document.canonical())
    changed = content | {"version": "2", "retry": content.get("retry", {}) | {"attempts_max": 1}}
    once = ContractDocument.parse_yaml(json.dumps(changed))
    made = fork(line, document, once, now=header.exported_at)
    starts = [event.sequence for event in line.events if event.kind == "attempt_started"]
    before = [step for step in made.steps if step.before]
    assert [step.sequence for step in before] == starts[1:]
    for step in before:
        assert step.pinned.action is Action.DISPATCH
        assert step.other.action is not Action.DISPATCH


def test_what_was_known_before_the_first_event_that_is_left_is_not_told() -> None:
    header, document, line = parsed(_lost())
    content = json.loads(document.canonical())
    changed = content | {"version": "2", "retry": content.get("retry", {}) | {"attempts_max": 1}}
    once = ContractDocument.parse_yaml(json.dumps(changed))
    second = [event.sequence for event in line.events if event.kind == "attempt_started"][1]
    made = fork(_cut(line, second), document, once, now=header.exported_at)
    assert (made.steps[0].sequence, made.steps[0].before) == (second, False)
