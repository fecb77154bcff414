"""An effect's events are one chain, in time, each move a legal one, and the intent is its head."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest

from effect_contracts.trace.chain import chain_findings
from effect_contracts.trace.findings import Rule
from effect_contracts.trace.log import EffectLine
from trace_check.corpus import scheduled
from trace_check.forging import Line, parsed, rechained

Found = list[tuple[Rule, str, int | None]]
Change = Callable[[Line], Any]
UNFIT = "its digest does not fit its content"
ORPHAN = "it does not bear the digest of the event before"


@pytest.fixture(scope="module")
def story() -> tuple[Line, datetime]:
    """An effect that was sent, and settled by the answer; and when it was exported."""
    lines = next(
        lines
        for lines in (parsed(scheduled("idempotent", seed)) for seed in range(200))
        if len(lines[2]["events"]) >= 6 and lines[2]["intent"]["state"] == "succeeded"
    )
    return lines[2], datetime.fromisoformat(lines[0]["exported_at"])


def found(
    story: tuple[Line, datetime], change: Change | None = None, *, rechain: bool = False
) -> Found:
    effect = copy.deepcopy(story[0])
    if change is not None:
        change(effect)
    if rechain:
        rechained(effect)
    line = EffectLine.model_validate_json(json.dumps(effect))
    return [(f.rule, f.what, f.sequence) for f in chain_findings(line, story[1])]


def of(rule: Rule, findings: Found) -> Found:
    return [one for one in findings if one[0] is rule]


def at(offset_seconds: float, moment: str) -> str:
    return (datetime.fromisoformat(moment) + timedelta(seconds=offset_seconds)).isoformat()


def test_what_the_broker_wrote_is_a_chain(story: tuple[Line, datetime]) -> None:
    assert found(story) == []


def test_an_account_without_an_event_has_no_fault_of_a_chain(story: tuple[Line, datetime]) -> None:
    assert found(story, lambda effect: effect.update(events=[])) == []


def test_what_is_left_after_pruning_is_a_chain_of_its_own(story: tuple[Line, datetime]) -> None:
    for count in range(1, len(story[0]["events"])):
        kept = story[0]["events"][count:]
        assert found(story, partial(dict.update, events=kept)) == []


# Sequence and digests -----------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, -1])
def test_no_event_is_numbered_below_one(story: tuple[Line, datetime], number: int) -> None:
    def renumbered(effect: Line) -> None:
        effect["events"][0]["sequence"] = number

    assert of(Rule.SEQUENCE, found(story, renumbered)) == [
        (Rule.SEQUENCE, "the first event is numbered below 1", number),
        (Rule.SEQUENCE, f"event {number} is followed by 2", 2),
    ]


@pytest.mark.parametrize("number", [1, 2, 4, 9])
def test_each_event_is_numbered_by_one_more_than_the_one_before(
    story: tuple[Line, datetime], number: int
) -> None:
    def renumbered(effect: Line) -> None:
        effect["events"][2]["sequence"] = number

    assert of(Rule.SEQUENCE, found(story, renumbered)) == [
        (Rule.SEQUENCE, f"event 2 is followed by {number}", number),
        (Rule.SEQUENCE, f"event {number} is followed by 4", 4),
    ]


@pytest.mark.parametrize("digest", ["0" * 64, "f" * 64, ""])
def test_each_event_bears_the_digest_of_the_one_before(
    story: tuple[Line, datetime], digest: str
) -> None:
    def altered(effect: Line) -> None:
        effect["events"][2]["previous_digest"] = digest

    assert found(story, altered) == [(Rule.CHAIN, ORPHAN, 3), (Rule.CHAIN, UNFIT, 3)]


@pytest.mark.parametrize("digest", ["0" * 64, "f" * 64])
def test_the_first_event_of_all_bears_no_digest(story: tuple[Line, datetime], digest: str) -> None:
    def altered(effect: Line) -> None:
        effect["events"][0]["previous_digest"] = digest

    assert found(story, altered) == [(Rule.CHAIN, ORPHAN, 1), (Rule.CHAIN, UNFIT, 1)]


@pytest.mark.parametrize("digest", ["0" * 64, "f" * 64])
def test_a_digest_that_was_altered_is_found_there_and_at_the_next_event(
    story: tuple[Line, datetime], digest: str
) -> None:
    def altered(effect: Line) -> None:
        effect["events"][2]["digest"] = digest

    assert found(story, altered) == [(Rule.CHAIN, UNFIT, 3), (Rule.CHAIN, ORPHAN, 4)]


@pytest.mark.parametrize(
    "member", ["kind", "event", "from_state", "to_state", "reason", "actor", "metadata"]
)
def test_no_word_of_an_event_can_be_changed_without_its_digest(
    story: tuple[Line, datetime], member: str
) -> None:
    def altered(effect: Line) -> None:
        effect["events"][2][member] = "x"

    assert of(Rule.CHAIN, found(story, altered)) == [(Rule.CHAIN, UNFIT, 3)]


@pytest.mark.parametrize("member", ["tenant_id", "effect_id"])
def test_events_of_another_effect_do_not_fit(story: tuple[Line, datetime], member: str) -> None:
    def altered(effect: Line) -> None:
        effect["intent"][member] = "00000000-0000-0000-0000-00000000000f"

    every = [(Rule.CHAIN, UNFIT, event["sequence"]) for event in story[0]["events"]]
    assert of(Rule.CHAIN, found(story, altered)) == every


# Time ---------------------------------------------------------------------------------------------


def test_time_does_not_run_backwards(story: tuple[Line, datetime]) -> None:
    def moved(seconds: float) -> Change:
        def change(effect: Line) -> None:
            effect["events"][2]["at"] = at(seconds, effect["events"][1]["at"])
            for event in effect["events"][3:]:
                event["at"] = effect["events"][-1]["at"]

        return change

    assert found(story, moved(0), rechain=True) == []
    assert found(story, moved(-0.000001), rechain=True) == [
        (Rule.TIME, "it is older than the event before", 3)
    ]


def test_nothing_is_younger_than_the_export(story: tuple[Line, datetime]) -> None:
    exported_at = story[1].isoformat()

    def last(seconds: float) -> Change:
        def change(effect: Line) -> None:
            effect["events"][-1]["at"] = at(seconds, exported_at)
            effect["intent"]["updated_at"] = at(seconds, exported_at)

        return change

    number = story[0]["events"][-1]["sequence"]
    assert found(story, last(0), rechain=True) == []
    assert found(story, last(0.000001), rechain=True) == [
        (Rule.TIME, "it is younger than the export", number),
        (Rule.TIME, "the intent was changed after the export", None),
    ]


# Moves --------------------------------------------------------------------------------------------


def moves(story: tuple[Line, datetime], place: int, **changes: Any) -> Found:
    def change(effect: Line) -> None:
        effect["events"][place].update(changes)

    return of(Rule.LIFE, found(story, change))


@pytest.mark.parametrize(
    "change",
    [
        {"event": "nothing_sent"}, {"from_state": "prepared"}, {"from_state": ""},
        {"event": "tampered"}, {"event": "a"},
    ],
)  # fmt: skip
def test_an_effect_begins_with_its_submit(
    story: tuple[Line, datetime], change: dict[str, Any]
) -> None:
    begins = (Rule.LIFE, "an effect does not begin like this", 1)
    assert moves(story, 0, **change) == [begins]


@pytest.mark.parametrize("state", ["dispatching", "a", "z"])
def test_an_effect_begins_as_prepared(story: tuple[Line, datetime], state: str) -> None:
    begins = (Rule.LIFE, "an effect does not begin like this", 1)
    assert moves(story, 0, to_state=state)[0] == begins


def test_an_event_leaves_the_state_that_the_one_before_led_to(
    story: tuple[Line, datetime],
) -> None:
    for other, shown in (
        ("cancelled", "cancelled"), ("succeeded", "succeeded"), ("x", "an unknown state"),
    ):  # fmt: skip
        elsewhere = (Rule.LIFE, f"it leaves {shown}, the event before led elsewhere", 3)
        assert elsewhere in moves(story, 2, from_state=other)
    missing = moves(story, 2, from_state=None)
    assert (Rule.LIFE, "it leaves an unknown state, the event before led elsewhere", 3) in missing
    assert (Rule.LIFE, "an unknown state or move", 3) in missing


def test_a_move_that_nobody_knows_is_not_repeated(story: tuple[Line, datetime]) -> None:
    assert moves(story, 2, event="hunter2") == [(Rule.LIFE, "an unknown state or move", 3)]
    for place, number in ((1, 2), (2, 3)):
        words = " ".join(what for _, what, _ in moves(story, place, to_state="hunter2"))
        assert f"event {number}" not in words
        assert "hunter2" not in words
        assert "not to an unknown state" in words


def test_a_move_that_the_table_does_not_have_is_named(story: tuple[Line, datetime]) -> None:
    ((rule, what, sequence),) = moves(story, 2, event="undone")
    assert (rule, sequence) == (Rule.LIFE, 3)
    assert "undone" in what


@pytest.mark.parametrize("state", ["cancelled", "succeeded", "manual_review"])
def test_a_move_leads_where_the_table_says(story: tuple[Line, datetime], state: str) -> None:
    event = story[0]["events"][1]
    assert (event["event"], event["to_state"]) == ("attempt_started", "dispatching")
    leads = (Rule.LIFE, f"attempt_started leads to dispatching, not to {state}", 2)
    assert moves(story, 1, to_state=state)[0] == leads


# The head -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("version", 1), ("version", 99),
        ("event_digest", "0" * 64), ("event_digest", "f" * 64),
        ("state", "cancelled"), ("state", "prepared"),
        ("reason", "a"), ("reason", "z"),
    ],
)  # fmt: skip
def test_the_intent_says_what_its_last_event_does(
    story: tuple[Line, datetime], member: str, value: Any
) -> None:
    def altered(effect: Line) -> None:
        effect["intent"][member] = value

    number = story[0]["events"][-1]["sequence"]
    what = f"the intent's {member} is not that of the last event"
    assert found(story, altered) == [(Rule.HEAD, what, number)]


def test_the_intent_was_not_changed_before_its_last_event(story: tuple[Line, datetime]) -> None:
    last = story[0]["events"][-1]

    def changed(seconds: float) -> Change:
        def change(effect: Line) -> None:
            effect["intent"]["updated_at"] = at(seconds, last["at"])

        return change

    assert found(story, changed(0)) == []
    assert found(story, changed(-0.000001)) == [
        (Rule.HEAD, "the intent was changed before its last event", last["sequence"])
    ]
