"""The digest of an event covers every field of it and the event before; a history is checked by
them from its first event to its last."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

from effect_contracts.events import (
    FIRST_PREVIOUS_DIGEST,
    Event,
    EventChainBroken,
    event_digest,
    verify_events,
)

AT = datetime(2026, 11, 30, 4, 5, 6, 789012, tzinfo=UTC)
FIRST = Event(
    tenant_id=UUID(int=1), effect_id=UUID(int=2), sequence=1, kind="submitted", event="submitted",
    from_state=None, to_state="prepared", reason="submitted", actor="caller:é", at=AT,
    metadata='{"row":"1"}',
)  # fmt: skip
# The text as the database writes it too, field by field; what is digested never changes.
FIRST_TEXT = (
    b"14:effect-event-1;36:00000000-0000-0000-0000-000000000001;"
    b"36:00000000-0000-0000-0000-000000000002;1:1;9:submitted;9:submitted;-;8:prepared;"
    b'9:submitted;9:caller:\xc3\xa9;16:1796011506789012;11:{"row":"1"};'
)


def history(length: int = 4) -> list[tuple[Event, bytes]]:
    told: list[tuple[Event, bytes]] = []
    previous = FIRST_PREVIOUS_DIGEST
    for sequence in range(1, length + 1):
        state = None if sequence == 1 else "prepared"
        event = replace(FIRST, sequence=sequence, from_state=state)
        previous = event_digest(previous, event)
        told.append((event, previous))
    return told


def test_what_is_digested_never_changes() -> None:
    assert event_digest(b"", FIRST) == hashlib.sha256(FIRST_TEXT).digest()
    assert event_digest(b"before", FIRST) == hashlib.sha256(b"before" + FIRST_TEXT).digest()


@pytest.mark.parametrize(
    "change",
    [
        {"tenant_id": UUID(int=3)}, {"effect_id": UUID(int=3)}, {"sequence": 2}, {"kind": "x"},
        {"event": "x"}, {"from_state": "prepared"}, {"from_state": ""}, {"to_state": "x"},
        {"reason": "x"}, {"actor": "x"}, {"at": AT + timedelta(microseconds=1)}, {"metadata": "{}"},
    ],
)  # fmt: skip
def test_no_field_of_an_event_can_be_changed_without_its_digest(change: dict[str, Any]) -> None:
    assert event_digest(b"", replace(FIRST, **change)) != event_digest(b"", FIRST)


def test_a_moment_has_one_digest_in_every_time_zone() -> None:
    elsewhere = AT.astimezone(timezone(timedelta(hours=-7)))
    assert event_digest(b"", replace(FIRST, at=elsewhere)) == event_digest(b"", FIRST)


def test_what_stands_between_two_fields_cannot_be_moved_from_one_to_the_other() -> None:
    one = replace(FIRST, reason="a;1:b", actor="c")
    other = replace(FIRST, reason="a", actor="b;1:c")
    assert event_digest(b"", one) != event_digest(b"", other)


def test_an_intact_history_ends_with_its_last_digest() -> None:
    told = history()
    assert verify_events(told) == told[-1][1]
    assert verify_events(told[2:], told[1][1]) == told[-1][1]
    assert verify_events([]) == b""
    assert verify_events([], b"before") == b"before"


@pytest.mark.parametrize("place", range(4))
def test_a_digest_that_does_not_fit_is_named_by_its_sequence(place: int) -> None:
    for wrong in (b"\x00" * 32, b"\xff" * 32, b""):
        told = history()
        told[place] = (told[place][0], wrong)
        with pytest.raises(EventChainBroken) as caught:
            verify_events(told)
        assert str(caught.value) == f"the digest of event {place + 1} does not fit"


@pytest.mark.parametrize("place", [1, 2])
def test_an_event_that_is_missing_is_named_by_its_sequence(place: int) -> None:
    told = history()
    del told[place]
    with pytest.raises(EventChainBroken) as caught:
        verify_events(told)
    assert str(caught.value) == f"event {place + 1} is missing"


def test_an_event_that_is_told_twice_leaves_the_next_one_missing() -> None:
    told = history(2)
    again = replace(told[1][0], sequence=2)
    digest = event_digest(told[1][1], again)
    with pytest.raises(EventChainBroken, match="event 3 is missing"):
        verify_events([*told, (again, digest)])


def test_a_history_from_which_the_oldest_events_were_pruned_begins_where_it_begins() -> None:
    told = history()
    with pytest.raises(EventChainBroken, match="the digest of event 3 does not fit"):
        verify_events(told[2:])
