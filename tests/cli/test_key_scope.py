"""Operation keys that are no names of intents are noticed, and shown as shapes only."""

from __future__ import annotations

import pytest

from effect_broker.cli.key_scope import Suspicion, key_scopes, shape, suspicion_of

GOOD = [
    "order:42:charge:v1",
    "order-1001:charge",
    "run:789:step:refund-03",
    "invoice:2026-11:charge",
    "order-20261129-0001",
    "order-17:3f2504e0-4f89-41d3-9a0c-0305e82c3301",
    # The id of a stored object, between its kind and what is done to it.
    "order:3f2504e0-4f89-41d3-9a0c-0305e82c3301:charge",
    # A derived id and a digest are functions of something.
    "order:018f2b1c-7b2a-5c3d-9a0c-0305e82c3301",
    "refund:9b74c9897bac770ffc029102a200c5de",
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "welcome-mail:customer-5",
    "k",
]
BAD = {
    "3f2504e0-4f89-41d3-9a0c-0305e82c3301": Suspicion.RANDOM,
    "3f2504e04f8941d39a0c0305e82c3301": Suspicion.RANDOM,
    "charge-3f2504e0-4f89-41d3-9a0c-0305e82c3301": Suspicion.RANDOM,
    "deadbeefcafe12341a2b": Suspicion.RANDOM,
    "toolu_01A09q90qw90lq917835lq9": Suspicion.RANDOM,
    "01ARZ3NDEKTSV4RRFFQ69G5FAV": Suspicion.TIME,
    "018f2b1c-7b2a-7c3d-9a0c-0305e82c3301": Suspicion.TIME,
    "charge:1732900000": Suspicion.TIME,
    "invoice-1732900000001": Suspicion.TIME,
    "charge-2026-11-29T10:00:00Z": Suspicion.TIME,
    "charge-20261129101500": Suspicion.TIME,
    "step-3": Suspicion.POSITION,
    "tool_call_0:attempt2": Suspicion.POSITION,
}


@pytest.mark.parametrize("key", GOOD)
def test_the_name_of_an_intent_is_left_alone(key: str) -> None:
    assert suspicion_of(key) is None


@pytest.mark.parametrize(("key", "suspicion"), BAD.items())
def test_what_changes_with_every_try_is_noticed(key: str, suspicion: Suspicion) -> None:
    assert suspicion_of(key) is suspicion


@pytest.mark.parametrize("key", [*GOOD, *BAD, "alice@example.com:4711", "Müller"])
def test_a_shape_holds_nothing_of_the_key(key: str) -> None:
    shown = shape(key)
    for secret in ("42", "1001", "4711", "3f2504e0", "alice", "example", "order", "mail", "1732"):
        assert secret not in shown


def test_a_sample_is_summed_up_by_suspicion() -> None:
    keys = [*GOOD, *(f"step-{n}" for n in range(5)), *BAD]
    scopes = {scope.suspicion: scope for scope in key_scopes(keys)}
    assert scopes[Suspicion.POSITION].keys == 7
    assert scopes[Suspicion.POSITION].shapes[0] == "step-<n>"
    assert len(scopes[Suspicion.RANDOM].shapes) <= 3
    assert key_scopes(GOOD) == ()
