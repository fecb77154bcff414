"""A fork decides on recorded facts: like the broker under the same contract, and by the other one's
rules under another."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
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
    """A schedule in which an attempt was presumed lost and the effect sent again.

    Its events are moments apart, as a database writes them: only so can a fact be told from the
    ones that an event of the same moment tells, where the beginning was pruned.
    """
    for seed in range(200):
        lines = scheduled("idempotent", seed)
        effect = json.loads(lines[2])
        attempts, moments = effect["attempts"], [event["at"] for event in effect["events"]]
        lost = len(attempts) > 1 and attempts[0]["outcome"] == Outcome.PRESUMED_AMBIGUOUS
        if lost and len(set(moments)) == len(moments):
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


def _cut(line: EffectLine, kept_from: int) -> EffectLine:
    """The account as retention leaves it: the events before that sequence are gone."""
    kept = tuple(event for event in line.events if event.sequence >= kept_from)
    return line.model_copy(update={"events": kept})


def test_an_account_whose_beginning_was_pruned_is_followed_from_there() -> None:
    header, document, line = parsed(_lost())
    whole = fork(line, document, document, now=header.exported_at)
    for kept_from in range(2, len(line.events) + 1):
        made = fork(_cut(line, kept_from), document, document, now=header.exported_at)
        assert made.broken is None, kept_from
        assert made.steps == whole.steps[kept_from - 1 :]


def test_what_breaks_is_named_by_its_own_sequence_though_the_beginning_was_pruned() -> None:
    header, document, line = parsed(_lost())
    last = len(line.events)
    for kept_from in range(2, last):
        events = list(_cut(line, kept_from).events)
        for place in (0, len(events) - 1):
            altered = list(events)
            altered[place] = events[place].model_copy(update={"reason": "no_such_reason"})
            cut = line.model_copy(update={"events": tuple(altered)})
            made = fork(cut, document, document, now=header.exported_at)
            assert made.broken is not None
            assert made.broken.startswith(f"event {kept_from + place} is not what the broker must")
            assert len(made.steps) == place


def test_an_effect_of_which_no_event_is_left_is_decided_as_it_stands() -> None:
    header, document, line = parsed(_lost())
    nothing = line.model_copy(update={"events": (), "attempts": (), "evidence": ()})
    (only,) = fork(nothing, document, document, now=header.exported_at).steps
    assert (only.sequence, only.kind, only.at) == (None, "now", header.exported_at)


def test_an_effect_that_has_not_ended_is_decided_for_now_as_well() -> None:
    header, document, line = parsed(_lost())
    open_still = line.model_copy(update={"events": line.events[:2]})
    made = fork(open_still, document, document, now=header.exported_at)
    assert [step.sequence for step in made.steps] == [1, 2, None]
    assert (made.steps[-1].kind, made.steps[-1].at) == ("now", header.exported_at)


def test_what_came_after_the_end_is_not_decided() -> None:
    for lines in staged():
        line, made = forked(lines)
        final = {"compensated", "succeeded", "failed_final", "cancelled"}
        ends = [event.sequence for event in line.events if event.to_state in final]
        if ends:
            assert [step.sequence for step in made.steps] == list(range(1, ends[0] + 1))
        else:
            sequences = [event.sequence for event in line.events]
            assert [step.sequence for step in made.steps] == [*sequences, None]


def test_a_step_is_told_to_programs_with_its_times_in_utc() -> None:
    header, document, line = parsed(_lost())
    elsewhere = timezone(timedelta(hours=5, minutes=30))
    now = header.exported_at.astimezone(elsewhere)
    steps = fork(line, document, document, now=now).steps
    waits = [step for step in steps if step.pinned.at is not None]
    assert waits
    for step in (*steps, *waits):
        told = step.to_json()
        assert list(told) == ["sequence", "kind", "before", "at", "pinned", "other", "differs"]
        assert told["sequence"] == step.sequence
        assert told["kind"] == step.kind
        assert str(told["at"]).endswith("+00:00")
        assert datetime.fromisoformat(str(told["at"])) == step.at
        assert told["differs"] is False
        assert told["pinned"] == told["other"]
        pinned, decision = told["pinned"], step.pinned
        assert isinstance(pinned, dict)
        at = pinned.pop("at")
        assert pinned == {
            "action": decision.action.value,
            "reason": decision.reason.value,
            "event": decision.event.value,
            "row": decision.row,
            "ordinal": decision.ordinal,
        }
        if decision.at is None:
            assert at is None
        else:
            assert str(at).endswith("+00:00")
            assert datetime.fromisoformat(str(at)) == decision.at
