"""The form of events is published: what was written once is read by every later release.

A new kind, or a further member, is a new word in the table. A word that goes is an account that was
good and is refused.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from effect_contracts.facts import EvidenceSource
from effect_contracts.trace.findings import Broken, Rule
from effect_contracts.trace.kinds import (
    AFTER_END,
    DRILL_TAKEOVER_SECONDS_MAX,
    KINDS,
    SOURCE_ROLES,
    EventKind,
    ReadEvent,
    read_event,
)
from effect_contracts.trace.log import EventRecord

# Kind: who writes it ("" where its fact says that), its members, and those that may be there too.
PUBLISHED = {
    "submitted": ("caller operator", "contract_digest request_hash", "drill_id"),
    "attempt_started": (
        "caller worker",
        "attempt_id ordinal",
        "certificate_id certified_until wire_digest",
    ),
    "attempt_extended": ("caller", "deadline_at ordinal", ""),
    "outcome_recorded": (
        "caller worker",
        "code late ordinal outcome row",
        "fact_digest receipt_digest turn_at",
    ),
    "probe_started": ("worker", "covers_through", ""),
    "evidence_added": (
        "",
        "code covers_through row source verdict",
        "evidence_id fact_digest receipt_digest turn_at",
    ),
    "resolved": (
        "operator",
        "conclusion covers_through decision_id digest evidence_id row",
        "fact_digest proposed_by receipt_digest turn_at",
    ),
    "reconcile_asked": ("caller operator", "row", "receipt_digest turn_at"),
    "cancelled": ("caller operator", "row", "receipt_digest"),
    "approved": ("operator", "decision_id digest row", "receipt_digest turn_at"),
    "denied": ("operator", "decision_id digest row", "receipt_digest"),
    "compensated": ("reconciler worker", "by", ""),
    "acknowledged": ("operator", "alert", ""),
    "wait": ("caller reconciler worker", "row", "turn_at"),
    "park": ("caller reconciler worker", "row", ""),
    "settle": ("caller reconciler worker", "row", "receipt_digest"),
    "parked": ("reconciler worker", "generation", ""),
    "late_fact": ("", "contradicts", "evidence_id fact_digest"),
    "count_started": ("worker", "covers_through", ""),
    "counted": (
        "worker",
        "code contradicts covers_through source verdict",
        "evidence_id fact_digest",
    ),
    "duplicate_detected": ("", "contradicts", "evidence_id fact_digest"),
    "count_given_up": ("reconciler worker", "generation why", ""),
}
AFTER_THE_END = {
    "late_fact", "count_started", "counted", "duplicate_detected", "count_given_up", "compensated",
    "acknowledged",
}  # fmt: skip
OUTCOME = "code late ordinal outcome"
EVIDENCE = "code covers_through source verdict"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def event(kind: str, metadata: str, actor: str = "worker:w") -> EventRecord:
    return EventRecord(
        sequence=2, kind=kind, event="e", from_state=None, to_state="prepared", reason="r",
        actor=actor, at=datetime(2026, 11, 30, tzinfo=UTC), metadata=metadata, previous_digest="",
        digest="6" * 64,
    )  # fmt: skip


def _text(members: frozenset[str]) -> str:
    return "{" + ",".join(f'"{name}":1' for name in sorted(members)) + "}"


def _broken(record: EventRecord) -> tuple[Rule, str]:
    with pytest.raises(Broken) as broken:
        read_event(record)
    return broken.value.rule, broken.value.what


def test_every_kind_is_written_by_whom_and_with_what_was_published() -> None:
    told = {
        kind.value: (rule.roles, rule.members, rule.further)
        for kind, rule in KINDS.items()
    }  # fmt: skip
    wanted = {kind: tuple(_words(part) for part in parts) for kind, parts in PUBLISHED.items()}
    assert told == wanted
    assert {kind.value for kind in EventKind} == set(PUBLISHED)
    assert {kind.value for kind in AFTER_END} == AFTER_THE_END


def test_who_may_tell_what_was_published() -> None:
    assert {
        EvidenceSource.PROBE: {"worker"},
        EvidenceSource.TRANSACTION: {"worker", "caller"},
        EvidenceSource.WEBHOOK: {"webhook", "caller"},
        EvidenceSource.OPERATOR: {"operator", "caller"},
    } == SOURCE_ROLES
    assert DRILL_TAKEOVER_SECONDS_MAX == 600


def _members(kind: str) -> list[frozenset[str]]:
    """The members that an event of the kind may have, without those that it need not have."""
    own = _words(PUBLISHED[kind][1])
    if kind in {"late_fact", "duplicate_detected"}:
        return [own | _words(OUTCOME), own | _words(EVIDENCE)]
    return [own]


@pytest.mark.parametrize("kind", PUBLISHED)
def test_an_event_has_its_members_all_of_them_and_no_other(kind: str) -> None:
    roles, _, further = PUBLISHED[kind]
    for members in _members(kind):
        for role in roles.split() or ["anybody"]:
            for more in (frozenset[str](), _words(further)):
                record = event(kind, _text(members | more), f"{role}:x")
                assert read_event(record) == ReadEvent(
                    record, EventKind(kind), role, dict.fromkeys(sorted(members | more), 1)
                )
        actor = f"{(roles.split() or ['anybody'])[0]}:x"
        what = (Rule.KIND, f"{kind} has other members than these")
        for name in members:
            assert _broken(event(kind, _text(members - {name}), actor)) == what
        assert _broken(event(kind, _text(members | {"another"}), actor)) == what


@pytest.mark.parametrize("kind", [kind for kind, parts in PUBLISHED.items() if parts[0]])
def test_nobody_else_writes_an_event(kind: str) -> None:
    what = (Rule.ACTOR, f"{kind} is not written by such an actor")
    (members,) = _members(kind)
    everybody = {"worker", "reconciler", "caller", "operator", "webhook", "nobody", ""}
    for role in everybody - _words(PUBLISHED[kind][0]):
        assert _broken(event(kind, _text(members), f"{role}:x")) == what


@pytest.mark.parametrize("actor", ["worker", "worker:", ":", ""])
def test_an_actor_has_a_role_and_a_name(actor: str) -> None:
    found = _broken(event("wait", '{"row":"7"}', actor))
    assert found == (Rule.ACTOR, "the actor has no role and name")


def test_a_name_may_hold_what_parts_a_role_from_it() -> None:
    assert read_event(event("wait", '{"row":"7"}', "worker:w:7")).role == "worker"


def test_a_kind_that_is_not_known_is_told() -> None:
    assert _broken(event("waits", "{}")) == (Rule.KIND, "an unknown kind of event")


@pytest.mark.parametrize(
    "metadata",
    ["", "{", "[]", "null", '"row"', '{"row": "7"}', '{"row":"7"} ', '{"row":7.0}', '{"row":NaN}',
     '{"row":"7","row":"7"}', "[" * 100_000],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_metadata_has_one_spelling(metadata: str) -> None:
    assert _broken(event("wait", metadata)) == (Rule.KIND, "its metadata is not canonical")


@pytest.mark.parametrize("value", [True, False, "1", 1.5, None, [1]])
def test_a_number_is_whole_and_no_flag(value: Any) -> None:
    read = read_event(event("wait", '{"row":1}'))
    assert read.number("row") == 1
    with pytest.raises(Broken) as broken:
        replace(read, metadata={"row": value}).number("row")
    assert (broken.value.rule, broken.value.what) == (Rule.KIND, "row is no whole number")


def test_an_outcome_and_evidence_are_told_apart_by_their_members() -> None:
    for members, of_outcome in ((OUTCOME, True), (EVIDENCE, False)):
        read = read_event(event("late_fact", _text(_words(members) | {"contradicts"})))
        assert read.of_outcome() is of_outcome
