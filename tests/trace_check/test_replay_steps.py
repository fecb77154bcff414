"""Single events, replayed over rows that no store of ours would hold: each rule by itself."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from effect_contracts.facts import (
    CODE_FAILURE_NOTICE,
    Alert,
    EvidenceSource,
    Outcome,
    Policy,
    SafetyClass,
    Verdict,
)
from effect_contracts.pacing import Limits
from effect_contracts.receipts import receipt_time
from effect_contracts.trace.findings import Broken, Rule
from effect_contracts.trace.kinds import TURN_MEMBER, read_event
from effect_contracts.trace.log import EventRecord, EvidenceRecord
from effect_contracts.trace.replay import Replay, _Look
from trace_check.asked_alone import after, attempt, evidence
from trace_check.forging import parsed
from trace_check.staged import account
from trace_check.test_limits import waited
from trace_check.test_replay import both, event, row, said, told
from trace_check.test_timeline import timeline

POLICY = Policy(SafetyClass.UNSAFE)
COMMITTED = attempt(1, Outcome.COMMITTED, recorded=1, external_id="x")
LOST = attempt(1, Outcome.AMBIGUOUS, recorded=1)


def record(kind: str, metadata: dict[str, Any], **columns: Any) -> EventRecord:
    """An event of a minute after the beginning."""
    usual: dict[str, Any] = {
        "sequence": 5, "kind": kind, "event": "late_fact", "from_state": "succeeded",
        "to_state": "succeeded", "reason": "committed", "actor": "worker:w", "at": after(60),
        "metadata": json.dumps(metadata, separators=(",", ":"), sort_keys=True),
        "previous_digest": "", "digest": "6" * 64,
    }  # fmt: skip
    return EventRecord(**usual | columns)


def known(*rows: Any) -> Replay:
    """A replay that has come to know these attempts, and to which evidence is still to be told."""
    made = timeline(*rows, policy=POLICY)
    for one in rows:
        if not isinstance(one, EvidenceRecord):
            made.start(one)
            made.record(one)
    return Replay(made)


def seen(code: str) -> EvidenceRecord:
    """What a webhook has told a minute after the beginning."""
    told_by = evidence(Verdict.UNKNOWN, EvidenceSource.WEBHOOK, began=60.0)
    return told_by.model_copy(update={"code": code})


def late(code: str, contradicts: bool) -> EventRecord:
    facts = {
        "source": "webhook", "verdict": "unknown", "code": code, "covers_through": 1,
        "contradicts": contradicts,
    }  # fmt: skip
    return record("late_fact", facts, actor="webhook:provider")


@pytest.mark.parametrize("code", ["a", CODE_FAILURE_NOTICE, "zz"])
def test_only_a_notice_of_failure_contradicts_a_success(code: str) -> None:
    contradicts = code == CODE_FAILURE_NOTICE
    replay = known(COMMITTED, seen(code))
    replay.step(read_event(late(code, contradicts)))
    assert replay.alert is (Alert.LATE_CONTRADICTION if contradicts else None)
    with pytest.raises(Broken, match="contradicts the receipt is told wrongly"):
        known(COMMITTED, seen(code)).step(read_event(late(code, not contradicts)))


def test_a_success_of_which_no_fact_says_so_is_contradicted_by_the_next_one() -> None:
    replay = known(LOST, seen("c"))
    replay.step(read_event(late("c", True)))
    assert replay.alert is Alert.LATE_CONTRADICTION
    with pytest.raises(Broken, match="contradicts the receipt is told wrongly"):
        known(LOST, seen("c")).step(read_event(late("c", False)))


@pytest.mark.parametrize("other", ["attempt_open", "undoing", "zz"])
def test_what_was_undone_was_undone_by_one_move(other: str) -> None:
    by = {"by": "00000000-0000-0000-0000-000000000001"}
    known(COMMITTED).step(read_event(record("compensated", by, event="undone")))
    with pytest.raises(Broken, match="the event says undone"):
        known(COMMITTED).step(read_event(record("compensated", by, event=other)))


@pytest.mark.parametrize("state", ["dispatching", "succeeded"])
def test_runs_that_fail_end_with_a_person(state: str) -> None:
    columns = {"event": "review_needed", "reason": "run_failing", "from_state": "dispatching"}
    parked = record("parked", {"generation": 7}, to_state="manual_review", **columns)
    replay = known(LOST)
    replay.step(read_event(parked))
    assert replay.parked is True
    with pytest.raises(Broken, match="parked elsewhere"):
        known(LOST).step(read_event(parked.model_copy(update={"to_state": state})))


def test_an_alert_that_was_dealt_with_is_gone_be_it_older_than_what_was_kept() -> None:
    replay = known(COMMITTED)
    replay.begin_before(after(50))
    dealt_with = record("acknowledged", {"alert": "late_contradiction"}, actor="operator:o")
    assert replay.bears(Alert.LATE_CONTRADICTION)
    replay.step(read_event(dealt_with))
    assert replay.bears(None)
    assert not replay.bears(Alert.LATE_CONTRADICTION)
    assert not replay.bears(Alert.DUPLICATE_DETECTED)


def test_evidence_covers_no_attempts_before_the_first() -> None:
    kind, scene = "evidence_added", "told_by_a_webhook"
    forge = both(
        row("evidence", covers_through=-1), told(kind, covers_through=-1, fact_digest=None)
    )
    found = said(scene, forge)
    assert [one for one in found if one[:2] == (Rule.FACTS, "it covers attempts of the future")]
    none = both(row("evidence", covers_through=0), told(kind, covers_through=0, fact_digest=None))
    assert said(scene, none) == []


async def test_who_waits_for_a_turn_names_one_that_is_still_to_come() -> None:
    """Its metadata is forged, and the chain made again."""
    waits = event(parsed(account(await waited()))[2], "wait")
    at = EventRecord.model_validate_json(json.dumps(waits)).at

    def words(forged: dict[str, Any]) -> str:
        metadata = {**json.loads(waits["metadata"]), **forged}
        kept = {name: value for name, value in metadata.items() if value is not None}
        text = json.dumps(kept, separators=(",", ":"), sort_keys=True)
        made = EventRecord.model_validate_json(json.dumps({**waits, "metadata": text}))
        replay = Replay(
            timeline(policy=Policy(SafetyClass.IDEMPOTENT, limits=Limits(per_second_max=0.05)))
        )
        with pytest.raises(Broken) as broken:
            replay.step(read_event(made))
        return broken.value.what

    assert words({TURN_MEMBER: None}) == "only who waits for a turn names one"
    for early in (at, at - timedelta(microseconds=1), at - timedelta(days=1)):
        assert words({TURN_MEMBER: receipt_time(early)}) == "the turn had come already"
    right = receipt_time(at + timedelta(hours=1))
    odd = (right[:-8] + "Z", right[:-1] + "+00:00", right[:-1], right.replace("T", " "), "", "x", 7)
    for spelt in odd:
        assert words({TURN_MEMBER: spelt}) == "the turn is no moment", spelt


def _added(source: str, verdict: str, at: float = 60.0) -> EventRecord:
    facts = {"source": source, "verdict": verdict, "code": "c", "covers_through": 1, "row": 2}
    columns = {"event": "commit_proved", "from_state": "outcome_unknown", "at": after(at)}
    return record("evidence_added", facts, **columns)


def _broken(replay: Replay, told_by: EventRecord) -> str:
    with pytest.raises(Broken) as broken:
        replay.step(read_event(told_by))
    return broken.value.what


@pytest.mark.parametrize("began", [59.0, 61.0])
def test_a_transaction_is_seen_as_it_ends(began: float) -> None:
    row_of = evidence(Verdict.COMMITTED, EvidenceSource.TRANSACTION, began=60.0)
    odd = row_of.model_copy(update={"began_at": after(began)})
    words = {_broken(known(LOST, odd), _added("transaction", "committed"))}
    assert words & {"it was seen at another time", "the observation ended before it began"}
    assert (began > 60) == ("it was seen at another time" not in words)
    honest = _broken(known(LOST, row_of), _added("transaction", "committed"))
    assert honest == "the effect is settled here and has no receipt"


@pytest.mark.parametrize(("began", "told_before"), [(9.0, True), (10.0, False), (20.0, False)])
def test_a_look_up_was_begun_by_an_event_unless_that_was_pruned(
    began: float, told_before: bool
) -> None:
    found = evidence(Verdict.COMMITTED, began=60.0).model_copy(update={"began_at": after(began)})
    made = timeline(LOST, found, policy=POLICY)
    replay = Replay(made)
    replay.begin_before(after(10))
    words = _broken(replay, _added("probe", "committed"))
    expected = "no look-up began when this one did"
    assert (words != expected) is told_before, words


@pytest.mark.parametrize(
    "by",
    [
        "ABCDEF00-0000-0000-0000-000000000001",
        "abcdef00000000000000000000000001",
        "{abcdef00-0000-0000-0000-000000000001}",
        "urn:uuid:abcdef00-0000-0000-0000-000000000001",
        "",
        7,
    ],
)
def test_an_id_has_one_spelling(by: object) -> None:
    known(COMMITTED).step(
        read_event(
            record("compensated", {"by": "abcdef00-0000-0000-0000-000000000001"}, event="undone")
        )
    )
    assert _broken(known(COMMITTED), record("compensated", {"by": by}, event="undone")) == (
        "by is no effect's id"
    )


@pytest.mark.parametrize(("covers", "fits"), [(0, False), (1, True), (2, False)])
def test_what_a_look_up_found_covers_what_it_looked_for(covers: int, fits: bool) -> None:
    """Another attempt has started meanwhile."""
    second = attempt(2, Outcome.AMBIGUOUS, starts=30.0, recorded=31)
    found = evidence(Verdict.COMMITTED, began=20.0, through=covers)
    replay = known(LOST, second, found.model_copy(update={"recorded_at": after(60)}))
    replay._looks.append(_Look(after(20), "worker:w", 1))
    facts = {
        "source": "probe", "verdict": "committed", "code": "c", "covers_through": covers, "row": 2
    }  # fmt: skip
    columns = {"event": "commit_proved", "from_state": "outcome_unknown"}
    words = _broken(replay, record("evidence_added", facts, **columns))
    assert (words != "it covers other attempts than its look-up did") is fits, words
