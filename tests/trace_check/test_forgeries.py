"""Forged accounts fail, and the check says where: every place, every event, every row.

What no rule can notice is listed by name, with the reason; a place that is not in a list has to be
caught every time. So the lists are the honest measure of the check, and tests keep them short.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effect_contracts.trace import Rule, TraceReport, TraceUnreadable, verify_lines
from trace_check import corpus
from trace_check.falsities import falsities
from trace_check.forging import (
    Line,
    at,
    end_of,
    judged,
    leaves,
    parsed,
    put,
    rechained,
    renumbered,
    sealed,
    singles,
)
from trace_check.places import CHAIN, UNBOUND_EVENTS, UNBOUND_ROWS, name_of, place_of

Trace = list[Line]

# Thousands of forgeries, on a machine that may have other things to do.
pytestmark = pytest.mark.timeout(900)


class Corpus(list[Trace]):
    """Many traces, in few words."""

    def __repr__(self) -> str:
        return "the corpus"


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    """Traces of one effect each, of every kind that there is."""
    return Corpus(trace for lines in corpus.chosen() for trace in singles(parsed(lines)))


def test_the_corpus_is_clean_and_wide(traces: list[Trace]) -> None:
    for trace in traces:
        assert verify_lines(sealed(trace), whole=True).violations == ()
    kinds = {event["kind"] for trace in traces for event in trace[2]["events"]}
    assert kinds >= {
        "submitted", "attempt_started", "outcome_recorded", "probe_started", "evidence_added",
        "wait", "park", "count_started", "counted", "late_fact", "resolved", "parked", "settle",
        "duplicate_detected", "count_given_up",
    }  # fmt: skip
    assert {trace[2]["intent"]["safety"] for trace in traces} == {
        "idempotent", "reconcilable", "unsafe", "transactional",
    }  # fmt: skip


# One changed place ------------------------------------------------------------------------------


@pytest.mark.parametrize("rechain", [False, True], ids=["edited", "chained again"])
def test_every_changed_place_is_found_or_listed(traces: list[Trace], rechain: bool) -> None:
    listed = UNBOUND_ROWS | (UNBOUND_EVENTS | CHAIN if rechain else set())
    passed: Counter[str] = Counter()
    for trace in traces:
        for path in leaves(trace[2]):
            for other in falsities(name_of(path), at(trace[2], path)):
                place = place_of(path, at(trace[2], path), other)
                report = judged(trace, partial(put, path=path, new=other), rechain=rechain)
                passed[place] += report.clean
    assert {place for place, count in passed.items() if count} <= listed


def test_a_line_that_was_edited_is_found_whatever_it_says(traces: list[Trace]) -> None:
    """The lists above are about an attacker with care; a careless one never gets so far."""
    for trace in traces:
        raw = sealed(trace)
        for path in leaves(trace[2]):
            place = json.dumps(trace[2], separators=(",", ":"), ensure_ascii=False).encode()
            other = next(iter(falsities(name_of(path), at(trace[2], path))))
            forged = json.loads(place)
            put(forged, path, other)
            edited = json.dumps(forged, separators=(",", ":"), ensure_ascii=False).encode()
            line = raw[2].replace(place[1:], edited[1:])
            assert line != raw[2]
            report = verify_lines([*raw[:2], line, raw[3]])
            assert Rule.LINE in {v.rule for v in report.violations}
            assert all(v.line == 3 for v in report.violations if v.rule is Rule.LINE)


# Events and rows that are dropped, doubled, swapped -----------------------------------------------


def _drop(name: str, index: int) -> Callable[[Line], None]:
    return lambda effect: effect[name].pop(index)


def _double(name: str, index: int) -> Callable[[Line], None]:
    return lambda effect: effect[name].insert(index, dict(effect[name][index]))


def _swap(name: str, index: int) -> Callable[[Line], None]:
    def forge(effect: Line) -> None:
        rows = effect[name]
        rows[index], rows[index + 1] = rows[index + 1], rows[index]

    return forge


def _and_renumbered(forge: Callable[[Line], Any]) -> Callable[[Line], None]:
    def careful(effect: Line) -> None:
        forge(effect)
        renumbered(effect)

    return careful


@pytest.mark.parametrize("mutation", [_drop, _double, _swap])
def test_no_event_is_dropped_doubled_or_moved(
    traces: list[Trace], mutation: Callable[[str, int], Callable[[Line], None]]
) -> None:
    for trace in traces:
        count = len(trace[2]["events"])
        for index in range(count - (mutation is _swap)):
            forge = mutation("events", index)
            report = judged(trace, forge, rechain=False)
            assert not report.clean
            # Chained again, the gap in the numbers is what remains.
            if not (mutation is _drop and index in (0, count - 1)):
                _requires(judged(trace, forge, rechain=True), Rule.SEQUENCE)


@pytest.mark.parametrize("mutation", [_drop, _double, _swap])
def test_nor_if_all_is_numbered_and_chained_again(
    traces: list[Trace], mutation: Callable[[str, int], Callable[[Line], None]]
) -> None:
    """Events that hold no fact may go: a wait, a park that was lifted, a look-up that died."""
    # Nor does it show that somebody asked twice for a look.
    factless = {
        "wait", "park", "parked", "probe_started", "count_started", "reconcile_asked",
    }  # fmt: skip
    passed: Counter[str] = Counter()
    for trace in traces:
        events = trace[2]["events"]
        for index in range(len(events) - (mutation is _swap)):
            forge = _and_renumbered(mutation("events", index))
            moved = {events[index]["kind"]}
            if mutation is _swap and events[index]["at"] == events[index + 1]["at"]:
                # Before a fact of the same moment it is where it might have been as well.
                moved.add(events[index + 1]["kind"])
            if judged(trace, forge, rechain=True).clean and not moved & factless:
                passed[events[index]["kind"]] += 1
    assert passed == {}


@pytest.mark.parametrize("name", ["attempts", "evidence", "mutations", "resolutions"])
@pytest.mark.parametrize("mutation", [_drop, _double])
def test_no_row_is_dropped_or_doubled(
    traces: list[Trace],
    name: str,
    mutation: Callable[[str, int], Callable[[Line], None]],
) -> None:
    seen = 0
    for trace in traces:
        for index in range(len(trace[2][name])):
            for rechain in (False, True):
                assert not judged(trace, mutation(name, index), rechain=rechain).clean
                seen += 1
    assert seen


def test_a_missing_receipt_is_found(traces: list[Trace]) -> None:
    def forge(effect: Line) -> None:
        effect["receipt"] = None

    settled = [trace for trace in traces if trace[2]["receipt"] is not None]
    for trace in settled:
        _requires(judged(trace, forge, rechain=True), Rule.RECEIPT)
    assert settled


def test_a_receipt_with_another_content_is_found_though_all_digests_fit(
    traces: list[Trace],
) -> None:
    for trace in traces:
        if trace[2]["receipt"] is None:
            continue
        content = json.loads(trace[2]["receipt"]["content"])
        for name in [*content, "an added one"]:

            def forge(effect: Line, name: str = name, content: Line = content) -> None:
                told = {**content, name: "x"}
                text = json.dumps(told, sort_keys=True, separators=(",", ":"))
                digest = sha256(text.encode()).hexdigest()
                effect["receipt"] |= {"content": text, "digest": digest}
                effect["intent"]["receipt_digest"] = digest

            report = judged(trace, forge, rechain=True)
            _requires(report, Rule.RECEIPT)


# The place of a violation -------------------------------------------------------------------------


def test_a_violation_names_effect_event_and_rule(traces: list[Trace]) -> None:
    trace = next(t for t in traces if len(t[2]["events"]) > 4)
    event = trace[2]["events"][3]

    def forge(effect: Line) -> None:
        effect["events"][3]["reason"] = "because"

    report = judged(trace, forge, rechain=False)
    found = [v for v in report.violations if v.rule is Rule.CHAIN]
    assert [v.sequence for v in found] == [event["sequence"]]
    assert {str(v.effect_id) for v in found} == {trace[2]["intent"]["effect_id"]}
    assert {v.line for v in found} == {3}
    assert not any("because" in v.what for v in report.violations)


def _requires(report: TraceReport, rule: Rule) -> None:
    assert rule in {violation.rule for violation in report.violations}, report.violations


# The file -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def file(traces: list[Trace]) -> Trace:
    """A trace of several effects."""
    effects = sorted((t[2] for t in traces), key=lambda e: str(e["intent"]["effect_id"]))
    distinct = {e["intent"]["effect_id"]: e for e in effects}
    contracts = {t[1]["contract_digest"]: t[1] for t in traces}
    end = {
        "type": "end",
        "contracts": len(contracts),
        "effects": len(distinct),
        "events": sum(len(e["events"]) for e in distinct.values()),
    }
    return [traces[0][0], *contracts.values(), *distinct.values(), end]


def test_effects_stand_in_their_order_each_once(file: Trace) -> None:
    assert verify_lines(sealed(file)).clean
    effects = [n for n, line in enumerate(file) if line["type"] == "effect"]
    first, second = effects[:2] if len(effects) > 1 else (effects[0], effects[0])
    doubled = [*file[: first + 1], *file[first:]]
    _requires(verify_lines(sealed(doubled)), Rule.ORDER)
    if first != second:
        swapped = list(file)
        swapped[first], swapped[second] = swapped[second], swapped[first]
        _requires(verify_lines(sealed(swapped)), Rule.ORDER)


def test_a_dropped_or_doubled_line_is_found(file: Trace) -> None:
    raw = sealed(file)
    for index in range(1, len(raw) - 1):
        assert not verify_lines([*raw[:index], *raw[index + 1 :]]).clean
        assert not verify_lines([*raw[:index], raw[index], *raw[index:]]).clean
        _requires(verify_lines(sealed([*file[:index], *file[index + 1 :]])), Rule.COUNT)


def test_a_cut_file_is_unreadable(file: Trace) -> None:
    raw = sealed(file)
    for index in range(len(raw)):
        with pytest.raises(TraceUnreadable):
            verify_lines(raw[:index])
    with pytest.raises(TraceUnreadable, match="line 3"):
        verify_lines([*raw[:2], raw[2][: len(raw[2]) // 2], *raw[3:]])
    with pytest.raises(TraceUnreadable, match="follows the end"):
        verify_lines([*raw, raw[-1]])


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"type":"header"}',
        b"PK\x03\x04",
        b"[" * 9999,
    ],
)
def test_a_foreign_file_is_unreadable(line: bytes) -> None:
    with pytest.raises(TraceUnreadable):
        verify_lines([line])


def test_another_format_is_unreadable_and_named(file: Trace) -> None:
    other = [{**file[0], "format": "effect-broker/trace/2"}, *file[1:]]
    with pytest.raises(TraceUnreadable, match="trace/1"):
        verify_lines(sealed(other))


# Chance -------------------------------------------------------------------------------------------


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(choice=st.data())
def test_several_forgeries_at_once_hide_nothing(traces: list[Trace], choice: st.DataObject) -> None:
    """Two changes must not cancel each other out, nor make the check stumble."""
    trace = traces[choice.draw(st.integers(0, len(traces) - 1))]
    listed = UNBOUND_ROWS | UNBOUND_EVENTS | CHAIN
    places = [path for path in leaves(trace[2]) if place_of(path) not in listed]
    paths = choice.draw(st.lists(st.sampled_from(places), min_size=1, max_size=3, unique=True))
    changes = [
        (path, choice.draw(st.sampled_from([*falsities(name_of(path), at(trace[2], path))])))
        for path in paths
    ]
    if any(place_of(path, at(trace[2], path), other) in listed for path, other in changes):
        return

    def forge(effect: Line) -> None:
        for path, other in changes:
            put(effect, path, other)

    assert not judged(trace, forge, rechain=choice.draw(st.booleans())).clean


@settings(max_examples=150, deadline=None)
@given(
    where=st.integers(0, 10_000),
    junk=st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.just([None])),
)
def test_junk_in_any_place_is_a_finding_and_no_crash(
    traces: list[Trace], where: int, junk: Any
) -> None:
    trace = traces[where % len(traces)]
    paths = [*leaves(trace[2])]
    path = paths[where % len(paths)]
    if at(trace[2], path) == junk and type(at(trace[2], path)) is type(junk):
        return
    forged = json.loads(json.dumps(trace[2]))
    put(forged, path, junk)
    report = verify_lines(sealed([*trace[:2], forged, end_of(forged)]))
    assert not report.clean or place_of(path) in UNBOUND_ROWS


def test_a_chained_forgery_is_chained(traces: list[Trace]) -> None:
    """The forger of these tests does his work: unforged, what he makes again is the same."""
    for trace in traces:
        again = json.loads(json.dumps(trace[2]))
        rechained(again)
        assert again == trace[2]
