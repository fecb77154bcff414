"""The fold gives back what was known then: from the events alone, of every version, deciding
nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import grimp
import pytest

from effect_contracts.canonical import canonical_bytes
from effect_contracts.document import ContractDocument
from effect_contracts.events import Event, event_digest
from effect_contracts.history import (
    SCHEMA_MEMBER,
    SCHEMA_VERSION,
    UPCASTERS,
    ChainCheck,
    EffectThen,
    EventUnreadable,
    Fact,
    Fold,
    compare,
    deeds_between,
    upcast,
)
from effect_contracts.trace.kinds import KINDS, EventKind, read_event
from effect_contracts.trace.log import EffectLine, EventRecord
from effect_contracts.trace.replay import Replay
from effect_contracts.trace.timeline import Timeline
from trace_check.corpus import scheduled, staged

GOLDEN = Path(__file__).parent / "golden" / "history.json"
TENANT, EFFECT = UUID(int=1), UUID(int=2)
BEGAN_AT = datetime(2026, 11, 29, 12, tzinfo=UTC)


def events(*told: dict[str, Any]) -> list[EventRecord]:
    """Events chained as the database chains them; a member that is left out is usual."""
    made: list[EventRecord] = []
    previous: bytes = b""
    state: str | None = None
    for number, members in enumerate(told, start=1):
        usual: dict[str, Any] = {
            "kind": "wait", "event": "nothing_sent", "from_state": state, "to_state": "prepared",
            "reason": "r", "actor": "worker:w-1", "at": BEGAN_AT + timedelta(seconds=number),
            "metadata": {"row": "7"},
        }  # fmt: skip
        row: dict[str, Any] = usual | members
        row["metadata"] = canonical_bytes(row["metadata"]).decode()
        digest = event_digest(previous, Event(TENANT, EFFECT, number, **row))
        made.append(
            EventRecord(
                sequence=number, previous_digest=previous.hex(), digest=digest.hex(), **row
            )
        )  # fmt: skip
        previous, state = digest, row["to_state"]
    return made


def story() -> list[EventRecord]:
    """An attempt that is lost, looked up, found by a person, and contradicted after the end."""
    hashes = {"contract_digest": "a" * 64, "request_hash": "b" * 64}
    return events(
        {"kind": "submitted", "event": "submitted", "reason": "submitted",
         "actor": "caller:c-1", "metadata": hashes},
        {"kind": "attempt_started", "event": "attempt_started", "to_state": "dispatching",
         "reason": "first_attempt", "metadata": {"ordinal": 1, "attempt_id": str(UUID(int=7))}},
        {"kind": "wait", "event": "outcome_lost", "to_state": "outcome_unknown",
         "reason": "crash_window", "actor": "reconciler:w-2"},
        {"kind": "probe_started", "event": "evidence_sought", "to_state": "reconciling",
         "reason": "probe", "metadata": {"covers_through": 1}},
        {"kind": "evidence_added", "event": "review_needed", "to_state": "manual_review",
         "reason": "ambiguous_probe",
         "metadata": {"source": "probe", "verdict": "unknown", "code": "timeout",
                      "covers_through": 1, "row": "11"}},
        {"kind": "resolved", "event": "commit_proved", "to_state": "succeeded",
         "reason": "committed", "actor": "operator:o-1",
         "metadata": {"decision_id": "d-1", "conclusion": "committed", "digest": "c" * 64,
                      "evidence_id": str(UUID(int=8)), "covers_through": 1, "row": "2"}},
        {"kind": "late_fact", "event": "late_fact", "to_state": "succeeded", "reason": "committed",
         "metadata": {"ordinal": 1, "outcome": "rejected", "code": "declined", "late": True,
                      "contradicts": True}},
    )  # fmt: skip


def folded(records: list[EventRecord], lost: dict[int, datetime] | None = None) -> EffectThen:
    fold = Fold(lost)
    for record in records:
        fold.add(record)
    return fold.then()


# The fold against what is known in another way ----------------------------------------------------


def traces() -> Iterator[tuple[EffectLine, ContractDocument]]:
    for world in ("unsafe", "idempotent", "reconcilable"):
        for seed in range(4):
            yield _parsed(scheduled(world, seed))
    for lines in staged():
        yield _parsed(lines)


def _parsed(lines: list[bytes]) -> tuple[EffectLine, ContractDocument]:
    def members(line: bytes) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(line)
        del value["digest"]
        return value

    document = ContractDocument.from_canonical(members(lines[1])["document"].encode())
    return EffectLine.model_validate_json(json.dumps(members(lines[2]))), document


def test_at_every_event_the_fold_knows_what_the_trace_check_knows() -> None:
    """The replay goes by rows, the fold by events: they have to agree, in the middle and at the
    end."""
    seen = 0
    for line, document in traces():
        timeline = Timeline(line, document.policy(), None)
        replay = Replay(timeline)
        fold = Fold({a.ordinal: a.lost_at for a in line.attempts if a.lost_at is not None})
        for record in line.events:
            replay.step(read_event(record))
            fold.add(record)
            then = fold.then()
            assert (then.state, then.reason) == (record.to_state, record.reason)
            assert then.unread == ()
            wanted = [(a.ordinal, a.outcome) for a in timeline.attempts]
            assert [(a.ordinal, a.outcome) for a in then.attempts.values()] == wanted
            told = [*then.evidence.values(), *then.resolutions.values()]
            assert len(told) == len(timeline.evidence)
            said = [(e.source, e.verdict, e.code) for e in then.evidence.values()]
            known = [(e.source, e.verdict, e.code) for e in timeline.evidence]
            assert all(one in known for one in said)
            assert {r.decision_id for r in then.resolutions.values()} == timeline.resolved
            seen += 1
        intent = line.intent
        assert (then.state, then.reason, then.final) == (
            intent.state, intent.reason, intent.receipt_digest is not None,
        )  # fmt: skip
        assert then.contradicted is (intent.alert is not None)
        assert then.submitted_by == intent.requested_by
    assert seen > 60


def test_the_chain_of_every_account_is_intact() -> None:
    for line, _ in traces():
        check = ChainCheck(line.intent.tenant_id, line.intent.effect_id)
        for record in line.events:
            check.add(record)
        check.end(line.intent.version, bytes.fromhex(line.intent.event_digest))
        assert check.report().intact


# Versions -----------------------------------------------------------------------------------------


def test_the_oldest_events_are_read_as_on_the_first_day() -> None:
    """The file was written once; a release that reads it otherwise has broken an old history."""
    golden = json.loads(GOLDEN.read_text())
    records = [EventRecord.model_validate_json(json.dumps(one)) for one in golden["events"]]
    lost = {int(n): datetime.fromisoformat(at) for n, at in golden["lost"].items()}
    for number, wanted in golden["then"].items():
        assert folded(records[: int(number)], lost).to_json() == wanted


def test_there_is_an_upcaster_from_every_version_to_the_next() -> None:
    assert sorted(UPCASTERS) == list(range(1, SCHEMA_VERSION))


def test_a_submit_of_the_first_version_has_its_drill_member_and_every_event_its_fact() -> None:
    facts = []
    for record in story():
        kind, members = upcast(record)
        facts.append(members["fact"])
        assert ("drill_id" in members) is (kind is EventKind.SUBMITTED)
    assert facts == [
        Fact.SUBMIT, Fact.ATTEMPT, Fact.NOTHING, Fact.LOOK_UP, Fact.EVIDENCE, Fact.RESOLUTION,
        Fact.OUTCOME,
    ]  # fmt: skip


def test_no_kind_writes_the_member_that_names_the_version_by_accident() -> None:
    for rule in KINDS.values():
        assert SCHEMA_MEMBER not in rule.members | rule.further


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, 0, -1, True, "1", 1.5, None])
def test_an_event_of_a_version_that_is_not_known_stops_nothing_and_is_named(version: Any) -> None:
    told = {"metadata": {"row": "7", SCHEMA_MEMBER: version}}
    records = events({}, told, {"to_state": "manual_review", "reason": "run_failing"})
    newer = type(version) is int and version > SCHEMA_VERSION
    with pytest.raises(EventUnreadable, match="newer release" if newer else "names no version"):
        upcast(records[1])
    then = folded(records[1:])
    assert then.unread == (2,)
    assert (then.state, then.reason) == ("manual_review", "run_failing")
    assert then.to_json()["complete"] is False


@pytest.mark.parametrize(
    "told",
    [
        {"kind": "of_tomorrow"},
        {"metadata": {"row": "7", "more": 1}},
        {"metadata": {}},
        {"actor": "nobody"},
        {"kind": "attempt_started", "metadata": {"ordinal": 1}},
    ],
)
def test_an_event_that_cannot_be_read_is_named_and_its_move_still_counts(
    told: dict[str, Any],
) -> None:
    then = folded(events({"to_state": "dispatching", **told}))
    assert then.unread == (1,)
    assert then.state == "dispatching"


# Moments and what changed between them ------------------------------------------------------------


def test_an_attempt_is_presumed_lost_from_that_moment_on_and_not_before() -> None:
    records = story()
    lost = {1: records[2].at}
    outcomes = [
        [a.outcome for a in folded(records[:n], lost).attempts.values()] for n in range(2, 8)
    ]
    assert outcomes == [[None], *[["presumed_ambiguous"]] * 4, ["rejected"]]


def test_what_changed_between_two_moments_is_named_by_its_place() -> None:
    records = story()
    lost = {1: records[2].at}
    before, after = folded(records[:2], lost), folded(records, lost)
    changes = {one.place: (one.before, one.after) for one in compare(after, before)}
    assert compare(after, before) == compare(before, after)
    assert changes["state"] == ("dispatching", "succeeded")
    assert changes["final"] == (False, True)
    assert changes["attempts.1.outcome"] == (None, "rejected")
    assert changes["attempts.1.late"] == (False, True)
    assert changes["evidence.5.verdict"] == (None, "unknown")
    assert changes["resolutions.6.conclusion"] == (None, "committed")
    assert changes["contradicted"] == (False, True)
    assert "attempts.1.attempt_id" not in changes
    assert compare(after, after) == ()
    between = deeds_between(before, after)
    assert [one["sequence"] for one in between] == [3, 4, 5, 6, 7]  # type: ignore[call-overload,index]


# The chain ----------------------------------------------------------------------------------------


def checked(records: list[EventRecord], head: int | None = None) -> Any:
    check = ChainCheck(TENANT, EFFECT)
    for record in records:
        check.add(record)
    if head is not None:
        check.end(head, bytes.fromhex(story()[head - 1].digest))
    return check.report()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("kind", "wake"), ("event", "undone"), ("from_state", "succeeded"), ("reason", "x"),
        ("to_state", "cancelled"), ("actor", "worker:w-9"), ("metadata", "{}"),
        ("at", BEGAN_AT), ("previous_digest", "0" * 64), ("digest", "0" * 64), ("sequence", 9),
    ],
)  # fmt: skip
def test_an_altered_event_breaks_the_chain_where_it_stands(place: str, value: Any) -> None:
    records = story()
    records[3] = records[3].model_copy(update={place: value})
    report = checked(records)
    assert not report.intact
    assert report.broken_at == (9 if place == "sequence" else 4)


def forged(record: EventRecord, **changes: Any) -> EventRecord:
    """Another event that fits its own digest."""
    made = record.model_copy(update=changes)
    event = Event(
        TENANT, EFFECT, made.sequence, made.kind, made.event, made.from_state, made.to_state,
        made.reason, made.actor, made.at, made.metadata,
    )  # fmt: skip
    digest = event_digest(bytes.fromhex(made.previous_digest), event)
    return made.model_copy(update={"digest": digest.hex()})


def test_an_event_that_was_replaced_with_its_digest_is_found_by_the_next() -> None:
    records = story()
    records[3] = forged(records[3], actor="worker:w-9")
    assert checked(records).broken_at == 5


def test_a_number_that_is_left_out_is_found_though_the_digests_fit() -> None:
    records = story()
    skipped = forged(records[4], previous_digest=records[2].digest)
    assert checked([*records[:3], skipped]).broken_at == 5


def test_a_first_event_bears_no_digest_of_one_before() -> None:
    assert checked([forged(story()[0], previous_digest="0" * 64)]).broken_at == 1


def test_a_chain_that_lacks_events_is_broken() -> None:
    records = story()
    assert checked([*records[:3], *records[4:]]).broken_at == 5
    cut = checked(records[:5], head=7)
    assert (cut.intact, cut.broken_at) == (False, None)
    assert checked(records, head=7).intact


def test_what_is_left_after_pruning_is_a_chain_of_its_own() -> None:
    report = checked(story()[4:], head=7)
    assert (report.intact, report.begins_at, report.ends_at) == (True, 5, 7)
    assert folded(story()[4:]).to_json()["complete"] is False


def test_a_chain_is_reported_to_programs_with_the_words_of_its_first_fault() -> None:
    records = story()
    assert checked(records).to_json() == {
        "intact": True, "from_sequence": 1, "through_sequence": 7,
        "broken_at_sequence": None, "what": None,
    }  # fmt: skip
    altered = [*records[:3], *(one.model_copy(update={"actor": "x"}) for one in records[3:])]
    assert checked(altered, head=7).to_json() == {
        "intact": False, "from_sequence": 1, "through_sequence": 7, "broken_at_sequence": 4,
        "what": "its digest does not fit its content",
    }  # fmt: skip
    assert ChainCheck(TENANT, EFFECT, (3, b"")).report().to_json() == {
        "intact": True, "from_sequence": None, "through_sequence": None,
        "broken_at_sequence": None, "what": None,
    }  # fmt: skip


def test_a_chain_goes_on_from_the_event_before_and_from_no_other() -> None:
    records = story()
    before = bytes.fromhex(records[2].digest)

    def words(number: int, digest: bytes) -> str | None:
        check = ChainCheck(TENANT, EFFECT, (number, digest))
        for record in records[3:]:
            check.add(record)
        return check.report().what

    assert words(3, before) is None
    assert words(2, before) == "event 2 is followed by 4"
    assert words(4, before) == "event 4 is followed by 4"
    assert words(5, before) == "event 5 is followed by 4"
    for other in (bytes(32), b"\xff" * 32, b""):
        assert words(3, other) == "it does not bear the digest of the event before"


def test_the_head_of_a_chain_is_its_last_event_with_its_digest() -> None:
    records = story()
    digest = bytes.fromhex(records[6].digest)
    for version, told in ((6, digest), (8, digest), (7, bytes(32)), (7, b"\xff" * 32)):
        check = ChainCheck(TENANT, EFFECT)
        for record in records:
            check.add(record)
        check.end(version, told)
        report = check.report()
        assert report.what == f"the effect names another last event, {version}, than the chain has"
        assert (report.broken_at, report.begins_at, report.ends_at) == (None, 1, 7)


def test_an_event_of_another_effect_does_not_fit() -> None:
    for ids in ((TENANT, UUID(int=9)), (UUID(int=9), EFFECT)):
        check = ChainCheck(*ids)
        check.add(story()[0])
        assert check.report().broken_at == 1


# What is shown ------------------------------------------------------------------------------------


def test_an_effect_as_it_stood_is_shown_whole() -> None:
    records = story()
    shown = folded(records[:6], {1: records[2].at}).to_json()
    deeds, at = shown.pop("deeds"), [one.at.isoformat() for one in records]
    assert shown == {
        "sequence": 6, "at": at[5], "complete": True, "state": "succeeded", "final": True,
        "reason": "committed", "actor": "operator:o-1", "submitted_by": "caller:c-1",
        "drill_id": None, "look_ups": 1, "contradicted": False, "unread": [],
        "attempts": [
            {"ordinal": 1, "attempt_id": str(UUID(int=7)), "actor": "worker:w-1",
             "started_at": at[1], "outcome": "presumed_ambiguous", "code": None,
             "told_at": at[2], "late": False},
        ],
        "evidence": [
            {"sequence": 5, "source": "probe", "verdict": "unknown", "code": "timeout",
             "covers_through": 1, "actor": "worker:w-1", "at": at[4]},
        ],
        "resolutions": [
            {"sequence": 6, "decision_id": "d-1", "conclusion": "committed", "covers_through": 1,
             "actor": "operator:o-1", "at": at[5]},
        ],
    }  # fmt: skip
    assert isinstance(deeds, list)
    assert [one["sequence"] for one in deeds] == [1, 2, 3, 4, 5, 6]  # type: ignore[call-overload,index]
    assert deeds[2] == {
        "sequence": 3, "at": at[2], "actor": "reconciler:w-2", "kind": "wait",
        "from_state": "dispatching", "to_state": "outcome_unknown", "reason": "crash_window",
    }  # fmt: skip


def test_attempts_are_shown_by_ordinal_whenever_they_were_told_of() -> None:
    outcome = {"outcome": "rejected", "code": "declined", "late": True, "contradicts": False}
    records = events(
        *({"kind": "late_fact", "event": "late_fact", "from_state": "succeeded",
           "to_state": "succeeded", "metadata": {"ordinal": ordinal, **outcome}}
          for ordinal in (3, 1, 2))
    )  # fmt: skip
    attempts = folded(records[:]).to_json()["attempts"]
    assert isinstance(attempts, list)
    assert [one["ordinal"] for one in attempts] == [1, 2, 3]  # type: ignore[call-overload,index]
    # The start was pruned: who sent it is not known, when it was told is.
    assert attempts[0] == {
        "ordinal": 1, "attempt_id": "", "actor": "worker:w-1",
        "started_at": records[1].at.isoformat(), "outcome": "rejected", "code": "declined",
        "told_at": records[1].at.isoformat(), "late": True,
    }  # fmt: skip


def test_an_outcome_that_is_known_is_not_taken_for_lost() -> None:
    """The column may name a moment that is later than the outcome which a late sender recorded."""
    told = {"ordinal": 1, "outcome": "rejected", "code": "declined", "late": False}
    records = [
        *story()[:2],
        *events(
            {}, {}, {"kind": "outcome_recorded", "event": "outcome_known",
                     "from_state": "dispatching", "to_state": "prepared",
                     "metadata": {**told, "row": "5"}}, {},
        )[2:],
    ]  # fmt: skip
    then = folded(records, {1: records[3].at})
    assert [(a.outcome, a.code) for a in then.attempts.values()] == [("rejected", "declined")]


def test_an_attempt_of_which_no_event_was_kept_is_not_made_up() -> None:
    then = folded(story()[3:6], {1: story()[2].at})
    assert then.attempts == {}


def test_a_difference_is_told_to_programs_by_its_place() -> None:
    records = story()
    (only,) = [
        one.to_json()
        for one in compare(folded(records[:1]), folded(records[:2]))
        if one.place == "attempts.1.ordinal"
    ]
    assert only == {"place": "attempts.1.ordinal", "before": None, "after": 1}


def test_what_differs_between_any_two_moments_is_no_difference() -> None:
    places = {one.place for one in compare(folded(story()[:1]), folded(story()))}
    assert not {place for place in places if place in {"sequence", "at", "actor"}}
    assert not {place for place in places if place.startswith("deeds")}
    assert "unread" not in places
    unread = events({}, {"kind": "of_tomorrow"})
    (found,) = [one for one in compare(folded(unread[:1]), folded(unread)) if one.place == "unread"]
    assert (found.before, found.after) == ([], [2])


# What it cannot reach -----------------------------------------------------------------------------

HISTORY = (
    "effect_contracts.history", "effect_broker.history", "effect_broker.store.history",
    "effect_broker.api.history",
)  # fmt: skip


def test_no_adapter_can_be_reached_from_the_history() -> None:
    graph = grimp.build_graph("effect_broker", "effect_adapters", "effect_contracts")
    # What an adapter is, and how an answer is taken apart; nothing that sends or looks up.
    harmless = {"effect_adapters", "effect_adapters.base", "effect_adapters.answers"}
    for module in HISTORY:
        reached = {
            m for m in graph.find_upstream_modules(module) if m.startswith("effect_adapters")
        }
        assert reached <= harmless, (module, reached)
    for module in ("effect_contracts.history", "effect_broker.history"):
        ours = {m for m in graph.find_upstream_modules(module) if m.startswith("effect_")}
        assert not {m for m in ours if m.startswith(("effect_adapters", "effect_broker."))}
    # The judge sees adapters where there are some.
    assert "effect_adapters.registry" in graph.find_upstream_modules("effect_broker.assembly")
