"""The account of a real run is clean, and it holds what a run can go through."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial

import pytest

from effect_contracts.trace import verify_lines
from trace_check.falsities import falsities
from trace_check.forging import Line, at, judged, leaves, parsed, put, singles
from trace_check.places import CHAIN, UNBOUND_EVENTS, UNBOUND_ROWS, name_of, place_of

pytestmark = pytest.mark.timeout(600)


def test_a_real_run_is_clean(real_lines: list[bytes]) -> None:
    report = verify_lines(real_lines, whole=True)
    assert report.violations == ()
    assert report.effects > 15


def test_the_run_went_where_it_hurts(real_lines: list[bytes]) -> None:
    effects = [json.loads(line) for line in real_lines if b'"type":"effect"' in line]
    states = Counter(effect["intent"]["state"] for effect in effects)
    assert states.keys() >= {"succeeded", "failed_final", "cancelled", "outcome_unknown"}
    kinds = {event["kind"] for effect in effects for event in effect["events"]}
    # Waits depend on how busy the machine is.
    assert kinds >= {
        "submitted", "attempt_started", "outcome_recorded", "probe_started", "evidence_added",
        "park", "settle", "late_fact", "count_started", "counted",
    }  # fmt: skip
    outcomes = {attempt["outcome"] for effect in effects for attempt in effect["attempts"]}
    assert outcomes >= {"committed", "rejected", "retryable", "ambiguous", "presumed_ambiguous"}
    assert {effect["intent"]["safety"] for effect in effects} == {
        "idempotent", "reconcilable", "unsafe", "transactional",
    }  # fmt: skip
    assert any(m["kind"] == "fence" for effect in effects for m in effect["mutations"])


def test_nothing_can_be_taken_out_of_a_real_account(real_lines: list[bytes]) -> None:
    def without(effect: Line, name: str, index: int) -> None:
        effect[name].pop(index)

    for trace in singles(parsed(real_lines)):
        for name in ("events", "attempts", "evidence", "mutations", "resolutions"):
            for index in range(len(trace[2][name])):
                forge = partial(without, name=name, index=index)
                assert not judged(trace, forge, rechain=False).clean


def test_no_word_of_a_real_account_can_be_changed(real_lines: list[bytes]) -> None:
    """One falsity for each place; those places aside that nothing binds."""
    for trace in singles(parsed(real_lines)):
        for path in leaves(trace[2]):
            other = next(iter(falsities(name_of(path), at(trace[2], path))))
            forge = partial(put, path=path, new=other)
            if place_of(path) not in UNBOUND_ROWS:
                assert not judged(trace, forge, rechain=False).clean, (path, other)
            place = place_of(path, at(trace[2], path), other)
            if place not in UNBOUND_ROWS | UNBOUND_EVENTS | CHAIN:
                assert not judged(trace, forge, rechain=True).clean, (path, other)
