"""A fork decides on recorded facts: like the broker under the same contract, and by the other one's
rules under another."""

from __future__ import annotations

import json
from typing import Any

from effect_contracts.decide import Action, Reason
from effect_contracts.document import ContractDocument
from effect_contracts.facts import Outcome
from effect_contracts.fork import Fork, fork
from effect_contracts.trace.log import EffectLine, HeaderLine
from trace_check.corpus import scheduled, staged


def parsed(lines: list[bytes]) -> tuple[HeaderLine, ContractDocument, EffectLine]:
    bodies: list[dict[str, Any]] = [json.loads(line) for line in lines]
    for body in bodies:
        del body["digest"]
    return (
        HeaderLine.model_validate_json(json.dumps(bodies[0])),
        ContractDocument.from_canonical(bodies[1]["document"].encode()),
        EffectLine.model_validate_json(json.dumps(bodies[2])),
    )


def forked(lines: list[bytes], **changes: Any) -> tuple[EffectLine, Fork]:
    header, document, line = parsed(lines)
    content = json.loads(document.canonical())
    other = ContractDocument.parse_yaml(json.dumps(content | changes)) if changes else document
    return line, fork(
        line, document, other, now=header.exported_at, bounds_restart_at=header.bounds_restart_at
    )


def test_under_its_own_contract_an_effect_is_decided_as_it_was() -> None:
    accounts = [*staged(), *(scheduled("idempotent", seed) for seed in range(5))]
    for lines in accounts:
        line, made = forked(lines)
        assert made.broken is None
        assert made.first_difference is None
        ended = [step for step in made.steps if step.kind == "settle"]
        for step in ended:
            assert step.pinned.action is Action.SETTLE
        assert len(made.steps) <= len(line.events) + 1


def _lost() -> list[bytes]:
    """A schedule in which an attempt was presumed lost and the effect sent again."""
    for seed in range(200):
        lines = scheduled("idempotent", seed)
        attempts = json.loads(lines[2])["attempts"]
        if len(attempts) > 1 and attempts[0]["outcome"] == Outcome.PRESUMED_AMBIGUOUS:
            return lines
    raise AssertionError("no schedule of these loses an attempt")


def test_an_unsafe_contract_would_not_have_sent_again() -> None:
    lines = _lost()
    _, made = forked(
        lines, safety="unsafe", version="2", key_retention_seconds=None, adapter={
            "kind": "simulated", "target": "ledger", "probes": False,
        },
    )  # fmt: skip
    first = made.first_difference
    assert first is not None
    assert first.other.reason is not first.pinned.reason
    assert all(
        step.other.action is not Action.DISPATCH
        for step in made.steps
        if (step.sequence or 0) >= (first.sequence or 0)
    )


def test_fewer_attempts_would_have_ended_earlier() -> None:
    lines = _lost()
    _, document, _ = parsed(lines)
    retry = json.loads(document.canonical()).get("retry", {})
    _, made = forked(lines, version="2", retry=retry | {"attempts_max": 1})
    first = made.first_difference
    assert first is not None
    assert first.other.reason in {Reason.RETRIES_EXHAUSTED, Reason.KEY_EXPIRED}


def test_an_account_that_was_altered_is_followed_up_to_there_and_no_further() -> None:
    header, document, line = parsed(_lost())
    events = list(line.events)
    events[2] = events[2].model_copy(update={"reason": "committed"})
    altered = line.model_copy(update={"events": tuple(events)})
    made = fork(altered, document, document, now=header.exported_at)
    assert made.broken is not None
    assert "event 3" in made.broken
    assert [step.sequence for step in made.steps] == [1, 2]
