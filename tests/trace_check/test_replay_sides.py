"""A word that was never said is found on whichever side of the right one it lies.

Each place of an account is given a value that sorts before the right one and one that sorts after
it, and all is chained again; the rule that finds it is named, at the event where it stands.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest

from trace_check.forging import Forge, Line
from trace_check.test_replay import _trace, both, column, event, flipped, moved, row, said, told
from trace_check.test_replay_callers import _trace as of_callers
from trace_check.test_replay_callers import said as said_of_callers

A_TICK = timedelta(microseconds=1)
_DIGESTS, _IDS = (
    ("0" * 64, "f" * 64),
    tuple(f"{d * 8}-{d * 4}-{d * 4}-{d * 4}-{d * 12}" for d in "0f"),
)
_WORDS = ("a", "zz")


def _actors(role: str) -> tuple[str, str]:
    return f"{role}:!", f"{role}:~"


def unbound(forge: Forge, kind: str, nth: int) -> Forge:
    """The event no longer binds the row of its fact, as in the first releases."""
    return both(forge, told(kind, nth, fact_digest=None))


# Scene, kind and place of the event, what is forged and how, and the words.
Place = tuple[str, str, int, list[Forge], str]
PLACES: dict[str, Place] = {
    "who asked": (
        "expired", "submitted", 0, [column("submitted", actor=a) for a in _actors("caller")],
        "somebody else asked for it",
    ),
    "when it was asked for": (
        "expired", "submitted", 0, [moved("intent", "created_at", t) for t in (-A_TICK, A_TICK)],
        "it was submitted at another time",
    ),
    "why it was submitted": (
        "expired", "submitted", 0, [column("submitted", reason=word) for word in _WORDS],
        "a submit has no other reason",
    ),
    "which contract": (
        "expired", "submitted", 0, [told("submitted", contract_digest=d) for d in _DIGESTS],
        "it was submitted as something else",
    ),
    "which attempt": (
        "polled", "attempt_started", 0, [told("attempt_started", attempt_id=i) for i in _IDS],
        "another attempt",
    ),
    "which request": (
        "polled", "attempt_started", 0, [told("attempt_started", wire_digest=d) for d in _DIGESTS],
        "the intent holds another wire request than this attempt had",
    ),
    "when the attempt started": (
        "polled", "attempt_started", 0,
        [moved("attempts", "started_at", t) for t in (-A_TICK, A_TICK)],
        "the attempt started at another time",
    ),
    "who attempted": (
        "polled", "attempt_started", 0, [row("attempts", executor_id=word) for word in _WORDS],
        "only the process that sends writes this",
    ),
    "until when": (
        "polled", "attempt_started", 0,
        [moved("attempts", "deadline_at", t) for t in (-A_TICK, A_TICK)],
        "the attempt has another deadline",
    ),
    "why it was attempted": (
        "polled", "attempt_started", 0, [column("attempt_started", reason=w) for w in _WORDS],
        "the facts said attempt_started (first_attempt)",
    ),
    "what was answered": (
        "polled", "outcome_recorded", 0, [told("outcome_recorded", code=word) for word in _WORDS],
        "attempt 1 has another outcome or code",
    ),
    "when it was answered": (
        "polled", "outcome_recorded", 0,
        [moved("attempts", "recorded_at", t) for t in (-A_TICK, A_TICK)],
        "attempt 1 was recorded at another time",
    ),
    "the fact of an answer": (
        "polled", "outcome_recorded", 0,
        [told("outcome_recorded", fact_digest=d) for d in _DIGESTS],
        "the row of this fact says something else than it did",
    ),
    "the row of the table": (
        "resolved_as_committed", "outcome_recorded", 0,
        [told("outcome_recorded", row=number) for number in (10, 12)],
        "row 11 of the table applied",
    ),
    "the row of a settlement": (
        "expired", "settle", 0, [told("settle", row=number) for number in (6, 8)],
        "row 7 of the table applied",
    ),
    "which receipt": (
        "expired", "settle", 0, [told("settle", receipt_digest=d) for d in _DIGESTS],
        "the settling event names another receipt",
    ),
    "why it was settled": (
        "expired", "settle", 0, [column("settle", reason=word) for word in _WORDS],
        "the facts said failure_proved (expired)",
    ),
    "what a look-up covers": (
        "looked_up_on_demand", "probe_started", 0,
        [told("probe_started", covers_through=number) for number in (0, 2)],
        "a look-up covers all attempts so far",
    ),
    "why it was looked up": (
        "looked_up_on_demand", "probe_started", 0,
        [column("probe_started", reason=word) for word in _WORDS],
        "the facts said evidence_sought",
    ),
    "what was seen": (
        "looked_up_on_demand", "evidence_added", 0,
        [told("evidence_added", code=word) for word in _WORDS],
        "no evidence of this moment says this",
    ),
    "which evidence": (
        "looked_up_on_demand", "evidence_added", 0,
        [told("evidence_added", evidence_id=one) for one in _IDS],
        "no evidence of this moment says this",
    ),
    "when it was stored": (
        "looked_up_on_demand", "evidence_added", 0,
        [unbound(moved("evidence", "recorded_at", t), "evidence_added", 0)
         for t in (-A_TICK, A_TICK)],
        "no evidence of this moment says this",
    ),
    "the fact of evidence": (
        "looked_up_on_demand", "evidence_added", 0,
        [told("evidence_added", fact_digest=d) for d in _DIGESTS],
        "the row of this fact says something else than it did",
    ),
    "when it was looked": (
        "looked_up_on_demand", "evidence_added", 0,
        [unbound(moved("evidence", "began_at", t), "evidence_added", 0) for t in (-A_TICK, A_TICK)],
        "no look-up began when this one did",
    ),
    "who looked": (
        "looked_up_on_demand", "evidence_added", 0,
        [column("evidence_added", actor=actor) for actor in _actors("worker")],
        "another worker began the look-up",
    ),
    "which decision": (
        "proved_absent", "resolved", 0, [told("resolved", decision_id=word) for word in _WORDS],
        "there is no resolution of this decision",
    ),
    "the digest of a decision": (
        "proved_absent", "resolved", 0, [told("resolved", digest=d) for d in _DIGESTS],
        "the resolution says something else",
    ),
    "which evidence a decision made": (
        "proved_absent", "resolved", 0, [told("resolved", evidence_id=one) for one in _IDS],
        "the resolution says something else",
    ),
    "who decided": (
        "proved_absent", "resolved", 0,
        [column("resolved", actor=actor) for actor in _actors("operator")],
        "the resolution says something else",
    ),
    "when it was decided": (
        "proved_absent", "resolved", 0,
        [moved("resolutions", "recorded_at", t) for t in (-A_TICK, A_TICK)],
        "the resolution says something else",
    ),
    "the code of a decision's evidence": (
        "proved_absent", "resolved", 0,
        [unbound(row("evidence", code=word), "resolved", 0) for word in _WORDS],
        "its evidence says something else",
    ),
    "when a decision's evidence was stored": (
        "proved_absent", "resolved", 0,
        [unbound(moved("evidence", "recorded_at", t), "resolved", 0) for t in (-A_TICK, A_TICK)],
        "its evidence says something else",
    ),
    "what a decision covers": (
        "proved_absent", "resolved", 0,
        [unbound(both(row("evidence", covers_through=n), told("resolved", covers_through=n)),
                 "resolved", 0) for n in (0, 2)],
        "it covers all attempts",
    ),
    "when it was given up": (
        "resolved_as_failed", "resolved", 0,
        [moved("intent", "failed_by_operator_at", t) for t in (-A_TICK, A_TICK)],
        "the intent does not bear that it was given up",
    ),
    "when it was withdrawn": (
        "withdrawn", "cancelled", 0,
        [moved("intent", "cancel_requested_at", t) for t in (-A_TICK, A_TICK)],
        "the intent was withdrawn otherwise",
    ),
    "why runs failed": (
        "failing_runs", "parked", 0, [column("parked", reason=word) for word in _WORDS],
        "the facts said review_needed (run_failing)",
    ),
    "the reason of what is final": (
        "resolved_as_failed", "late_fact", 0, [column("late_fact", reason=w) for w in _WORDS],
        "the reason of a final effect stays",
    ),
    "why a count was given up": (
        "not_counted", "count_given_up", 0, [told("count_given_up", why=word) for word in _WORDS],
        "no count ends for this reason",
    ),
    "what a count covers": (
        "counted_as_absent", "count_started", 0,
        [told("count_started", covers_through=number) for number in (1, 3)],
        "a look-up covers all attempts so far",
    ),
    "whether a count contradicts": (
        "counted_as_absent", "counted", 0, [flipped("counted", 0)],
        "whether it contradicts the receipt is told wrongly",
    ),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_a_false_word_is_found_on_either_side_of_the_right_one(place: str) -> None:
    scene, kind, nth, forges, words = PLACES[place]
    sequence = event(_trace(scene)[2], kind, nth)["sequence"]
    for forge in forges:
        found = [what for _, what, at in said(scene, forge) if at == sequence]
        assert any(words in what for what in found), said(scene, forge)


def test_an_effect_is_submitted_once() -> None:
    """A submit in the place of what followed it."""
    first = json.loads(event(_trace("withdrawn")[2], "submitted")["metadata"])

    def again(effect: Line) -> None:
        late = event(effect, "cancelled")
        late.update(kind="submitted", actor=event(effect, "submitted")["actor"])
        late["metadata"] = json.dumps(first, separators=(",", ":"), sort_keys=True)

    found = {what for _, what, at in said("withdrawn", again) if at == 2}
    assert found & {"an effect is submitted once", "submitted after the end"}


def test_a_worker_is_judged_as_a_worker_and_a_caller_as_one_who_performs() -> None:
    """A caller stands ready, whatever workers may; a worker waits for a caller's contract."""
    start = event(of_callers()[2], "attempt_started", 0)["sequence"]
    forge = both(
        row("attempts", 0, executor_id="w"), column("attempt_started", 0, actor="worker:w")
    )
    found = [what for _, what, at in said_of_callers(forge) if at == start]
    assert found
    assert "only the process that sends writes this" not in found


@pytest.mark.parametrize("seconds", [-1e-6, 1e-6])
@pytest.mark.parametrize("nth", [0, 1, 2])
def test_a_lease_is_extended_to_no_other_moment(nth: int, seconds: float) -> None:
    metadata = json.loads(event(of_callers()[2], "attempt_extended", nth)["metadata"])
    until = datetime.fromisoformat(metadata["deadline_at"]) + timedelta(seconds=seconds)
    forge = told("attempt_extended", nth, deadline_at=f"{until:%Y-%m-%dT%H:%M:%S.%fZ}")
    place = event(of_callers()[2], "attempt_extended", nth)["sequence"]
    assert "the lease lasts until another moment" in [
        what for _, what, at in said_of_callers(forge) if at == place
    ]


@pytest.mark.parametrize("reason", _WORDS)
def test_an_extension_has_one_reason(reason: str) -> None:
    place = event(of_callers()[2], "attempt_extended", 0)["sequence"]
    forge = column("attempt_extended", 0, reason=reason)
    assert "an extension changes nothing else" in [
        what for _, what, at in said_of_callers(forge) if at == place
    ]
