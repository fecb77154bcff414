"""The check of a file at its edges: either side of a digest, a format, a number and a place."""

from __future__ import annotations

import hashlib
import json
from uuid import UUID

import pytest

from effect_contracts.trace import Rule, verify_lines
from trace_check.forging import Line, rechained, sealed
from trace_check.test_check import _pruned, found, report, trace, unreadable


@pytest.mark.parametrize("sign", [b"0", b"f"])
def test_a_digest_that_is_not_the_lines_own_is_named_whichever_way_it_differs(sign: bytes) -> None:
    raw = sealed(trace())
    own = json.loads(raw[1])["digest"].encode()
    told = verify_lines([raw[0], raw[1].replace(own, sign * len(own), 1), *raw[2:]], whole=True)
    assert (2, Rule.LINE) in {(one.line, one.rule) for one in told.violations}


@pytest.mark.parametrize("kind", ["contract", "odd", "a", 7, None])
def test_a_trace_begins_with_its_header_and_with_no_other_kind(kind: object) -> None:
    lines = trace()
    first = {**lines[0], "type": kind}
    assert unreadable(sealed([first, *lines])) == "the trace does not begin with its header"


@pytest.mark.parametrize("told", ["effect-broker/trace/0", "effect-broker/trace/2", "a", 1, None])
def test_another_format_is_not_read_be_it_older_or_newer(told: object) -> None:
    lines = trace()
    assert unreadable(sealed([{**lines[0], "format": told}, *lines[1:]])) == (
        "another format; this release reads effect-broker/trace/1"
    )


@pytest.mark.parametrize(
    ("first", "second", "in_place"),
    [("1", "2", True), ("2", "2", False), ("2", "1", False), ("f", "0", False), ("0", "f", True)],
)
@pytest.mark.parametrize("member", ["tenant_id", "effect_id"])
def test_effects_stand_in_the_order_of_their_ids(
    member: str, first: str, second: str, in_place: bool
) -> None:
    header, contract, effect, end = trace()

    def of(digit: str) -> Line:
        return {**effect, "intent": {**effect["intent"], member: str(UUID(digit * 32))}}

    count = {**end, "effects": 2, "events": 2 * end["events"]}
    told = found([header, contract, of(first), of(second), count])
    misplaced = [one[0] for one in told if one[1] is Rule.ORDER]
    assert misplaced == ([] if in_place else [4])


def test_events_that_are_numbered_below_one_are_not_taken_for_pruned() -> None:
    lines = trace()
    for number, event in enumerate(lines[2]["events"]):
        event["sequence"] = number
    rechained(lines[2])
    told = report(lines)
    assert (told.pruned_effects, Rule.PRUNED in {one.rule for one in told.violations}) == (0, False)
    assert Rule.SEQUENCE in {one.rule for one in told.violations}


@pytest.mark.parametrize("kept", [True, False])
def test_a_receipt_is_judged_by_its_event_or_where_that_was_pruned_by_the_facts(
    kept: bool,
) -> None:
    """What it says of an event that is there may have been known by that event alone."""
    lines = trace() if kept else _pruned(0)
    assert Rule.RECEIPT not in {one[1] for one in found(lines, whole=False)}
    receipt = lines[2]["receipt"]
    content = json.loads(receipt["content"])
    content["attempts"] += 1
    receipt["content"] = json.dumps(content, separators=(",", ":"), sort_keys=True)
    receipt["digest"] = hashlib.sha256(receipt["content"].encode()).hexdigest()
    lines[2]["intent"]["receipt_digest"] = receipt["digest"]
    words = [one[2] for one in found(lines, whole=False) if one[1] is Rule.RECEIPT]
    assert words[0] == "the receipt says something else in: attempts"
