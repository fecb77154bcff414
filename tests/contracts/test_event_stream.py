"""Cursors that nobody makes up, signatures that anybody can check, addresses to keep from."""

from __future__ import annotations

import base64
import hmac
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from effect_contracts.event_stream import (
    BEGINNING,
    CURSOR_CHARS_MAX,
    CursorForeign,
    CursorForged,
    EventFilter,
    Place,
    StreamEvent,
    cursor_of,
    place_of,
)
from effect_contracts.webhook_sending import (
    SendingPolicy,
    secret_of,
    webhook_body,
    webhook_headers,
)
from effect_contracts.webhook_settings import StandardWebhooksScheme
from effect_contracts.webhook_signature import Authentic, signing_key, verify
from effect_contracts.webhook_urls import UrlRefused, may_be_reached, read_networks, receiver_of

TENANT, EPOCH_ID = UUID(int=1), UUID(int=2)
EPOCHS = {1: EPOCH_ID, 2: UUID(int=3)}
EVENT = StreamEvent(
    place=Place(2**32 + 1, 700, UUID(int=9), 3),
    kind="outcome_recorded",
    from_state="dispatching",
    to_state="succeeded",
    reason="committed",
    at=datetime(2026, 11, 29, 12, tzinfo=UTC),
    digest=bytes(32),
    operation_key="order:42:charge:v1",
    tool="demo.charge",
)

places = st.builds(
    Place,
    st.integers(0, 2**33 + 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.uuids(),
    st.integers(0, 2**31 - 1),
)


@given(places)
def test_a_cursor_comes_back_as_its_place(place: Place) -> None:
    cursor = cursor_of(place, TENANT, EPOCHS[place.epoch])
    assert place_of(cursor, TENANT, EPOCHS) == place
    assert len(cursor) <= CURSOR_CHARS_MAX


@given(st.text(max_size=100))
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises((CursorForged, CursorForeign)):
        place_of(text, TENANT, EPOCHS)


@given(places, st.integers(0, 81), st.sampled_from("AQgw_-"))
def test_a_cursor_that_was_changed_is_refused(place: Place, at: int, to: str) -> None:
    cursor = cursor_of(place, TENANT, EPOCHS[place.epoch])
    changed = cursor[:at] + to + cursor[at + 1 :]
    if base64.urlsafe_b64decode(changed + "==") == base64.urlsafe_b64decode(cursor + "=="):
        return  # the same bytes: the last character has bits to spare
    with pytest.raises((CursorForged, CursorForeign)):
        place_of(changed, TENANT, EPOCHS)


def test_a_cursor_is_of_one_tenant_and_of_one_copy_of_the_database() -> None:
    cursor = cursor_of(EVENT.place, TENANT, EPOCH_ID)
    with pytest.raises(CursorForged):
        place_of(cursor, uuid4(), EPOCHS)
    with pytest.raises(CursorForeign):
        place_of(cursor, TENANT, {1: uuid4()})
    with pytest.raises(CursorForeign) as refused:
        place_of(cursor_of(Place(3 << 32, 1, UUID(int=0), 1), TENANT, EPOCH_ID), TENANT, EPOCHS)
    assert refused.value.epoch == 3
    assert place_of(cursor_of(BEGINNING, TENANT, EPOCH_ID), TENANT, EPOCHS) == BEGINNING


def test_events_with_one_number_that_a_restore_has_brought_about_have_two_ids() -> None:
    assert replace(EVENT, digest=b"\x01" * 32).id != EVENT.id
    assert EVENT.id == f"{UUID(int=9)}.3.00000000"


def test_an_event_holds_names_states_and_codes_alone() -> None:
    assert set(EVENT.to_json()) == {
        "id", "type", "at", "effect_id", "sequence", "version", "operation_key", "tool", "state",
        "previous_state", "final", "reason",
    }  # fmt: skip


def test_a_filter_takes_what_fits_all_of_its_parts() -> None:
    fits = {"types": frozenset({EVENT.kind}), "states": frozenset({EVENT.to_state})}
    assert EventFilter().takes(EVENT)
    assert EventFilter(**fits).takes(EVENT)
    for part in fits:
        assert not EventFilter(**(fits | {part: frozenset({"another"})})).takes(EVENT)


def test_a_delivery_is_signed_as_standard_webhooks_are() -> None:
    secret = secret_of(bytes(range(32)))
    body = webhook_body(EVENT)
    headers = webhook_headers([secret], EVENT.id, 1_700_000_000, body)
    scheme = StandardWebhooksScheme(kind="standard_webhooks")
    keys = [signing_key(scheme, secret)]
    assert verify(scheme, keys, headers, body, 1_700_000_100.0) == Authentic(EVENT.id)
    assert not isinstance(verify(scheme, keys, headers, body + b" ", 1_700_000_100.0), Authentic)
    told = dict(headers)
    signed = f"{EVENT.id}.1700000000.".encode() + body
    expected = base64.b64encode(hmac.digest(bytes(range(32)), signed, "sha256")).decode()
    assert told["webhook-signature"] == f"v1,{expected}"


def test_while_a_secret_is_replaced_whoever_has_either_of_them_believes() -> None:
    old, new = secret_of(bytes(32)), secret_of(bytes(range(32)))
    body = webhook_body(EVENT)
    headers = webhook_headers([new, old], EVENT.id, 1_700_000_000, body)
    scheme = StandardWebhooksScheme(kind="standard_webhooks")
    for secret in (old, new):
        keys = [signing_key(scheme, secret)]
        assert verify(scheme, keys, headers, body, 1_700_000_100.0) == Authentic(EVENT.id)
    other = [signing_key(scheme, secret_of(bytes([1] * 32)))]
    assert not isinstance(verify(scheme, other, headers, body, 1_700_000_100.0), Authentic)


def test_waits_grow_to_their_cap_with_jitter_and_a_receivers_wish_has_an_end() -> None:
    policy = SendingPolicy()
    waits = [policy.wait_after(tries, None, 7) for tries in range(1, 15)]
    for tries, wait in enumerate(waits, 1):
        full = min(5.0 * 2 ** (tries - 1), 3600.0)
        assert full / 2 <= wait <= full
    assert policy.wait_after(1, 90.0, 7) == 90.0
    assert policy.wait_after(1, 1e12, 7) == 3600.0
    assert policy.look_after(0, 7) == 0.0
    assert 30.0 <= policy.look_after(99, 7) <= 60.0
    assert policy.lease_seconds > policy.batch_seconds + policy.try_seconds


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "0.0.0.0", "255.255.255.255", "224.0.0.1", "240.0.0.1", "::1", "::", "fe80::1",
        "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1",
        "::ffff:169.254.169.254", "64:ff9b::7f00:1", "2002:7f00:1::", "fec0::1", "5f00::1",
        "not an address", "",
    ],
)  # fmt: skip
def test_an_address_inside_is_not_reached(address: str) -> None:
    assert not may_be_reached(address, ())


@pytest.mark.parametrize("address", ["93.184.215.14", "2606:4700::1", "::ffff:93.184.215.14"])
def test_a_public_address_is_reached(address: str) -> None:
    assert may_be_reached(address, ())


def test_a_network_that_the_operator_names_is_reached_and_no_other_one() -> None:
    networks = read_networks(" 10.20.0.0/16, fd00:20::/32,")
    assert may_be_reached("10.20.3.4", networks)
    assert may_be_reached("::ffff:10.20.3.4", networks)
    assert may_be_reached("fd00:20::9", networks)
    assert not may_be_reached("10.21.3.4", networks)
    assert not may_be_reached("127.0.0.1", networks)


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.acme.example/", "ftp://hooks.acme.example/", "https://", "https:///x",
        "hooks.acme.example", "https://user@hooks.acme.example/", "https://a:b@acme.example/",
        "https://acme.example/#x", "https://acme.example/#", "https://acme.example:0/",
        "https://acme.example:99999/", "https://acme.example:x/", "https://127.0.0.1/",
        "https://2130706433/", "https://0/", "https://[::1]/", "https://[fe80::1%25eth0]/",
        "https://[::ffff:10.0.0.1]/", "https://169.254.169.254/latest", "https://a b/",
        "https://ümlaut.example/", "https://acme.example/\r\nX: y", "https://acme.example/\x00",
        "https://[::1", "https://" + "a" * 3000,
    ],
)  # fmt: skip
def test_a_url_that_nothing_may_be_posted_to_is_refused(url: str) -> None:
    with pytest.raises(UrlRefused):
        receiver_of(url, (), plain_http=False)


def test_a_url_is_read_as_it_is_written() -> None:
    found = receiver_of("https://Hooks.Acme.example:8443/a%20b?c=d", (), plain_http=False)
    assert (found.scheme, found.host, found.port) == ("https", "hooks.acme.example", 8443)
    assert found.target == "/a%20b?c=d"
    assert receiver_of("http://acme.example", (), plain_http=True).port == 80
