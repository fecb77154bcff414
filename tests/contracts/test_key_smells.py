"""Operation keys that are no names of intents are noticed, and shown as shapes only."""

from __future__ import annotations

import base64
import random
import uuid

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from effect_broker.operation_keys import from_steps
from effect_contracts.key_smells import MEANINGS, Smell, key_shape, key_smells

GOOD = [
    "order:42:charge:v1",
    "order-1001:charge",
    "run:789:step:refund-03",
    "invoice:2026-11:charge",
    "invoice-2026-11",
    "statement-2026-11-30",
    "invoice:2026-11:customer:17:reminder:2",
    "order-20261129-0001",
    "order-202611290001",
    "4711",
    "order-4711",
    "A-10045-B",
    "acme-INV-2026-11-001-a",
    "acme-INV-26-11-001-a-B",
    "SendWelcomeMailToCustomer2026",
    "call_customer_42",
    "call-center:shift-7",
    "order-17:3f2504e0-4f89-41d3-9a0c-0305e82c3301",
    # The id of a stored object, between its kind and what is done to it.
    "order:3f2504e0-4f89-41d3-9a0c-0305e82c3301:charge",
    "order:018f2b1c-7b2a-7c3d-9a0c-0305e82c3301:charge",
    "order:01ARZ3NDEKTSV4RRFFQ69G5FAV:charge",
    "order:1732900000:charge",
    "celery:3f2504e0-4f89-41d3-9a0c-0305e82c3301:charge",
    # The time is that of a thing, which is named.
    "room-5:2026-12-01T10:00Z:book",
    # A derived id and a digest are functions of something.
    "order:018f2b1c-7b2a-5c3d-9a0c-0305e82c3301",
    "018f2b1c-7b2a-8c3d-9a0c-0305e82c3301",
    "refund:9b74c9897bac770ffc029102a200c5de",
    # The caller says that the model's answer was stored first.
    "stored-call:chat-17:call_9aXbQ3kLmN0pRs5TuVwXyZ12",
    "welcome-mail:customer-5",
    "k",
]
BAD = {
    "3f2504e0-4f89-41d3-9a0c-0305e82c3301": Smell.RANDOM,
    "3f2504e04f8941d39a0c0305e82c3301": Smell.RANDOM,
    "charge-3f2504e0-4f89-41d3-9a0c-0305e82c3301": Smell.RANDOM,
    "deadbeefcafe12341a2b": Smell.RANDOM,
    # As the whole key a digest cannot be told from chance, nor what it is made of.
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855": Smell.RANDOM,
    "Drmhze6EPcv0fN_81Bj-nA": Smell.RANDOM,
    "toolu_01A09q90qw90lq917835lq9": Smell.TOOL_CALL,
    "call_9aXbQ3kLmN0pRs5TuVwXyZ12": Smell.TOOL_CALL,
    "refund:call_9aXbQ3kLmN0pRs5TuVwXyZ12": Smell.TOOL_CALL,
    "chatcmpl-tool-3f2504e04f8941d39a0c0305e82c3301": Smell.TOOL_CALL,
    "pyd_ai_3f2504e04f8941d39a0c0305e82c3301": Smell.TOOL_CALL,
    "01ARZ3NDEKTSV4RRFFQ69G5FAV": Smell.TIME,
    "charge-01ARZ3NDEKTSV4RRFFQ69G5FAV": Smell.TIME,
    "018f2b1c-7b2a-7c3d-9a0c-0305e82c3301": Smell.TIME,
    "c232ab00-9414-11ec-b3c8-9f6bdeced846": Smell.TIME,
    "1732900000": Smell.TIME,
    "charge:1732900000": Smell.TIME,
    "charge:1732900000.123456": Smell.TIME,
    "invoice-1732900000001": Smell.TIME,
    "mail:1732900000001:send": Smell.TIME,
    "charge-2026-11-29T10:00:00Z": Smell.TIME,
    "mail:2026-11-29T10:15:33.123Z:send": Smell.TIME,
    "charge-20261129101500": Smell.TIME,
    "step-3": Smell.POSITION,
    "tool_call_0:attempt2": Smell.POSITION,
    "charge-0": Smell.POSITION,
    "refund_1": Smell.POSITION,
    "send[0]": Smell.POSITION,
    "7": Smell.POSITION,
}
WORDS = ["order", "invoice", "charge", "refund", "ship", "mail", "customer", "acme-prod", "v2"]

_names = st.sampled_from(WORDS)
# From 2: the first two places of a list are told from an object's number by their size alone.
_numbers = st.integers(min_value=2, max_value=10**12)
_kinds = st.sampled_from(["order", "invoice", "customer", "refund"])


@pytest.mark.parametrize("key", GOOD)
def test_the_name_of_an_intent_is_left_alone(key: str) -> None:
    assert key_smells(key) == ()


@pytest.mark.parametrize(("key", "smell"), BAD.items())
def test_what_changes_with_every_try_is_noticed(key: str, smell: Smell) -> None:
    assert key_smells(key) == (smell,)


@given(_kinds, _numbers, st.lists(_names, min_size=1, max_size=4))
def test_names_around_an_objects_number_are_left_alone(
    kind: str, number: int, names: list[str]
) -> None:
    key = from_steps(kind, number, *names)
    # A counter that has come to 13 digits looks like milliseconds, and only then.
    assume(not 1_500_000_000_000 <= number < 2_000_000_000_000)
    assert key_smells(key) == ()


@given(_kinds, st.uuids(), _names)
def test_the_id_of_a_stored_object_is_left_alone(kind: str, stored: uuid.UUID, verb: str) -> None:
    assert key_smells(from_steps(kind, stored, verb)) == ()


@given(_kinds, st.dates(), st.integers(2, 99_999))
def test_a_date_in_a_business_key_is_left_alone(kind: str, day: object, number: int) -> None:
    assert key_smells(f"{kind}-{day}") == key_smells(f"{kind}:{day}:{number}") == ()


@given(st.uuids(version=4), st.sampled_from(["{}", "charge-{}", "refund:{}"]))
def test_every_uuid_of_version_4_is_noticed(made: uuid.UUID, around: str) -> None:
    assert key_smells(around.format(made)) == (Smell.RANDOM,)


@pytest.mark.parametrize("size", [16, 24, 32])
def test_random_tokens_are_noticed_mostly_and_names_of_their_length_never(size: int) -> None:
    chance = random.Random(size)
    for written in (bytes.hex, lambda b: base64.urlsafe_b64encode(b).decode().rstrip("=")):
        tokens = [written(chance.randbytes(size)) for _ in range(300)]
        noticed = sum(Smell.RANDOM in key_smells(token) for token in tokens)
        assert noticed >= 0.85 * len(tokens)
    for _ in range(300):
        name = "-".join(chance.choices(WORDS, k=4)) + f"-{chance.randrange(2, 10**6)}"
        assert key_smells(name) == ()


@given(st.text(max_size=300))
def test_any_text_has_an_answer(text: str) -> None:
    assert set(key_smells(text)) <= set(Smell)
    assert isinstance(key_shape(text), str)


@pytest.mark.parametrize(
    "key", [*GOOD, *BAD, "alice@example.com:4711", "Müller", "M%C3%BCller:4711", "anna\x1b[31m"]
)
def test_a_shape_holds_nothing_of_the_key(key: str) -> None:
    shown = key_shape(key)
    for secret in ("42", "1001", "4711", "3f2504e0", "alice", "example", "order", "mail", "1732",
                   "9aXb", "01A09", "ü", "BC", "Drmh", "2026", "\x1b"):  # fmt: skip
        assert secret not in shown


def test_a_shape_says_what_the_parts_are() -> None:
    shapes = {
        "step-3": "step-<n>",
        "charge-3f2504e0-4f89-41d3-9a0c-0305e82c3301": "<word>-<uuid4>",
        "charge:1732900000": "<word>:<time>",
        "order:42:charge": "<word>:<n>:<word>",
        "call_9aXbQ3kLmN0pRs5TuVwXyZ12": "<call>",
        "Drmhze6EPcv0fN_81Bj-nA": "<text22>",
        "deadbeefcafe12341a2b": "<hex20>",
    }
    assert {key: key_shape(key) for key in shapes} == shapes


def test_every_smell_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Smell)
