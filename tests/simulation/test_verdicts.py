"""What a contract gives under each fault is what its safety class honestly promises."""

from __future__ import annotations

import pytest

from effect_broker.proof.simulation.scope import Fault, sample, stand_in
from effect_broker.proof.simulation.verdicts import (
    Harm,
    faults_of,
    harms_of,
    replayed,
    verdict,
)
from effect_contracts.catalog import catalog_documents
from effect_contracts.document import ContractDocument
from effect_contracts.facts import SafetyClass

SCHEDULES = 150

IDEMPOTENT = sample(SafetyClass.IDEMPOTENT)
RECONCILABLE = sample(SafetyClass.RECONCILABLE)
UNSAFE = sample(SafetyClass.UNSAFE)
TRANSACTIONAL = sample(SafetyClass.TRANSACTIONAL)
DEMANDING = sample(SafetyClass.IDEMPOTENT, oversight={"certificate": {"age_seconds_max": 60}})
# What no broker may do whose target keeps its promises.
WRONG = {Harm.DUPLICATE, Harm.FALSE_RECEIPT}


@pytest.mark.parametrize(
    ("document", "fault", "possible", "impossible"),
    [
        (IDEMPOTENT, Fault.LOST_ANSWER, set(), WRONG),
        (IDEMPOTENT, Fault.LATE_LANDING, set(), WRONG),
        (IDEMPOTENT, Fault.KEYS_IGNORED, {Harm.DUPLICATE}, set()),
        (IDEMPOTENT, Fault.KEYS_FORGOTTEN, {Harm.DUPLICATE}, set()),
        (RECONCILABLE, Fault.LOST_ANSWER, set(), WRONG | {Harm.PARKED}),
        (RECONCILABLE, Fault.LAG, set(), set(Harm)),
        (RECONCILABLE, Fault.SEEN_TOO_LATE, {Harm.DUPLICATE}, set()),
        (RECONCILABLE, Fault.BLIND_LOOK_UP, {Harm.DUPLICATE}, set()),
        # A process that stops behind its last gate: what the page of the guarantees says by class.
        (IDEMPOTENT, Fault.STALLED_WRITE, set(), WRONG),
        (UNSAFE, Fault.STALLED_WRITE, {Harm.PARKED}, WRONG),
        (UNSAFE, Fault.LOST_ANSWER, {Harm.PARKED}, WRONG),
        (UNSAFE, Fault.LOST_REQUEST, {Harm.PARKED, Harm.OMISSION}, WRONG),
        (UNSAFE, Fault.FALSE_SUCCESS, {Harm.FALSE_RECEIPT}, {Harm.DUPLICATE}),
        (TRANSACTIONAL, Fault.DEATH, set(), WRONG | {Harm.PARKED}),
        (TRANSACTIONAL, Fault.COMMIT_LOST, set(), WRONG),
        (DEMANDING, Fault.UNCERTIFIED, set(), set(Harm)),
    ],
    ids=lambda value: value.value if isinstance(value, Fault) else None,
)
def test_a_class_bears_what_it_promises_and_no_more(
    document: ContractDocument, fault: Fault, possible: set[Harm], impossible: set[Harm]
) -> None:
    found = verdict(document, fault, SCHEDULES, 0)
    assert found.broken == ()
    assert set(found.harms) >= possible
    assert not set(found.harms) & impossible


@pytest.mark.parametrize("document", [IDEMPOTENT, RECONCILABLE, UNSAFE, TRANSACTIONAL, DEMANDING])
def test_without_a_fault_every_effect_happens_once(document: ContractDocument) -> None:
    found = verdict(document, None, SCHEDULES, 0)
    assert (found.harms, found.broken) == ({}, ())


def test_a_stalled_write_can_make_a_second_object_where_absence_is_believed() -> None:
    found = verdict(RECONCILABLE, Fault.STALLED_WRITE, 300, 0)  # some 1 in 300 shows it
    assert found.broken == ()
    story = found.harms[Harm.DUPLICATE].story
    assert any("stops between its last check and the socket" in line for line in story)
    assert Harm.FALSE_RECEIPT not in found.harms


def test_without_a_wire_no_write_can_be_stalled() -> None:
    assert Fault.STALLED_WRITE not in faults_of(TRANSACTIONAL)
    assert Fault.STALLED_WRITE in faults_of(RECONCILABLE)


def test_an_unsafe_contract_never_duplicates_by_itself() -> None:
    for fault in faults_of(UNSAFE):
        found = verdict(UNSAFE, fault, 40, 0)
        if not found.breaks_promise:
            assert Harm.DUPLICATE not in found.harms, fault


def test_a_story_is_short_and_can_be_told_again() -> None:
    found = verdict(RECONCILABLE, Fault.SEEN_TOO_LATE, SCHEDULES, 0)
    duplicate = found.harms[Harm.DUPLICATE]
    again = replayed(RECONCILABLE, Fault.SEEN_TOO_LATE, duplicate.picks)
    assert tuple(again.story) == duplicate.story
    assert Harm.DUPLICATE in harms_of(again)
    assert sum("sends attempt" in line for line in duplicate.story) == 2
    assert len(duplicate.story) < 80


@pytest.mark.parametrize("name", catalog_documents())
def test_every_shipped_contract_has_a_stand_in_with_its_numbers(name: str) -> None:
    document = catalog_documents()[name]
    simulated = stand_in(document)
    assert simulated.safety is document.safety
    own, policy = document.policy(), simulated.policy()
    assert policy.attempts_max == own.attempts_max
    assert policy.key_retention_seconds == own.key_retention_seconds
    assert policy.settlement_bound_seconds == own.settlement_bound_seconds
    assert policy.attempt_deadline_seconds == own.attempt_deadline_seconds
    assert None in faults_of(document)
    if document.safety is SafetyClass.UNSAFE:
        assert Fault.LAG not in faults_of(document)
        assert Fault.EAGER_OPERATOR in faults_of(document)
