"""The check of a file, line by line: what it counts, what it cannot read, and where a fault is."""

from __future__ import annotations

import copy
import hashlib
import json
from functools import cache
from typing import Any
from uuid import UUID

import pytest

from effect_contracts.trace import Rule, TraceReport, TraceUnreadable, verify_lines
from effect_contracts.trace.check import VIOLATIONS_MAX
from trace_check import corpus
from trace_check.forging import Line, end_of, judged, parsed, rechained, sealed

Found = list[tuple[int, Rule, str]]


@cache
def _trace() -> list[Line]:
    """Header, contract, effect, end of an effect that was sent twice and has settled."""
    for seed in range(200):
        lines = parsed(corpus.scheduled("idempotent", seed))
        if len(lines[2]["attempts"]) > 1 and lines[2]["receipt"] is not None:
            return [*lines[:3], end_of(lines[2])]
    raise AssertionError("no schedule of these sends twice")


def trace() -> list[Line]:
    return copy.deepcopy(_trace())


def report(lines: list[Line], *, whole: bool = True) -> TraceReport:
    return verify_lines(sealed(lines), whole=whole)


def found(lines: list[Line], *, whole: bool = True) -> Found:
    return [(one.line, one.rule, one.what) for one in report(lines, whole=whole).violations]


def ids(effect: Line) -> tuple[UUID, UUID]:
    intent = effect["intent"]
    return UUID(intent["tenant_id"]), UUID(intent["effect_id"])


def unreadable(lines: list[bytes]) -> str:
    with pytest.raises(TraceUnreadable) as refused:
        verify_lines(lines)
    return str(refused.value)


# Counts ------------------------------------------------------------------------------------------


def test_a_clean_trace_is_counted() -> None:
    lines = trace()
    told = report(lines)
    assert told == TraceReport(1, 1, len(lines[2]["events"]), 0, 0, ())
    assert told.clean
    assert len(lines[2]["events"]) > 1


def test_a_trace_of_nothing_is_clean() -> None:
    header, *_ = trace()
    end = {"type": "end", "contracts": 0, "effects": 0, "events": 0}
    assert report([header, end]) == TraceReport(0, 0, 0, 0, 0, ())


@pytest.mark.parametrize("name", ["contracts", "effects", "events"])
@pytest.mark.parametrize("by", [-1, 1])
def test_the_end_counts_what_the_file_holds(name: str, by: int) -> None:
    lines = trace()
    count = lines[3][name]
    lines[3][name] += by
    what = f"the trace was written with {count + by} {name} and holds {count}"
    assert found(lines) == [(4, Rule.COUNT, what)]
    (violation,) = report(lines).violations
    assert (violation.tenant_id, violation.effect_id, violation.sequence) == (None, None, None)


def test_a_log_that_is_wrong_everywhere_is_counted_to_its_end_and_shown_to_a_bound() -> None:
    header, *_, end = trace()
    end |= {"contracts": 0, "effects": 0, "events": 0}
    odd = {"type": "odd"}
    told = report([header, *[odd] * 1002, end])
    assert told.violation_count == 1002
    assert len(told.violations) == VIOLATIONS_MAX == 1000
    assert not told.clean
    assert [one.line for one in told.violations[:2]] == [2, 3]


def test_a_line_of_no_kind_is_named_with_the_ids_that_it_tells() -> None:
    lines = trace()
    tenant, effect = ids(lines[2])
    told = {"intent": {"tenant_id": str(tenant), "effect_id": str(effect)}}
    for odd, named in (
        ({"type": "odd"}, (None, None)),
        ({"kind": "effect"}, (None, None)),
        ({"type": "header"}, (None, None)),
        ({"type": "odd", **told}, (tenant, effect)),
        ({"type": "odd", "intent": {"tenant_id": 7, "effect_id": "x"}}, (None, None)),
        ({"type": "odd", "intent": {"effect_id": str(effect)}}, (None, effect)),
        ({"type": "odd", "intent": [1]}, (None, None)),
    ):
        (violation,) = report([lines[0], odd, *lines[1:]]).violations
        assert (violation.line, violation.rule) == (2, Rule.FORM)
        assert violation.what == "a line of no kind"
        assert (violation.tenant_id, violation.effect_id) == named


# What cannot be read -----------------------------------------------------------------------------


def test_a_file_that_is_no_whole_trace_says_why() -> None:
    lines = trace()
    raw = sealed(lines)
    assert unreadable([]) == "the file is empty"
    assert unreadable(raw[:3]) == "the trace has no end: it was cut, or its export did not finish"
    assert unreadable([*raw, raw[3]]) == "line 5 follows the end of the trace"
    assert unreadable(raw[1:]) == "the trace does not begin with its header"
    assert unreadable([raw[0], b"junk", *raw[1:]]) == (
        "line 2 is no line of a trace: it begins with no digest"
    )
    cut = raw[1][:-10] + b"\n"
    assert unreadable([raw[0], cut, *raw[2:]]) == "line 2 is not JSON"
    assert unreadable(sealed([{**lines[0], "format": "other"}, *lines[1:]])) == (
        "another format; this release reads effect-broker/trace/1"
    )
    header = {**lines[0], "exported_at": "yesterday"}
    assert unreadable(sealed([header, *lines[1:]])).startswith("the header: exported_at: ")


def test_a_line_that_is_not_the_one_that_was_written_is_named() -> None:
    raw = sealed(trace())
    changed = raw[2].replace(b'"requested_by":"', b'"requested_by":"x')
    assert changed != raw[2]
    told = verify_lines([*raw[:2], changed, raw[3]], whole=True)
    first = told.violations[0]
    assert (first.line, first.rule) == (3, Rule.LINE)
    assert first.what == "the line is not the one that was written here"
    assert (first.tenant_id, first.effect_id) == ids(_trace()[2])
    # One line is wrong: the next is chained to what it says of itself.
    assert [one.line for one in told.violations if one.rule is Rule.LINE] == [3]


# Contracts ---------------------------------------------------------------------------------------


def test_a_contract_stands_once_with_its_digest_and_can_be_read() -> None:
    header, contract, effect, end = trace()
    twice = [header, contract, contract, effect, {**end, "contracts": 2}]
    assert found(twice) == [(3, Rule.CONTRACT, "the contract stands here a second time")]

    other = {**contract, "contract_digest": "0" * 64}
    told = found([header, other, contract, effect, {**end, "contracts": 2}])
    assert told == [(2, Rule.CONTRACT, "the contract's digest does not fit it")]

    text = "{}"
    bare = {**contract, "document": text}
    bare["contract_digest"] = hashlib.sha256(text.encode()).hexdigest()
    told = found([header, bare, contract, effect, {**end, "contracts": 2}])
    assert told == [(2, Rule.CONTRACT, "this release cannot read the contract")]

    malformed = {**contract, "document": 7}
    told = found([header, malformed, contract, effect, {**end, "contracts": 2}])
    assert [one[:2] for one in told] == [(2, Rule.FORM)]
    assert told[0][2].startswith("document: ")


def test_an_effect_has_its_contract_in_the_trace() -> None:
    header, contract, effect, end = trace()
    missing = [header, effect, {**end, "contracts": 0}]
    assert found(missing) == [(2, Rule.CONTRACT, "its contract is not in the trace")]
    # One that cannot be read is named once, where it stands.
    bare = {**contract, "document": "{}"}
    told = found([header, bare, effect, end])
    assert {one[:2] for one in told} == {(2, Rule.CONTRACT)}
    assert len(told) == 2


# Effects -----------------------------------------------------------------------------------------


def test_effects_ascend_each_once() -> None:
    header, contract, effect, end = trace()
    count = {**end, "effects": 2, "events": 2 * end["events"]}
    what = (4, Rule.ORDER, "the effect is not in its place")
    assert found([header, contract, effect, effect, count]) == [what]


def test_an_effect_of_another_form_is_named_and_its_events_count() -> None:
    header, contract, effect, end = trace()
    odd = {**effect, "more": 1}
    (violation,) = report([header, contract, odd, end]).violations
    assert (violation.line, violation.rule) == (3, Rule.FORM)
    assert violation.what == "more: extra_forbidden"
    assert (violation.tenant_id, violation.effect_id) == ids(effect)
    none = {**effect, "events": "none"}
    told = found([header, contract, none, {**end, "events": 0}])
    assert [one[:2] for one in told] == [(3, Rule.FORM)]


def test_a_line_that_is_of_another_form_as_a_whole_is_named() -> None:
    header, contract, effect, _ = trace()
    told = found([header, contract, effect, {"type": "end"}])
    assert [one[:2] for one in told] == [(4, Rule.FORM)]
    assert told[0][2] == "contracts: missing"


# What was pruned ---------------------------------------------------------------------------------


def _pruned(events: int) -> list[Line]:
    """The same with so many events left; what was removed with them is another matter."""
    header, contract, effect, _ = trace()
    effect["events"] = effect["events"][len(effect["events"]) - events :] if events else []
    return [header, contract, effect, end_of(effect)]


def test_what_was_pruned_is_counted_and_a_finding_where_all_should_be_there() -> None:
    whole = trace()
    kept = len(whole[2]["events"]) - 1
    assert report(_pruned(kept + 1)).pruned_effects == 0
    told = report(_pruned(kept), whole=False)
    assert told.pruned_effects == 1
    assert told.events == kept
    missing = (3, Rule.PRUNED, "its first events are missing")
    assert missing in found(_pruned(kept))
    assert missing not in found(_pruned(kept), whole=False)


def test_a_replay_that_cannot_follow_is_not_begun() -> None:
    """A gap in the numbers is the one finding; what would follow from it is not told."""
    lines = trace()
    lines[2]["events"][1]["sequence"] += 100
    rechained(lines[2])
    told = {one[1] for one in found(lines)}
    assert Rule.SEQUENCE in told
    assert Rule.DECISION not in told
    assert Rule.FACTS not in told


def test_after_the_first_break_nothing_more_is_guessed() -> None:
    effect = trace()[2]
    start = next(e["sequence"] for e in effect["events"] if e["kind"] == "attempt_started")

    def forge(line: Line) -> None:
        event = line["events"][start - 1]
        event["metadata"] = json.dumps(
            {**json.loads(event["metadata"]), "ordinal": 9}, separators=(",", ":"), sort_keys=True
        )

    told = judged(trace(), forge, rechain=True).violations
    assert [(one.rule, one.sequence) for one in told] == [(Rule.FACTS, start)]


def test_a_violation_holds_no_value_of_the_line() -> None:
    def forge(line: Line) -> None:
        line["intent"]["requested_by"] = {"hush": "secret"}

    told: Any = judged(trace(), forge, rechain=False).violations
    assert told
    assert all("hush" not in one.what and "secret" not in one.what for one in told)
