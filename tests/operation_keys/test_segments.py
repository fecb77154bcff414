"""Keys of named parts: the same for ever, apart from each other, and of nothing that changes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from hashlib import sha256
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from effect_broker.operation_keys import KeyRefusal, KeyRefused, from_steps
from effect_broker.operation_keys.tool_calls import stored_call_key, tool_key
from effect_contracts.keys import check_operation_key

# A change here gives the retries of a deployed caller another identity: never change a value.
GOLDEN: dict[tuple[Any, ...], str] = {
    ("order", 42, "charge"): "order:42:charge",
    ("order", "42", "charge"): "order:42:charge",
    ("run", 789, "step", "refund-03"): "run:789:step:refund-03",
    ("Order", "A/17#2", "charge"): "Order:A/17#2:charge",
    ("order", UUID("3F2504E0-4F89-41D3-9A0C-0305E82C3301"), "charge"): (
        "order:3f2504e0-4f89-41d3-9a0c-0305e82c3301:charge"
    ),
    ("a:b", "c"): "a%3Ab:c",
    ("50%", "~", "x y"): "50%25:%7E:x%20y",
    ("Müller", "€", "\U0001f600"): "M%C3%BCller:%E2%82%AC:%F0%9F%98%80",
    ("line\nbreak", "\x00", "\x7f"): "line%0Abreak:%00:%7F",
    ("order", -7, "charge"): "order:-7:charge",
    ("order", "x" * 249): "order:" + "x" * 249,
    ("order", "x" * 250): (
        "order:" + "x" * 184
        + "~" + sha256(("order:" + "x" * 250).encode()).hexdigest()
    ),
}  # fmt: skip

_parts = st.one_of(
    st.integers(-(2**64), 2**64),
    st.uuids(),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200),
)


@pytest.mark.parametrize(("parts", "key"), GOLDEN.items(), ids=range(len(GOLDEN)))
def test_a_key_is_the_same_in_every_release(parts: tuple[Any, ...], key: str) -> None:
    assert from_steps(*parts) == key


@given(st.lists(_parts, min_size=1, max_size=5))
def test_every_key_is_valid_and_the_same_the_second_time(parts: list[Any]) -> None:
    key = _made("charge", *parts)
    if key is not None:
        assert check_operation_key(key) == key == _made("charge", *parts)


@given(st.lists(_parts, min_size=1, max_size=4), st.lists(_parts, min_size=1, max_size=4))
def test_two_lists_of_parts_share_no_key(first: list[Any], second: list[Any]) -> None:
    keys = _made("charge", *first), _made("charge", *second)
    if None not in keys:
        same = [str(part) for part in first] == [str(part) for part in second]
        assert (keys[0] == keys[1]) == same


@given(st.lists(st.text(":%~ax", min_size=1, max_size=3), min_size=1, max_size=3),
       st.lists(st.text(":%~ax", min_size=1, max_size=3), min_size=1, max_size=3))  # fmt: skip
def test_what_separates_and_escapes_is_escaped_itself(first: list[str], second: list[str]) -> None:
    assert (_made("charge", *first) == _made("charge", *second)) == (first == second)


def test_long_keys_that_differ_at_the_end_differ_and_keep_their_beginning() -> None:
    first, second = (from_steps("export", "x" * 400, end) for end in ("a", "b"))
    assert first != second
    assert len(first) == len(second) == 255
    assert first[:190] == second[:190] == ("export:" + "x" * 400)[:190]


def test_a_part_that_looks_like_the_short_form_of_a_long_key_is_another_key() -> None:
    long_one = from_steps("export", "x" * 400)
    copied = from_steps("export", long_one.removeprefix("export:"))
    assert copied != long_one


class Verb(StrEnum):
    CHARGE = "charge"


class Shouting(str):
    __slots__ = ()

    def __str__(self) -> str:
        return self.upper()

    def __format__(self, spec: str) -> str:
        return self.upper()


def test_a_kind_of_text_is_taken_by_its_characters() -> None:
    assert from_steps("order", 42, Verb.CHARGE) == "order:42:charge"
    assert from_steps("order", 42, Shouting("charge")) == "order:42:charge"


REFUSED: dict[KeyRefusal, list[tuple[Any, ...]]] = {
    KeyRefusal.TOO_FEW: [(), ("charge",)],
    KeyRefusal.NO_NAME: [
        (42, 1), ("42", "1"), ("42", UUID(int=7)), ("42", str(UUID(int=7))), ("#", "--"),
    ],
    KeyRefusal.NOT_A_PART: [
        ("order", None), ("order", True), ("order", b"42"), ("order", Decimal(42)),
        ("order", ["42"]),
    ],
    KeyRefusal.EMPTY: [("order", ""), ("", "order")],
    KeyRefusal.TOO_LONG: [("order", "x" * 1025), ("order", 10**100)],
    KeyRefusal.NOT_UNICODE: [("order", "\ud800")],
    KeyRefusal.TIME: [
        ("order", datetime(2026, 11, 30, tzinfo=UTC)), ("order", date(2026, 11, 30)),
        ("order", time(10)), ("order", timedelta(1)), ("order", 1732900000.5), ("order", 42.0),
    ],
    KeyRefusal.ATTEMPT: [
        ("order", 42, "attempt-2"), ("order", 42, "retry_1"), ("order", 42, "Try3"),
        ("order", 42, "attempt#10"),
    ],
}  # fmt: skip
_REFUSED = [(reason, parts) for reason, cases in REFUSED.items() for parts in cases]


@pytest.mark.parametrize(("reason", "parts"), _REFUSED)
def test_what_names_no_intent_is_refused_without_being_shown(
    reason: KeyRefusal, parts: tuple[Any, ...]
) -> None:
    with pytest.raises(KeyRefused) as refused:
        from_steps(*parts)
    assert refused.value.reason is reason
    long_ones = [str(part) for part in parts if len(str(part)) > 6]
    assert not any(part in str(refused.value) for part in long_ones)


@pytest.mark.parametrize(
    "parts",
    [
        ("reminder", 17, 2), ("attempt", 42, "charge"), ("order", 42, "retry"), ("fx", "TRY"),
        ("try1a", "x"), ("invoice", "2026-11"),
    ],
)  # fmt: skip
def test_a_second_one_that_is_meant_has_a_key(parts: tuple[Any, ...]) -> None:
    assert from_steps(*parts)


def test_a_refusal_survives_the_store_of_an_engine() -> None:
    with pytest.raises(KeyRefused) as refused:
        from_steps("order")
    copy = pickle.loads(pickle.dumps(refused.value))
    assert (type(copy), copy.reason, str(copy)) == (
        KeyRefused, KeyRefusal.TOO_FEW, str(refused.value)
    )  # fmt: skip


# What agents call -------------------------------------------------------------------------------


def test_a_tool_of_a_request_is_named_by_what_was_asked_for() -> None:
    assert tool_key("request-7", "charge", 42) == "request:request-7:charge:42"
    assert stored_call_key("chat-7", "call_0") == "stored-call:chat-7:call_0"


@dataclass(frozen=True)
class Case:
    make: Callable[[], str]
    reason: KeyRefusal


@pytest.mark.parametrize(
    "case",
    [
        Case(lambda: tool_key("call_9aXbQ3kLmN0pRs5TuVwXyZ12", "charge"), KeyRefusal.CHANGES),
        Case(lambda: tool_key("request-7", "charge", "toolu_01A09q90qw90"), KeyRefusal.CHANGES),
        Case(
            lambda: tool_key("chat-run-00042", "charge", changing={"the run id": "run-00042"}),
            KeyRefusal.CHANGES,
        ),
        Case(lambda: stored_call_key("chat-7", None), KeyRefusal.NO_ID),
        Case(lambda: stored_call_key("chat-7", ""), KeyRefusal.NO_ID),
    ],
)
def test_a_models_id_of_a_call_names_no_request(case: Case) -> None:
    with pytest.raises(KeyRefused) as refused:
        case.make()
    assert refused.value.reason is case.reason
    assert "00042" not in str(refused.value)


def _made(*parts: Any) -> str | None:
    try:
        return from_steps(*parts)
    except KeyRefused:
        return None
