"""What was given out stays good: cursors, ids and bodies keep their form, waits their numbers."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from dataclasses import asdict, replace
from datetime import UTC, datetime
from uuid import UUID

import pytest

from effect_contracts.backoff import jittered_seconds
from effect_contracts.event_stream import (
    BEGINNING,
    CursorForeign,
    CursorForged,
    EventFilter,
    Place,
    StreamEvent,
    _seal,
    _tag,
    beginning_of,
    cursor_of,
    event_id,
    place_of,
)
from effect_contracts.webhook_sending import (
    SECRET_BYTES,
    SendingPolicy,
    secret_of,
    webhook_body,
    webhook_headers,
)

TENANT, EPOCH_ID = UUID(int=1), UUID(int=2)
PLACE = Place((1 << 32) | 5, 700, UUID(int=9), 3)
EVENT = StreamEvent(
    place=PLACE,
    kind="outcome_recorded",
    from_state="dispatching",
    to_state="succeeded",
    reason="committed",
    at=datetime(2026, 11, 29, 12, tzinfo=UTC),
    digest=bytes(range(32)),
    operation_key="order:42:charge:v1",
    tool="demo.charge",
)
CURSOR = "AWkoZckAAAABAAAABQAAAAAAAAK8AAAAAAAAAAAAAAAAAAAACQAAAAMw0xywuMr4haFmrW0"


# Cursors ---------------------------------------------------------------------------------------


def test_a_cursor_that_was_given_out_is_good_for_every_later_release() -> None:
    assert cursor_of(PLACE, TENANT, EPOCH_ID) == CURSOR
    assert place_of(CURSOR, TENANT, {1: EPOCH_ID}) == PLACE


def test_places_are_in_the_order_of_the_stream() -> None:
    later = [
        Place(PLACE.era, 700, UUID(int=9), 4),
        Place(PLACE.era, 700, UUID(int=10), 1),
        Place(PLACE.era, 701, UUID(int=1), 1),
        Place(PLACE.era + 1, 1, UUID(int=1), 1),
    ]
    assert sorted([*reversed(later), PLACE, BEGINNING]) == [BEGINNING, PLACE, *later]
    assert Place(0, 0, UUID(int=0), 0) == BEGINNING


def test_an_era_holds_its_epoch_and_what_is_older_is_of_the_first() -> None:
    assert PLACE.epoch == 1
    assert BEGINNING.epoch == 1
    assert Place((3 << 32) - 1, 0, UUID(int=0), 0).epoch == 2
    assert beginning_of(3) == Place(3 << 32, 0, UUID(int=0), 0)
    assert beginning_of(3).epoch == 3


def _sealed(told: bytes) -> str:
    """A cursor with a good seal over whatever it says."""
    return urlsafe_b64encode(told + _seal(told, TENANT, EPOCH_ID)).decode().rstrip("=")


def test_a_good_seal_makes_no_cursor_of_another_form() -> None:
    told = bytes([1]) + _tag(EPOCH_ID) + bytes(3) + bytes([1]) + bytes(4 + 8 + 16 + 4)
    assert place_of(_sealed(told), TENANT, {1: EPOCH_ID}).era == 1 << 32
    for other in (bytes([2]) + told[1:], bytes([0]) + told[1:], told + b"\0", told[:-1]):
        with pytest.raises(CursorForged, match="this is no cursor"):
            place_of(_sealed(other), TENANT, {1: EPOCH_ID})


def test_each_refusal_of_a_cursor_says_why() -> None:
    for text in ("", "A", "AAAAA", "\xff", "!" * 71):
        with pytest.raises(CursorForged, match="this is no cursor"):
            place_of(text, TENANT, {1: EPOCH_ID})
    with pytest.raises(CursorForged, match="not given to this tenant"):
        place_of(CURSOR, UUID(int=3), {1: EPOCH_ID})
    with pytest.raises(CursorForeign, match="another copy") as refused:
        place_of(CURSOR, TENANT, {1: UUID(int=4)})
    assert refused.value.epoch == 1


# Events ----------------------------------------------------------------------------------------


def test_an_event_says_what_has_become_of_its_effect() -> None:
    assert EVENT.to_json() == {
        "id": "00000000-0000-0000-0000-000000000009.3.00010203",
        "type": "outcome_recorded",
        "at": "2026-11-29T12:00:00+00:00",
        "effect_id": "00000000-0000-0000-0000-000000000009",
        "sequence": 3,
        "version": 3,
        "operation_key": "order:42:charge:v1",
        "tool": "demo.charge",
        "state": "succeeded",
        "previous_state": "dispatching",
        "final": True,
        "reason": "committed",
    }
    waits = replace(EVENT, to_state="outcome_unknown", from_state=None).to_json()
    assert (waits["final"], waits["previous_state"]) == (False, None)
    assert event_id(UUID(int=9), 3, bytes(range(32))) == EVENT.id


@pytest.mark.parametrize("part", ["types", "states"])
def test_a_filter_of_one_part_asks_for_that_part_alone(part: str) -> None:
    fits = {"types": EVENT.kind, "states": EVENT.to_state}[part]
    wants = EventFilter(**{part: frozenset({fits, "another"})})
    assert wants.takes(EVENT)
    assert not wants.takes_all
    assert not EventFilter(**{part: frozenset({"another"})}).takes(EVENT)
    assert EventFilter().takes_all


# Deliveries --------------------------------------------------------------------------------------


def test_a_delivery_holds_the_event_in_one_spelling() -> None:
    body = webhook_body(EVENT)
    assert json.loads(body) == {
        "type": "outcome_recorded",
        "timestamp": "2026-11-29T12:00:00+00:00",
        "data": EVENT.to_json(),
    }
    assert body == webhook_body(replace(EVENT))
    assert b" " not in body


def test_a_signature_that_was_sent_once_is_made_again() -> None:
    secrets = [secret_of(bytes(range(32))), secret_of(bytes(32))]
    assert secrets[0] == "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
    assert webhook_headers(secrets, EVENT.id, 1_700_000_000, webhook_body(EVENT)) == (
        ("webhook-id", EVENT.id),
        ("webhook-timestamp", "1700000000"),
        (
            "webhook-signature",
            "v1,iD4ydDxNi7TWC0UZGH7Yp/lpinCpnH1Zfnqkc4azhGk= "
            "v1,hDEHYWZ3hDeRz/LkaQ/s2U1ShFltvW3p8GGF2nZkEPg=",
        ),
    )
    assert SECRET_BYTES == 32


def test_how_often_and_how_long_a_delivery_is_tried_is_as_documented() -> None:
    """docs/event-stream.md: what receivers may rely on, and what one worker does at once."""
    assert asdict(SendingPolicy()) == {
        "try_seconds": 10.0,
        "tries_max": 12,
        "dead_after_seconds": 24 * 3600.0,
        "wait_seconds": 5.0,
        "wait_seconds_max": 3600.0,
        "pause_after_seconds": 6 * 3600.0,
        "look_seconds": 1.0,
        "look_seconds_max": 60.0,
        "retry_after_seconds_max": 3600.0,
        "lanes": 4,
        "subscriptions": 16,
        "batch": 50,
        "batch_seconds": 30.0,
        "effects_waiting_max": 1000,
    }
    # A batch, the try that it began last, and one that is ended from outside.
    assert SendingPolicy().lease_seconds == 50.0


@pytest.mark.parametrize(("tries", "full"), [(1, 5.0), (2, 10.0), (3, 20.0), (99, 3600.0)])
def test_an_event_waits_twice_as_long_after_each_refusal(tries: int, full: float) -> None:
    policy = SendingPolicy()
    assert policy.wait_after(tries, None, 7) == jittered_seconds(full, 7, tries)
    # A shorter wish than that does not count.
    assert policy.wait_after(tries, 0.0, 7) == jittered_seconds(full, 7, tries)


@pytest.mark.parametrize(("failures", "full"), [(1, 1.0), (2, 2.0), (3, 4.0), (99, 60.0)])
def test_a_receiver_that_fails_is_left_alone_for_longer_each_time(
    failures: int, full: float
) -> None:
    assert SendingPolicy().look_after(failures, 7) == jittered_seconds(full, 7, failures)
