"""The replay of one effect: for each thing that an event must not say, what is said of it.

Accounts are those of real runs of the steps, one word of them forged and all chained again; so it
is the rule itself that finds it, and says where. The widest search for words that nobody notices is
`test_forgeries`.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import pytest

from effect_contracts.trace import verify_lines
from effect_contracts.trace.findings import Rule
from trace_check.forging import Forge, Line, end_of, parsed, rechained, sealed
from trace_check.staged import SCENES, account

Said = tuple[Rule, str, int | None]
NOBODY = "00000000-0000-0000-0000-000000000000"
A_TICK = timedelta(microseconds=1)


@cache
def _trace(scene: str) -> list[Line]:
    async def played() -> list[bytes]:
        return account(await SCENES[scene]())

    return parsed(asyncio.run(played()))


def said(scene: str, forge: Forge, *, whole: bool = True) -> list[Said]:
    """What the check says of a scene that was forged; events may be missing where not whole."""
    header, contract, effect, _ = copy.deepcopy(_trace(scene))
    forge(effect)
    rechained(effect)
    found = verify_lines(sealed([header, contract, effect, end_of(effect)]), whole=whole).violations
    return [(one.rule, one.what, one.sequence) for one in found]


def event(effect: Line, kind: str, nth: int = 0) -> Line:
    found: Line = [one for one in effect["events"] if one["kind"] == kind][nth]
    return found


def told(kind: str, nth: int = 0, **members: Any) -> Forge:
    """Members of an event's metadata are others; None takes one away."""

    def forge(effect: Line) -> None:
        row = event(effect, kind, nth)
        metadata = {**json.loads(row["metadata"]), **members}
        kept = {name: value for name, value in metadata.items() if value is not None}
        row["metadata"] = json.dumps(kept, separators=(",", ":"), sort_keys=True)

    return forge


def flipped(kind: str, nth: int) -> Forge:
    """What an event says of the receipt is the opposite."""

    def forge(effect: Line) -> None:
        said_so = json.loads(event(effect, kind, nth)["metadata"])["contradicts"]
        told(kind, nth, contradicts=not said_so)(effect)

    return forge


def column(of: str, nth: int = 0, **columns: Any) -> Forge:
    """Columns of an event are others."""

    def forge(effect: Line) -> None:
        event(effect, of, nth).update(columns)

    return forge


def row(table: str, nth: int = 0, **columns: Any) -> Forge:
    """Columns of a row are others; those of the intent where no table is named."""

    def forge(effect: Line) -> None:
        (effect["intent"] if table == "intent" else effect[table][nth]).update(columns)

    return forge


def moved(table: str, name: str, by: timedelta, nth: int = 0) -> Forge:
    """A moment of a row lies elsewhere."""

    def forge(effect: Line) -> None:
        record = effect["intent"] if table == "intent" else effect[table][nth]
        at = datetime.fromisoformat(record[name])
        record[name] = (at + by).isoformat().replace("+00:00", "Z")

    return forge


def both(*forges: Forge) -> Forge:
    def forge(effect: Line) -> None:
        for one in forges:
            one(effect)

    return forge


def number(scene: str, kind: str, nth: int = 0) -> int:
    sequence: int = event(_trace(scene)[2], kind, nth)["sequence"]
    return sequence


# That one is of several effects.
ONE_EFFECT = [scene for scene in SCENES if scene != "refused_in_all_ways"]


@pytest.mark.parametrize("scene", ONE_EFFECT)
def test_what_is_not_forged_is_clean(scene: str) -> None:
    assert said(scene, lambda _effect: None) == []


# Scene, forgery, kind and place of the event, the rule and its words.
Case = tuple[str, Forge, str, int, Rule, str]
CASES: dict[str, Case] = {
    "a submit of another contract": (
        "expired", told("submitted", contract_digest="0" * 64), "submitted", 0,
        Rule.IDENTITY, "it was submitted as something else",
    ),
    "a submit with an odd drill": (
        "expired", told("submitted", drill_id="d"), "submitted", 0,
        Rule.KIND, "the drill's id is none",
    ),
    "a submit of somebody else": (
        "expired", column("submitted", actor="caller:other"), "submitted", 0,
        Rule.IDENTITY, "somebody else asked for it",
    ),
    "a submit for another reason": (
        "expired", column("submitted", reason="because"), "submitted", 0,
        Rule.DECISION, "a submit has no other reason",
    ),
    "an attempt of another id": (
        "polled", told("attempt_started", attempt_id=NOBODY), "attempt_started", 0,
        Rule.FACTS, "another attempt",
    ),
    "an attempt that is not there": (
        "polled", told("attempt_started", ordinal=2), "attempt_started", 0,
        Rule.FACTS, "there is no attempt 2",
    ),
    "an attempt of no number": (
        "polled", told("attempt_started", ordinal=True), "attempt_started", 0,
        Rule.KIND, "ordinal is no whole number",
    ),
    "an attempt of another request": (
        "polled", told("attempt_started", wire_digest="0" * 64), "attempt_started", 0,
        Rule.FACTS, "the intent holds another wire request than this attempt had",
    ),
    "an attempt that started earlier": (
        "polled", moved("attempts", "started_at", -A_TICK), "attempt_started", 0,
        Rule.FACTS, "the attempt started at another time",
    ),
    "an attempt of another worker": (
        "polled", row("attempts", executor_id="other"), "attempt_started", 0,
        Rule.ACTOR, "only the process that sends writes this",
    ),
    "an attempt that lasts longer": (
        "polled", moved("attempts", "deadline_at", A_TICK), "attempt_started", 0,
        Rule.FACTS, "the attempt has another deadline",
    ),
    "an attempt for another reason": (
        "polled", column("attempt_started", reason="same_key_again"), "attempt_started", 0,
        Rule.DECISION, "the facts said attempt_started (first_attempt)",
    ),
    "an attempt by another move": (
        "polled", column("attempt_started", event="attempt_open"), "attempt_started", 0,
        Rule.LIFE, "",
    ),
    "an outcome with another code": (
        "polled", told("outcome_recorded", code="x"), "outcome_recorded", 0,
        Rule.FACTS, "attempt 1 has another outcome or code",
    ),
    "an outcome that came late": (
        "polled", told("outcome_recorded", late=True), "outcome_recorded", 0,
        Rule.FACTS, "late is told of an outcome in time, or not",
    ),
    "an outcome of another moment": (
        "polled", moved("attempts", "recorded_at", -A_TICK), "outcome_recorded", 0,
        Rule.FACTS, "attempt 1 was recorded at another time",
    ),
    "an outcome whose row was changed": (
        "polled", told("outcome_recorded", fact_digest="0" * 64), "outcome_recorded", 0,
        Rule.FACTS, "the row of this fact says something else than it did",
    ),
    "an outcome of another row of the table": (
        "resolved_as_committed", told("outcome_recorded", row=9), "outcome_recorded", 0,
        Rule.DECISION, "row 11 of the table applied",
    ),
    "an outcome with a turn": (
        "polled", told("outcome_recorded", turn_at="2026-01-01T00:00:00.000000Z"),
        "outcome_recorded", 0, Rule.KIND, "only who waits for a turn names one",
    ),
    "an outcome that settles nothing and names a receipt": (
        "polled", told("outcome_recorded", receipt_digest="0" * 64), "outcome_recorded", 0,
        Rule.RECEIPT, "nothing is settled here",
    ),
    "a settlement with another receipt": (
        "expired", told("settle", receipt_digest="0" * 64), "settle", 0,
        Rule.RECEIPT, "the settling event names another receipt",
    ),
    "a look-up that covers less": (
        "looked_up_on_demand", told("probe_started", covers_through=0), "probe_started", 0,
        Rule.FACTS, "a look-up covers all attempts so far",
    ),
    "evidence that nobody stored": (
        "looked_up_on_demand", told("evidence_added", code="x"), "evidence_added", 0,
        Rule.FACTS, "no evidence of this moment says this",
    ),
    "evidence of another id": (
        "looked_up_on_demand", told("evidence_added", evidence_id=NOBODY), "evidence_added", 0,
        Rule.FACTS, "no evidence of this moment says this",
    ),
    "evidence whose row was changed": (
        "looked_up_on_demand", told("evidence_added", fact_digest="0" * 64), "evidence_added", 0,
        Rule.FACTS, "the row of this fact says something else than it did",
    ),
    "evidence of another look-up": (
        "looked_up_on_demand",
        both(moved("evidence", "began_at", A_TICK), told("evidence_added", fact_digest=None)),
        "evidence_added", 0, Rule.FACTS, "no look-up began when this one did",
    ),
    "evidence of the future": (
        "looked_up_on_demand",
        both(moved("evidence", "began_at", timedelta(days=1)),
             told("evidence_added", fact_digest=None)),
        "evidence_added", 0, Rule.TIME, "the observation ended before it began",
    ),
    "evidence of another worker's look-up": (
        "looked_up_on_demand", column("evidence_added", actor="worker:other"),
        "evidence_added", 0, Rule.ACTOR, "another worker began the look-up",
    ),
    "evidence that a caller told of a look-up": (
        "looked_up_on_demand", column("evidence_added", actor="caller:c"), "evidence_added", 0,
        Rule.ACTOR, "who says this?",
    ),
    "evidence that covers more than its look-up": (
        "looked_up_on_demand",
        both(row("evidence", covers_through=0),
             told("evidence_added", covers_through=0, fact_digest=None)),
        "evidence_added", 0, Rule.FACTS, "it covers other attempts than its look-up did",
    ),
    "evidence of attempts to come": (
        "looked_up_on_demand",
        both(row("evidence", covers_through=2),
             told("evidence_added", covers_through=2, fact_digest=None)),
        "evidence_added", 0, Rule.FACTS, "it covers attempts of the future",
    ),
    "a resolution of nobody": (
        "proved_absent", told("resolved", decision_id="x"), "resolved", 0,
        Rule.FACTS, "there is no resolution of this decision",
    ),
    "a resolution with another conclusion": (
        "proved_absent", told("resolved", conclusion="failed"), "resolved", 0,
        Rule.FACTS, "the resolution says something else",
    ),
    "a resolution with another digest": (
        "proved_absent", told("resolved", digest="0" * 64), "resolved", 0,
        Rule.FACTS, "the resolution says something else",
    ),
    "a resolution of another person": (
        "proved_absent", column("resolved", actor="operator:other"), "resolved", 0,
        Rule.FACTS, "the resolution says something else",
    ),
    "a resolution of another moment": (
        "proved_absent", moved("resolutions", "recorded_at", -A_TICK), "resolved", 0,
        Rule.FACTS, "the resolution says something else",
    ),
    "a resolution with other evidence": (
        "proved_absent", row("evidence", code="other"), "resolved", 0,
        Rule.FACTS, "its evidence says something else",
    ),
    "a resolution that covers less": (
        "proved_absent",
        both(row("evidence", covers_through=0),
             told("resolved", covers_through=0, fact_digest=None)),
        "resolved", 0, Rule.FACTS, "it covers all attempts",
    ),
    "a resolution on an observation of the future": (
        "resolved_as_committed",
        both(moved("evidence", "began_at", timedelta(days=1)), told("resolved", fact_digest=None)),
        "resolved", 0, Rule.TIME, "the observation ended before it began",
    ),
    "a resolution whose evidence was changed": (
        "proved_absent", told("resolved", fact_digest="0" * 64), "resolved", 0,
        Rule.FACTS, "the row of this fact says something else than it did",
    ),
    "a failure that the intent does not bear": (
        "resolved_as_failed", moved("intent", "failed_by_operator_at", -A_TICK), "resolved", 0,
        Rule.FACTS, "the intent does not bear that it was given up",
    ),
    "a cancel of another moment": (
        "withdrawn", moved("intent", "cancel_requested_at", -A_TICK), "cancelled", 0,
        Rule.FACTS, "the intent was withdrawn otherwise",
    ),
    "a park that was a wait": (
        "target_changed", column("park", kind="wait"), "wait", 0,
        Rule.DECISION, "the facts said park (target_changed) instead",
    ),
    "a settlement of another row of the table": (
        "expired", told("settle", row=8), "settle", 0,
        Rule.DECISION, "row 7 of the table applied",
    ),
    "runs that fail for another reason": (
        "failing_runs", column("parked", reason="paused"), "parked", 0,
        Rule.DECISION, "the facts said review_needed (run_failing)",
    ),
    "runs that fail in no generation": (
        "failing_runs", told("parked", generation="1"), "parked", 0,
        Rule.KIND, "generation is no whole number",
    ),
    "a late fact that contradicts nothing": (
        "resolved_as_failed", told("late_fact", contradicts=False), "late_fact", 0,
        Rule.DECISION, "whether it contradicts the receipt is told wrongly",
    ),
    "a late fact that contradicts in other words": (
        "resolved_as_failed", told("late_fact", contradicts=1), "late_fact", 0,
        Rule.DECISION, "whether it contradicts the receipt is told wrongly",
    ),
    "a duplicate that is told as a late fact": (
        "told_by_a_webhook", column("duplicate_detected", kind="late_fact"), "late_fact", 0,
        Rule.DECISION, "the fact says duplicate_detected instead",
    ),
    "a late fact that is told as a duplicate": (
        "resolved_as_failed", column("late_fact", kind="duplicate_detected"),
        "duplicate_detected", 0, Rule.DECISION, "the fact says late_fact instead",
    ),
    "a late fact for another reason": (
        "resolved_as_failed", column("late_fact", reason="committed"), "late_fact", 0,
        Rule.AFTER_END, "the reason of a final effect stays",
    ),
    "a count that is told as a late fact": (
        "counted_as_absent", column("counted", kind="late_fact"), "late_fact", 0,
        Rule.DECISION, "the fact says counted instead",
    ),
    "a count that is told to contradict otherwise": (
        "counted_as_absent", flipped("counted", 1), "counted", 1,
        Rule.DECISION, "whether it contradicts the receipt is told wrongly",
    ),
    "a first count that is told to contradict otherwise": (
        "counted_as_absent", flipped("counted", 0), "counted", 0,
        Rule.DECISION, "whether it contradicts the receipt is told wrongly",
    ),
    "a count that was given up for no reason": (
        "not_counted", told("count_given_up", why="tired"), "count_given_up", 0,
        Rule.DECISION, "no count ends for this reason",
    ),
    "a count that was given up in no generation": (
        "not_counted", told("count_given_up", generation=None), "count_given_up", 0,
        Rule.KIND, "count_given_up has other members than these",
    ),
    "a compensation by nobody": (
        "undone_while_it_is_counted", told("compensated", by="x"), "compensated", 0,
        Rule.KIND, "by is no effect's id",
    ),
    "a compensation by an id in another spelling": (
        "undone_while_it_is_counted", told("compensated", by=NOBODY.replace("-", "")),
        "compensated", 0, Rule.KIND, "by is no effect's id",
    ),
    "an alert that nobody raised": (
        "acknowledged", told("acknowledged", alert="late_contradiction"), "acknowledged", 0,
        Rule.DECISION, "no such alert was raised",
    ),
    "no alert at all": (
        "acknowledged", told("acknowledged", alert="x"), "acknowledged", 0,
        Rule.DECISION, "no such alert was raised",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_word_that_was_never_said_is_found_where_it_stands(case: str) -> None:
    scene, forge, kind, nth, rule, words = CASES[case]
    forged = copy.deepcopy(_trace(scene)[2])
    forge(forged)
    place = event(forged, kind, nth)["sequence"]
    found = [(one[0], one[1]) for one in said(scene, forge) if one[2] == place]
    assert any(found_rule is rule and words in what for found_rule, what in found), found
    # Nothing is replayed beyond the first break.
    assert all(sequence is None or sequence <= place for _, _, sequence in said(scene, forge))


# What may be missing, and what was pruned ---------------------------------------------------------


@pytest.mark.parametrize("member", ["fact_digest", "evidence_id", "receipt_digest", "wire_digest"])
@pytest.mark.parametrize("scene", ["looked_up_on_demand", "acknowledged", "proved_absent"])
def test_events_of_the_first_releases_bind_less_and_are_read(scene: str, member: str) -> None:
    def forge(effect: Line) -> None:
        for one in effect["events"]:
            metadata = json.loads(one["metadata"])
            if one["kind"] != "resolved" or member != "evidence_id":
                metadata.pop(member, None)
            one["metadata"] = json.dumps(metadata, separators=(",", ":"), sort_keys=True)

    assert said(scene, forge) == []


def _without(*kinds: str) -> Callable[[Line], None]:
    """The events up to the last of these kinds were pruned."""

    def forge(effect: Line) -> None:
        last = max(one["sequence"] for one in effect["events"] if one["kind"] in kinds)
        effect["events"] = [one for one in effect["events"] if one["sequence"] > last]

    return forge


@pytest.mark.parametrize(
    ("scene", "kind"),
    [
        ("acknowledged", "late_fact"), ("acknowledged", "outcome_recorded"),
        ("counted_as_absent", "count_started"), ("looked_up_on_demand", "probe_started"),
        ("looked_up_on_demand", "count_started"), ("undone_while_it_is_counted", "count_started"),
        ("not_counted", "outcome_recorded"), ("polled", "probe_started"),
    ],
)  # fmt: skip
def test_what_follows_a_pruned_beginning_is_followed_from_there(scene: str, kind: str) -> None:
    assert said(scene, _without(kind), whole=False) == []


@pytest.mark.parametrize("last", [7, 8, 9, 10])
def test_an_alert_that_a_pruned_event_has_raised_stands_and_may_be_dealt_with(last: int) -> None:
    """Retention cuts by time, so that it may fall between two counts of one effect."""

    def forge(effect: Line) -> None:
        effect["events"] = [one for one in effect["events"] if one["sequence"] > last]

    for scene in ("counted_as_absent", "acknowledged"):
        if len(_trace(scene)[2]["events"]) > last:
            assert said(scene, forge, whole=False) == [], scene


def test_after_a_pruned_beginning_an_alert_is_still_one_of_ours() -> None:
    forge = both(_without("late_fact"), told("acknowledged", alert="x"))
    found = said("acknowledged", forge, whole=False)
    assert (Rule.DECISION, "no such alert was raised", 12) in found
