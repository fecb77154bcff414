"""The edges of the canonical form: the last size that is taken, the first sign that is not."""

from __future__ import annotations

import pytest

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

_R = PayloadReason


def refusal(raw: bytes, **limits: int) -> InvalidPayload:
    with pytest.raises(InvalidPayload) as caught:
        parse_strict(raw, **limits)
    return caught.value


def test_the_limits_are_the_declared_ones() -> None:
    assert (DEPTH_MAX, BODY_BYTES_MAX, INTEGER_MAX) == (64, 262_144, 9_007_199_254_740_991)


@pytest.mark.parametrize(
    "value",
    [
        *[None, True, False, 0, -7, 1.5, "", "a", "é", '"\\', "\n", "\x01", [], [1], [1, 2, 3]],
        *[{}, {"a": None}, {"a": True, "b": False}, {"é": ["\x1f", '"']}, [[], [[]], {"": {}}]],
    ],
)
def test_the_size_counts_to_the_byte(value: JsonValue) -> None:
    size = len(canonical_bytes(value))
    assert check_value(value, bytes_max=size) == value
    with pytest.raises(InvalidPayload) as caught:
        check_value(value, bytes_max=size - 1)
    assert caught.value.reason is _R.TOO_LARGE
    assert problem(caught.value)["limit"] == size - 1


@pytest.mark.parametrize(
    ("depth", "raw"),
    [
        (0, b"1"),
        (1, b"[]"),
        (2, b'[{"a":1}]'),
        (3, b"[[[]]]"),
        (3, b'{"a":{"b":{}}}'),
        (4, b'[{"a":[{}]}]'),
    ],
)
def test_depth_counts_objects_and_arrays(depth: int, raw: bytes) -> None:
    value = parse_strict(raw)
    assert parse_strict(raw, depth_max=depth) == value
    assert check_value(value, depth_max=depth) == value
    if depth:
        found = refusal(raw, depth_max=depth - 1)
        assert (found.reason, problem(found)["limit"]) == (_R.TOO_DEEP, depth - 1)
        with pytest.raises(InvalidPayload):
            check_value(value, depth_max=depth - 1)


def test_a_body_that_is_too_deep_says_where() -> None:
    found = refusal(b" [1, [2, [3]]]", depth_max=2)
    assert (found.reason, problem(found)["offset"]) == (_R.TOO_DEEP, 9)
    assert problem(refusal(b"[[],[],[[1]]]", depth_max=2))["offset"] == 8
    # Of two kinds, together one more than there may be.
    mixed = b'[{"a":' * 32 + b"[" + b"]" + b"}]" * 32
    assert problem(refusal(mixed))["offset"] == 6 * 32
    side_by_side = b"[" + b",".join([b"[]"] * 200) + b"]"
    assert parse_strict(side_by_side, depth_max=2) == [[]] * 200


def test_a_body_is_measured_before_it_is_read() -> None:
    assert parse_strict(b"  1  ", bytes_max=5) == 1
    assert refusal(b"  1  ", bytes_max=4).reason is _R.TOO_LARGE


@pytest.mark.parametrize("sign", ["", "-"])
def test_whole_numbers_end_at_two_to_the_53(sign: str) -> None:
    for spelt in (f"{INTEGER_MAX}", f"{INTEGER_MAX}.0", "9.007199254740991e15"):
        assert parse_strict(f"{sign}{spelt}".encode()) == int(f"{sign}{INTEGER_MAX}")
    for spelt in (f"{INTEGER_MAX + 1}", f"{INTEGER_MAX + 1}.0", "1" * 17, "1" * 18, "1e16", "1e17"):
        assert refusal(f"{sign}{spelt}".encode()).reason is _R.NUMBER_RANGE
    for number in (INTEGER_MAX + 1, float(INTEGER_MAX + 1), 10**30):
        with pytest.raises(InvalidPayload) as caught:
            check_value(-number if sign else number)
        assert caught.value.reason is _R.NUMBER_RANGE


@pytest.mark.parametrize(
    ("raw", "reason", "offset"),
    [
        (b"", _R.EMPTY, 0),
        (b" \n\t\r", _R.EMPTY, 4),
        (b"1 2", _R.TRAILING_TEXT, 2),
        ('"é" x'.encode(), _R.TRAILING_TEXT, 5),
        ('["é", x]'.encode(), _R.SYNTAX, 7),
        (b"\xef\xbb\xbf1", _R.BYTE_ORDER_MARK, 0),
        (b'"a\xff"', _R.NOT_UTF8, 2),
    ],
)
def test_a_refusal_counts_bytes_from_the_beginning(
    raw: bytes, reason: PayloadReason, offset: int
) -> None:
    found = refusal(raw)
    assert (found.reason, problem(found)["offset"]) == (reason, offset)


def test_a_repeated_member_is_named_even_behind_others() -> None:
    found = refusal(b'{"a": 1, "b": {"x": 0, "c": 1, "d": 2, "\\u0063": 3, "d": 4}}')
    assert (found.reason, found.field) == (_R.DUPLICATE_MEMBER, "/b/c")


def test_a_refusal_points_to_its_own_place_and_not_to_a_neighbour() -> None:
    for value, field in (
        ([1, [2, "\x00"]], "/1/1"),
        ({"a": [1], "b": "\x00"}, "/b"),
        ({"a": {"x": 1}, "b": [0, {"y": object()}]}, "/b/1/y"),
        ([{"a": 1}, {1: 2}], "/1"),
        ([[], [], "\ud800"], "/2"),
    ):
        with pytest.raises(InvalidPayload) as caught:
            check_value(value)
        assert caught.value.field == field


@pytest.mark.parametrize(
    ("left", "right", "pointer"),
    [
        ([1, 2], [1, 2, 3], "/2"),
        ([1, 2, 3], [1], "/1"),
        ([], [0], "/0"),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, "/a/1/b"),
        ({"a": 1, "b": 2}, {"b": 3}, "/a"),
        ({"b": 3}, {"a": 1, "b": 2}, "/a"),
        (1, True, ""),
        (0, False, ""),
        (1, "1", ""),
        ([], {}, ""),
        ([True], [1], "/0"),
        (1, 1.0, None),
        ({"a": []}, {"a": []}, None),
    ],
)
def test_the_first_difference_is_named_from_both_sides(
    left: JsonValue, right: JsonValue, pointer: str | None
) -> None:
    assert first_difference(left, right) == pointer
    assert first_difference(right, left) == pointer


def test_the_names_around_the_arguments_take_nothing_from_their_limit() -> None:
    arguments = {"a": "x" * (BODY_BYTES_MAX - len('{"a":""}'))}
    assert len(canonical_bytes(arguments)) == BODY_BYTES_MAX
    assert len(request_hash("t" * 200, arguments, "c", "1")) == 32
    with pytest.raises(InvalidPayload):
        request_hash("t", {"a": arguments["a"] + "x"}, "c", "1")


def test_a_number_that_no_double_holds_is_refused_and_its_neighbour_is_not() -> None:
    for kept in ("0.1", "1e-7", "0.10", "1.50e2", "5e-324"):
        assert digest(parse_strict(kept.encode())) == digest(float(kept))
    for lost in (
        "0.10000000000000001",
        "1e-400",
        "4e-324",
        "1e-99999999999999999999",
        "0e99999999999999999999",
    ):
        assert refusal(lost.encode()).reason is _R.NUMBER_PRECISION
