"""The canonical form: equal payloads share a hash, others never do, the rest is refused."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter, OrderedDict, UserDict
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum, StrEnum
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import rfc8785
from hypothesis import assume, example, given
from hypothesis import strategies as st

from effect_contracts.canonical import (
    BODY_BYTES_MAX,
    DEPTH_MAX,
    INTEGER_MAX,
    JsonValue,
    canonical_bytes,
    check_value,
    digest,
    first_difference,
    parse_strict,
    request_hash,
)
from effect_contracts.errors import InvalidPayload, PayloadReason, problem

from . import golden_vectors

_R = PayloadReason

_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)
_numbers = (
    st.integers(-INTEGER_MAX, INTEGER_MAX)
    | st.floats(-INTEGER_MAX, INTEGER_MAX, allow_nan=False)
    | st.sampled_from([0, 1, -1, 0.1, 5e-324, 1e-7, 123456.789])
)
_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | _numbers | _texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_texts, inner, max_size=5),
    max_leaves=20,
)


def _refusal(raw: bytes) -> InvalidPayload:
    with pytest.raises(InvalidPayload) as caught:
        parse_strict(raw)
    return caught.value


def _value_refusal(value: object) -> InvalidPayload:
    with pytest.raises(InvalidPayload) as caught:
        check_value(value)
    return caught.value


def _hash(raw: str) -> bytes:
    return digest(parse_strict(raw.encode()))


# --- golden vectors --------------------------------------------------------------------------


def test_the_golden_vectors_hold() -> None:
    pairs = golden_vectors.pairs()
    assert len(pairs) >= golden_vectors.VECTORS_MIN
    for what, expected, computed in pairs:
        assert computed == expected, what


@pytest.mark.parametrize(
    ("seed", "locale"), [("0", "C"), ("1", "C.UTF-8"), ("4242", "tr_TR.UTF-8"), ("7", "POSIX")]
)
def test_the_golden_vectors_hold_in_another_process_and_locale(seed: str, locale: str) -> None:
    environment = {
        **os.environ, "PYTHONHASHSEED": seed, "LANG": locale, "LC_ALL": locale, "PYTHONUTF8": "0"
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(Path(golden_vectors.__file__))],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


# --- equal and not equal ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("1", "1.0"),
        ("1", "1e0"),
        ("1", "10e-1"),
        ("-0", "0"),
        ("-0.0", "0"),
        ("1e2", "100"),
        ("0.1", "0.10"),
        ("0.1", "1e-1"),
        ('{"a":1,"b":{"c":2,"d":3}}', '{"b":{"d":3,"c":2},"a":1}'),
        ('"\\u0061"', '"a"'),
        ('"\\ud83d\\ude00"', '"\U0001f600"'),
        ('"\\/"', '"/"'),
        (" [ 1 ]\n", "[1]"),
    ],
)
def test_equal_payloads_share_a_hash(left: str, right: str) -> None:
    assert _hash(left) == _hash(right)
    assert first_difference(parse_strict(left.encode()), parse_strict(right.encode())) is None


@pytest.mark.parametrize(
    ("left", "right", "place"),
    [
        ("true", "1", ""),
        ("false", "0", ""),
        ('"1"', "1", ""),
        ("null", "0", ""),
        ("[]", "{}", ""),
        ('""', "null", ""),
        ("[1,2]", "[2,1]", "/0"),
        ("[1]", "[1,1]", "/1"),
        ("[[1],[2,3]]", "[[1],[2]]", "/1/1"),
        ('{"a":1}', '{"a":1,"b":null}', "/b"),
        ('{"a":[{"x":1}]}', '{"a":[{"x":true}]}', "/a/0/x"),
        ('{"b":1,"a":2}', '{"b":2,"a":1}', "/a"),
        ('{"createdAt":"1"}', '{"createdAt":"2"}', "/createdAt"),
        ('{"a/b~":1}', '{"a/b~":2}', "/a~1b~0"),
        ('{"\u00e9":1}', '{"e\u0301":1}', "/e\u0301"),
        ('{"\U0001f600":1,"\ufb33":1}', '{"\U0001f600":2,"\ufb33":2}', "/\U0001f600"),
        ("9007199254740991", "9007199254740990", ""),
        ("0.1", "0.10000000000000002", ""),
        ('"a"', '"A"', ""),
        ('" a"', '"a"', ""),
    ],
)
def test_other_payloads_have_another_hash_and_the_first_difference_is_named(
    left: str, right: str, place: str
) -> None:
    assert _hash(left) != _hash(right)
    one, other = parse_strict(left.encode()), parse_strict(right.encode())
    assert first_difference(one, other) == place
    assert first_difference(other, one) == place


@given(_values, _values)
@example(1, 1.0)
@example([0], [False])
@example({"a": -0.0}, {"a": 0})
def test_a_hash_is_shared_exactly_by_equal_payloads(left: object, right: object) -> None:
    one, other = check_value(left), check_value(right)
    difference = first_difference(one, other)
    assert (digest(one) == digest(other)) == (difference is None)
    assert first_difference(other, one) == difference


@given(_values)
def test_the_canonical_text_is_a_fixed_point_of_the_strict_reader(value: object) -> None:
    text = canonical_bytes(value)
    again = parse_strict(text)
    assert again == check_value(value)
    assert canonical_bytes(again) == text


_ascii_names = st.text(st.characters(max_codepoint=127, exclude_characters="\x00"), max_size=6)
_plain_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-INTEGER_MAX, INTEGER_MAX) | _texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_ascii_names, inner, max_size=5),
    max_leaves=20,
)


@given(_values | _plain_values)
@example({"a": ['\x01\x1f\x7f\b\f\n\r\t"\\/', "\u2028\ud7ff\ue000\U0001f600"], "Z": None})
@example({"\ufb33": 1, "\U0001f600": 2})  # another order in UTF-16
@example([1e-7, 5e-324, 0.1])
def test_the_text_is_the_librarys_whoever_writes_it(value: object) -> None:
    checked = check_value(value)
    assert canonical_bytes(value) == rfc8785.dumps(checked)
    request: dict[str, Any] = {"tool": "t", "arguments": {"a": checked}, "contract_name": "n"}
    written = rfc8785.dumps({**request, "contract_version": "1"})
    assert request_hash("t", {"a": value}, "n", "1") == sha256(written).digest()


@given(_values)
def test_the_wire_and_python_have_one_canonical_form(value: object) -> None:
    raw = json.dumps(value).encode()
    assert canonical_bytes(parse_strict(raw)) == canonical_bytes(value)


@given(st.dictionaries(_texts, _numbers, max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_members_does_not_count(
    members: dict[str, Any], shuffler: random.Random
) -> None:
    items = list(members.items())
    shuffler.shuffle(items)
    assert digest({"in": dict(items)}) == digest({"in": members})


@given(st.lists(st.integers(0, 3), min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_elements_counts(elements: list[int], shuffler: random.Random) -> None:
    shuffled = list(elements)
    shuffler.shuffle(shuffled)
    assume(shuffled != elements)
    assert digest(shuffled) != digest(elements)


@given(st.dictionaries(_texts, st.none(), max_size=8))
def test_members_are_sorted_by_utf_16_code_units(members: dict[str, None]) -> None:
    text = canonical_bytes(members).decode()
    names = list(json.loads(text))
    assert names == sorted(members, key=lambda name: name.encode("utf-16-be"))


@given(st.decimals(-(10**18), 10**18, allow_nan=False, places=None) | st.decimals(-10, 10))
@example(Decimal("9007199254740993"))
@example(Decimal("9007199254740991.5"))
@example(Decimal("0.10000000000000001"))
@example(Decimal("1e-400"))
def test_a_number_is_refused_or_kept_to_its_last_digit(number: Decimal) -> None:
    """So two literals that share a hash denote the same number."""
    assume(number.is_finite())
    literal = str(number).replace("E+", "e").replace("E-", "e-")
    try:
        kept = parse_strict(literal.encode())
    except InvalidPayload:
        return
    assert Decimal(canonical_bytes(kept).decode()) == number


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "reason", "field", "offset"),
    [
        (b"", _R.EMPTY, None, 0),
        (b" \n\t ", _R.EMPTY, None, 4),
        (b"\xef\xbb\xbf{}", _R.BYTE_ORDER_MARK, None, 0),
        (b"\xff\xfe{\x00}\x00", _R.NOT_UTF8, None, 0),
        (b'{"a":"\xc3"}', _R.NOT_UTF8, None, 6),
        (b'"\xed\xa0\x80"', _R.NOT_UTF8, None, 1),
        (b'"\xc0\x80"', _R.NOT_UTF8, None, 1),
        (b"{}{}", _R.TRAILING_TEXT, None, 2),
        (b'{"\xc3\xa9":1} x', _R.TRAILING_TEXT, None, 9),
        (b"{}\x00", _R.TRAILING_TEXT, None, 2),
        (b"{", _R.SYNTAX, None, None),
        (b'{"a":1,}', _R.SYNTAX, None, None),
        (b"[1,]", _R.SYNTAX, None, None),
        (b"{'a':1}", _R.SYNTAX, None, 1),
        (b"// note\n{}", _R.SYNTAX, None, 0),
        (b"{/* note */}", _R.SYNTAX, None, 1),
        (b"01", _R.TRAILING_TEXT, None, 1),
        (b"+1", _R.SYNTAX, None, 0),
        (b".5", _R.SYNTAX, None, 0),
        (b"nul", _R.SYNTAX, None, 0),
        (b'"a\nb"', _R.SYNTAX, None, 2),
        (b'"\\x41"', _R.SYNTAX, None, None),
        (b'"open', _R.SYNTAX, None, 0),
        (b"\x00", _R.SYNTAX, None, 0),
        (b"\xc2\xa0{}", _R.SYNTAX, None, 0),
        (b'{"amount":1,"amount":100}', _R.DUPLICATE_MEMBER, "/amount", None),
        (b'{"amount":1,"\\u0061mount":100}', _R.DUPLICATE_MEMBER, "/amount", None),
        (b'{"x":[{"q":1,"b":2,"q":1}]}', _R.DUPLICATE_MEMBER, "/x/0/q", None),
        (b"NaN", _R.NUMBER_NOT_FINITE, "", None),
        (b'{"a":[1,Infinity]}', _R.NUMBER_NOT_FINITE, "/a/1", None),
        (b'{"a":-Infinity}', _R.NUMBER_NOT_FINITE, "/a", None),
        (b'{"a":1e400}', _R.NUMBER_RANGE, "/a", None),
        (b"-1e400", _R.NUMBER_RANGE, "", None),
        (b"9007199254740992", _R.NUMBER_RANGE, "", None),
        (b"9007199254740993", _R.NUMBER_RANGE, "", None),
        (b"-9007199254740992", _R.NUMBER_RANGE, "", None),
        (b"9007199254740992.0", _R.NUMBER_RANGE, "", None),
        (b"9007199254740993e0", _R.NUMBER_RANGE, "", None),
        (b"1e20", _R.NUMBER_RANGE, "", None),
        (b"1.5e300", _R.NUMBER_RANGE, "", None),
        (b"1" * 5000, _R.NUMBER_RANGE, "", None),
        (b"[-" + b"9" * 5000 + b"]", _R.NUMBER_RANGE, "/0", None),
        (b"1" * 5000 + b".5", _R.NUMBER_RANGE, "", None),
        (b"1e-400", _R.NUMBER_PRECISION, "", None),
        (b"1e-99999999999999999999", _R.NUMBER_PRECISION, "", None),
        (b"0.10000000000000001", _R.NUMBER_PRECISION, "", None),
        (b"9007199254740990.5", _R.NUMBER_PRECISION, "", None),
        (b"0." + b"3" * 5000, _R.NUMBER_PRECISION, "", None),
        (b'{"a":"\\ud800"}', _R.LONE_SURROGATE, "/a", None),
        (b'{"a":"\\ude00\\ud83d"}', _R.LONE_SURROGATE, "/a", None),
        (b'{"a":{"\\udfff":1}}', _R.LONE_SURROGATE, "/a", None),
        (b'{"a":"x\\u0000y"}', _R.NUL_CHARACTER, "/a", None),
        (b'{"a":{"\\u0000":1}}', _R.NUL_CHARACTER, "/a", None),
    ],
    ids=count(),
)
def test_a_body_without_a_canonical_form_is_refused_with_its_place(
    raw: bytes, reason: PayloadReason, field: str | None, offset: int | None
) -> None:
    refused = _refusal(raw)
    assert refused.reason is reason
    assert refused.status == 422
    assert refused.field == field
    if offset is not None:
        assert problem(refused)["offset"] == offset
    if field is None:
        assert "offset" in problem(refused)


class _Colour(StrEnum):
    RED = "red"


class _Level(IntEnum):
    LOW = 1


class _Point(NamedTuple):
    x: int


class _Text(str):
    __slots__ = ()


class _Ratio(float):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "reason", "field"),
    [
        ({1: "a", "1": "b"}, _R.NAME_NOT_TEXT, ""),
        ({"a": {None: 1}}, _R.NAME_NOT_TEXT, "/a"),
        ({_Colour.RED: 1}, _R.NAME_NOT_TEXT, ""),
        ({b"a": 1}, _R.NAME_NOT_TEXT, ""),
        ({"a": Decimal("1.5")}, _R.TYPE_UNSUPPORTED, "/a"),
        ([datetime(2026, 1, 1, tzinfo=UTC)], _R.TYPE_UNSUPPORTED, "/0"),
        (b"bytes", _R.TYPE_UNSUPPORTED, ""),
        (bytearray(b"bytes"), _R.TYPE_UNSUPPORTED, ""),
        ((1, 2), _R.TYPE_UNSUPPORTED, ""),
        (_Point(1), _R.TYPE_UNSUPPORTED, ""),
        ({1, 2}, _R.TYPE_UNSUPPORTED, ""),
        (OrderedDict(a=1), _R.TYPE_UNSUPPORTED, ""),
        (Counter("a"), _R.TYPE_UNSUPPORTED, ""),
        (UserDict(a=1), _R.TYPE_UNSUPPORTED, ""),
        (_Text("a"), _R.TYPE_UNSUPPORTED, ""),
        (_Colour.RED, _R.TYPE_UNSUPPORTED, ""),
        (_Level.LOW, _R.TYPE_UNSUPPORTED, ""),
        (_Ratio(0.5), _R.TYPE_UNSUPPORTED, ""),
        (1j, _R.TYPE_UNSUPPORTED, ""),
        (object(), _R.TYPE_UNSUPPORTED, ""),
        (iter([1]), _R.TYPE_UNSUPPORTED, ""),
        ({"a": float("nan")}, _R.NUMBER_NOT_FINITE, "/a"),
        (float("inf"), _R.NUMBER_NOT_FINITE, ""),
        (2**53, _R.NUMBER_RANGE, ""),
        (-(2**53), _R.NUMBER_RANGE, ""),
        (10**5000, _R.NUMBER_RANGE, ""),
        (1e20, _R.NUMBER_RANGE, ""),
        (9007199254740992.0, _R.NUMBER_RANGE, ""),
        (["\ud800"], _R.LONE_SURROGATE, "/0"),
        ({"a": {"\ud800": 1}}, _R.LONE_SURROGATE, "/a"),
        ("a\x00", _R.NUL_CHARACTER, ""),
    ],
    ids=count(),
)
def test_a_python_value_without_a_declared_form_is_refused_with_its_place(
    value: object, reason: PayloadReason, field: str
) -> None:
    refused = _value_refusal(value)
    assert (refused.reason, refused.field) == (reason, field)
    with pytest.raises(InvalidPayload):
        canonical_bytes(value)
    with pytest.raises(InvalidPayload):
        digest(value)
    with pytest.raises(InvalidPayload):
        request_hash("t", value, "c", "1")


@pytest.mark.parametrize(
    "raw",
    [
        b'{"card":"hunter2hunter2\xff"}',
        b'{"card":"hunter2hunter2"',
        b'{"card":"hunter2hunter2"} hunter2hunter2',
        b'{"card":["hunter2hunter2\\u0000"]}',
        b'{"card":["hunter2hunter2\\ud800"]}',
        b'{"card":hunter2hunter2}',
        b'{"a":"hunter2hunter2","a":"hunter2hunter2"}',
    ],
)
def test_a_refusal_repeats_no_value_and_keeps_no_error_that_does(raw: bytes) -> None:
    refused = _refusal(raw)
    assert "hunter2" not in f"{refused} {refused!r} {problem(refused)}"
    assert refused.__cause__ is None
    assert refused.__context__ is None  # a decoder's error holds the whole document


# --- bounds ----------------------------------------------------------------------------------


def _nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def test_nesting_is_accepted_up_to_the_limit_and_not_beyond() -> None:
    assert parse_strict(_nested(DEPTH_MAX)) is not None
    refused = _refusal(_nested(DEPTH_MAX + 1))
    assert refused.reason is _R.TOO_DEEP
    assert problem(refused)["limit"] == DEPTH_MAX
    assert problem(refused)["offset"] == DEPTH_MAX

    value: Any = 0
    for _ in range(DEPTH_MAX):
        value = {"a": value}
    assert canonical_bytes(value)
    assert _value_refusal([value]).reason is _R.TOO_DEEP


def test_brackets_inside_strings_and_side_by_side_are_no_depth() -> None:
    assert parse_strict(b'["' + b"[{" * 500 + b'\\"[["]') is not None
    assert parse_strict(b"[" + b"[],{}," * 500 + b"0]") is not None


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"[" * 100_000, _R.TOO_DEEP),
        (_nested(100_000), _R.TOO_DEEP),
        (b'{"a":' * 50_000, _R.TOO_DEEP),
        (b'["\\"",' * 30_000, _R.TOO_DEEP),
        (b'"' + b'\\"' * 130_000, _R.SYNTAX),
        (b"[" * 65 + b'"' + b'\\"' * 130_000, _R.TOO_DEEP),
        (b"[[]," * 20 + b"[]," * 64 + b'"' + b'\\"' * 130_000, _R.SYNTAX),
        (b"[" * 60 + b"]" * 9 + b'"\\', _R.SYNTAX),
        (b"9" * BODY_BYTES_MAX, _R.NUMBER_RANGE),
        (b"0." + b"1" * (BODY_BYTES_MAX - 2), _R.NUMBER_PRECISION),
        (b" " * BODY_BYTES_MAX, _R.EMPTY),
        (b'{"a":1,' + b'"b":1,' * 40_000 + b'"c":1}', _R.DUPLICATE_MEMBER),
    ],
    ids=count(),
)
def test_a_bomb_is_refused_quickly(raw: bytes, reason: PayloadReason) -> None:
    begin = time.process_time()
    assert _refusal(raw).reason is reason
    assert time.process_time() - begin < 1.0  # quadratic scanning would take minutes


def test_python_values_cannot_bomb_the_walk() -> None:
    circle: list[object] = []
    circle.append(circle)
    assert _value_refusal(circle).reason is _R.TOO_DEEP

    chain: Any = []
    for _ in range(100_000):
        chain = [chain]
    assert _value_refusal(chain).reason is _R.TOO_DEEP
    while chain:  # taken apart by hand: freeing it at once recurses in C
        chain = chain[0]

    shared: list[object] = []
    for _ in range(DEPTH_MAX - 1):
        shared = [shared, shared]
    begin = time.process_time()
    assert _value_refusal(shared).reason is _R.TOO_LARGE
    assert time.process_time() - begin < 2.0


def test_a_body_is_accepted_up_to_256_kib_and_not_beyond() -> None:
    assert parse_strict(b'"' + b"a" * (BODY_BYTES_MAX - 2) + b'"') is not None
    refused = _refusal(b'"' + b"a" * (BODY_BYTES_MAX - 1) + b'"')
    assert refused.reason is _R.TOO_LARGE
    assert problem(refused)["limit"] == 256 * 1024
    assert _value_refusal("a" * (BODY_BYTES_MAX - 1)).reason is _R.TOO_LARGE


def test_a_short_body_with_a_long_canonical_text_is_refused() -> None:
    assert _refusal(b"[" + b"1e15," * 50_000 + b"1]").reason is _R.TOO_LARGE


@given(_values)
@example(['\x01\x1f\x7f"\\\b\f\n\r\t/\u2028', 1e-7, 0.1, -0.0, {}, [], {"\n": {}}])
def test_the_size_that_is_counted_is_the_size_that_is_written(value: object) -> None:
    size = len(canonical_bytes(value))
    assert canonical_bytes(value, bytes_max=size)
    with pytest.raises(InvalidPayload):
        check_value(value, bytes_max=size - 1)


# --- requests --------------------------------------------------------------------------------


def test_a_checked_value_shares_nothing_with_its_source() -> None:
    source: dict[str, Any] = {"a": [1, {"b": 2}]}
    checked = check_value(source)
    source["a"][1]["b"] = 3
    source["a"].append(4)
    assert checked == {"a": [1, {"b": 2}]}


def test_whole_numbers_become_integers() -> None:
    checked = parse_strict(b"[1.0,-0.0,1e2,0.5]")
    assert isinstance(checked, list)
    assert [(type(number), number) for number in checked] == [
        (int, 1), (int, 0), (int, 100), (float, 0.5)
    ]  # fmt: skip


def test_every_part_of_a_request_is_in_its_hash() -> None:
    arguments: JsonValue = {"amount": 1}
    hashes = {
        request_hash("t", arguments, "c", "1"),
        request_hash("u", arguments, "c", "1"),
        request_hash("t", {"amount": 2}, "c", "1"),
        request_hash("t", {"amount": True}, "c", "1"),
        request_hash("t", {"amount": "1"}, "c", "1"),
        request_hash("t", arguments, "d", "1"),
        request_hash("t", arguments, "c", "2"),
        request_hash("t", {"amount": 1, "idempotency_key": "x"}, "c", "1"),
    }
    assert len(hashes) == 8
    assert request_hash("t", {"amount": 1.0}, "c", "1") in hashes


@pytest.mark.parametrize("arguments", [None, [], "text", 1, True])
def test_arguments_that_are_no_object_are_refused(arguments: object) -> None:
    with pytest.raises(InvalidPayload) as caught:
        request_hash("t", arguments, "c", "1")
    assert caught.value.reason is _R.NOT_AN_OBJECT
    assert caught.value.field == "/arguments"


def test_a_refusal_in_a_request_points_into_the_arguments() -> None:
    with pytest.raises(InvalidPayload) as caught:
        request_hash("t", {"lines": [{"price": float("nan")}]}, "c", "1")
    assert caught.value.field == "/arguments/lines/0/price"
