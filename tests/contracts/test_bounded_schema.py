"""A check against a schema says what the library says, and ends whatever it is given."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from referencing import Registry

from effect_contracts.bounded_schema import (
    ANSWER_STEPS_MAX,
    ARGUMENT_STEPS_MAX,
    BoundedSchema,
    CheckTooCostly,
    Work,
)
from effect_contracts.canonical import BODY_BYTES_MAX

# Generous for a loaded machine; without a bound the same checks run for minutes to centuries.
SECONDS_MAX = 30.0


def accepts(schema: Any, value: Any, steps_max: int = ARGUMENT_STEPS_MAX) -> bool:
    return BoundedSchema(schema).accepts(value, Work(steps_max))


# As the library says ----------------------------------------------------------------------------

_NAMES = st.sampled_from(["a", "b", "ab", "c1"])
_SCALARS = st.sampled_from([None, True, False, 0, 1, 1.0, -1, 2.5, "", "a", "ab", "1"])
_VALUES = st.recursive(
    _SCALARS,
    lambda below: st.lists(below, max_size=4) | st.dictionaries(_NAMES, below, max_size=3),
    max_leaves=8,
)
_PATTERNS = st.sampled_from(["^a", "b$", "[0-9]", "^(a|b)+$", ""])
_TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
_COUNTS = st.integers(0, 3)


def _objects(below: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    parts = st.lists(below, min_size=1, max_size=3)
    named = st.dictionaries(_NAMES, below, max_size=3)
    keywords: dict[str, st.SearchStrategy[Any]] = {
        "type": _TYPES | st.lists(_TYPES, min_size=1, max_size=3, unique=True),
        "enum": st.lists(_VALUES, max_size=4),
        "const": _VALUES,
        "minimum": st.integers(-1, 2),
        "exclusiveMaximum": st.integers(-1, 2),
        "multipleOf": st.sampled_from([1, 2, 0.5]),
        "minLength": _COUNTS,
        "pattern": _PATTERNS,
        "maxItems": _COUNTS,
        "uniqueItems": st.booleans(),
        "contains": below,
        "minContains": _COUNTS,
        "maxContains": _COUNTS,
        "items": below,
        "prefixItems": parts,
        "unevaluatedItems": below,
        "properties": named,
        "additionalProperties": below,
        "propertyNames": below,
        "minProperties": _COUNTS,
        "required": st.lists(_NAMES, max_size=2, unique=True),
        "dependentRequired": st.dictionaries(_NAMES, st.lists(_NAMES, max_size=2, unique=True)),
        "dependentSchemas": named,
        "allOf": parts,
        "anyOf": parts,
        "oneOf": parts,
        "not": below,
        "if": below,
        "then": below,
        "else": below,
        "$ref": st.sampled_from(["#/$defs/one", "#two"]),
        "$dynamicRef": st.just("#three"),
    }
    either = st.fixed_dictionaries({}, optional={"patternProperties": st.dictionaries(
        _PATTERNS, below, max_size=2)}) | st.fixed_dictionaries(
        {}, optional={"unevaluatedProperties": below})  # fmt: skip
    chosen = st.lists(st.sampled_from(sorted(keywords)), max_size=3, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: keywords[name] for name in names})
    )
    return st.builds(lambda one, other: one | other, chosen, either)


_SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | st.builds(dict), _objects, max_leaves=8
)
_DEFINED = {
    "one": {"type": "string", "pattern": "^a"},
    "two": {"$anchor": "two", "type": ["integer", "array"]},
    "three": {"$dynamicAnchor": "three", "maxProperties": 1},
}


def _has_both(schema: Any) -> bool:
    text = json.dumps(schema)
    return '"patternProperties"' in text and '"unevaluatedProperties"' in text


@settings(max_examples=300, deadline=None)
@given(_SCHEMAS, _VALUES)
@example({"$schema": "https://json-schema.org/draft/2020-12/schema", "pattern": "^a"}, "b")
@example({"properties": {"pattern": {"const": 1}, "enum": {"pattern": "^a"}}}, {"enum": "b"})
@example({"enum": [1, True, [1], {"a": [True]}]}, {"a": [1]})
@example({"uniqueItems": True}, [1, True, 1.5, "1", [1], [True], {"a": 1}])
@example({"uniqueItems": True}, [{"a": 1, "b": 2}, {"b": 2, "a": 1.0}])
def test_a_bounded_check_says_what_the_library_says(schema: Any, value: Any) -> None:
    if _has_both(schema):
        return  # a contract may not have the two together
    whole = {"allOf": [schema], "$defs": _DEFINED}
    Draft202012Validator.check_schema(whole)
    library = Draft202012Validator(whole, registry=Registry())
    bounded = BoundedSchema(whole)
    expected = [list(error.absolute_path) for error in library.iter_errors(value)]
    found = bounded.mismatches(value, Work(ARGUMENT_STEPS_MAX), count_max=10_000)
    assert bool(found) == bool(expected)
    # Where one keyword tells of several places, it may stop after the first; and the library
    # forgets the place of what no value fits.
    places = [list(m.absolute_path) for m in found if m.validator != "false"]
    assert all(place in expected for place in places)


# Bounded ----------------------------------------------------------------------------------------

_TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "anyOf": [
                {"properties": {"below": {"$ref": "#/$defs/node"}, "kind": {"const": 1}}},
                {"properties": {"below": {"$ref": "#/$defs/node"}, "kind": {"const": 2}}},
            ]
        }
    },
}


def _deep(levels: int) -> Any:
    value: Any = {"kind": 3}
    for _ in range(levels):
        value = {"below": value, "kind": 3}
    return value


_COSTLY = {
    "a choice in every level": (_TREE, _deep(40)),
    "long patterns on long texts": ({"pattern": "[01]*1[01]{900}x"}, "01" * 130_000),
    "all pairs of unevaluated items": (
        {"prefixItems": [True] * 50, "unevaluatedItems": {"type": "integer"}},
        [1] * 80_000,
    ),
    "a wide choice for each element": (
        {"items": {"oneOf": [{"const": number} for number in range(1000)]}},
        [5] * 120_000,
    ),
}


@pytest.mark.parametrize("name", sorted(_COSTLY))
def test_a_check_that_would_not_end_is_given_up(name: str) -> None:
    schema, value = _COSTLY[name]
    began = time.process_time()
    with pytest.raises(CheckTooCostly, match="check_limit"):
        accepts(schema, value)
    assert time.process_time() - began < SECONDS_MAX


_LINEAR = {
    "repeated groups": ({"pattern": "^(a+)+$"}, "a" * 200_000 + "!", False),
    "patterns of names": (
        {"patternProperties": {"^(a+)+$": True}, "additionalProperties": False},
        {"a" * 100_000 + "!": 1},
        False,
    ),
    "unique objects": ({"uniqueItems": True}, [{"a": number} for number in range(20_000)], True),
    "unique numbers of equal hashes": (
        {"uniqueItems": True},
        [number * (2**61 - 1) for number in range(1, 20_000)],
        True,
    ),
    "long enumerations": (
        {"items": {"enum": [f"x{number}" for number in range(20_000)]}},
        ["x19999"] * 20_000,
        True,
    ),
    "anchors": (
        {
            "items": {"$ref": "#n"},
            "$defs": {"n": {"$anchor": "n", "type": "integer"}}
            | {f"d{number}": {"type": "string"} for number in range(500)},
        },
        [1] * 50_000,
        True,
    ),
}


@pytest.mark.parametrize("name", sorted(_LINEAR))
def test_what_the_library_does_slowly_is_done_in_linear_time(name: str) -> None:
    schema, value, fits = _LINEAR[name]
    began = time.process_time()
    assert accepts(schema, value) is fits
    assert time.process_time() - began < SECONDS_MAX


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"items": {"type": "integer", "minimum": 0, "maximum": 9}}, [1] * 130_000),
        (
            {"items": {"required": ["id"], "additionalProperties": False, "properties": {
                "id": {"type": "integer", "minimum": 0},
                "name": {"type": "string", "maxLength": 9, "pattern": "^[a-z]+$"}}}},
            [{"id": 1, "name": "x"}] * 12_000,
        ),
        ({"pattern": "^[A-Za-z0-9+/]*={0,2}$"}, "aB3+" * 65_000),
    ],
)  # fmt: skip
def test_the_largest_honest_arguments_are_within_the_bound(schema: Any, value: Any) -> None:
    assert BODY_BYTES_MAX * 0.9 < len(json.dumps(value, separators=(",", ":"))) <= BODY_BYTES_MAX
    assert accepts(schema, value)


def test_checks_of_one_value_share_their_work() -> None:
    bounded = BoundedSchema({"items": {"type": "integer"}})
    work = Work(ANSWER_STEPS_MAX)
    checks = 0
    with suppress(CheckTooCostly):
        while bounded.accepts([1] * 1000, work):
            checks += 1
    assert 10 < checks < 1000


def test_a_number_that_the_arithmetic_cannot_hold_is_neither_good_nor_bad() -> None:
    with pytest.raises(CheckTooCostly):
        accepts({"multipleOf": 0.01}, 10**400)


# What it costs, to the step -----------------------------------------------------------------------


class _Counted(Work):
    """Work that is not spent, and tells how much would have been."""

    def __init__(self) -> None:
        super().__init__(0)
        self.spent = 0

    def spend(self, steps: int) -> None:
        assert steps >= 0
        self.spent += steps


def _named(count: int, value: Any = True) -> dict[str, Any]:
    return {f"n{number:02}": value for number in range(count)}


_WHOLE = {"type": "integer"}
_COSTS: list[tuple[Any, Any, int]] = [
    (True, 1, 0),
    (False, 1, 0),
    ({}, 1, 0),
    ({"title": "no keyword", "$defs": {"a": _WHOLE}}, 1, 0),
    (_WHOLE, 1, 1),
    ({**_WHOLE, "minimum": 0}, 1, 2),
    # A mismatch pays for its sentence as well, in which the library writes the value.
    (_WHOLE, "x", 2),
    (_WHOLE, "x" * 996, 2),
    (_WHOLE, "x" * 997, 3),
    (_WHOLE, "x" * 5000, 6),
    ({"allOf": [True] * 5}, 1, 6),
    ({"allOf": [_WHOLE] * 5}, 1, 11),
    ({"anyOf": [True] * 5}, 1, 6),
    ({"anyOf": [{"type": "null"}, _WHOLE, _WHOLE]}, 1, 7),
    ({"anyOf": [_WHOLE]}, "x", 5),
    ({"oneOf": [True] + [False] * 4}, 1, 6),
    # The third is not looked at once two fit.
    ({"oneOf": [_WHOLE] * 3}, 1, 7),
    ({"contains": True}, [1] * 7, 8),
    ({"dependentRequired": {"a": list(_named(20)), "b": list(_named(4))}}, {}, 4),
    ({"dependentRequired": {"a": list(_named(20)), "b": list(_named(3))}}, {}, 3),
    ({"dependentSchemas": _named(20)}, {"x": 1, "y": 2, "z": 3}, 6),
    ({"items": True}, [1] * 7, 8),
    ({"items": True}, {"a": 1}, 2),
    ({"items": _WHOLE}, [1] * 7, 15),
    ({"items": _WHOLE}, "abcdefg", 1),
    ({"prefixItems": [True] * 20}, [1] * 3, 6),
    ({"prefixItems": [True] * 2}, [1] * 30, 3),
    ({"properties": _named(20)}, {"x": 1}, 4),
    ({"properties": _named(3, _WHOLE)}, _named(3, 1), 7),
    ({"propertyNames": True}, _named(7), 8),
    ({"required": list(_named(24))}, _named(24), 4),
    ({"required": list(_named(23))}, _named(23), 3),
    ({"unevaluatedItems": True}, [1] * 20, 51),
    ({"unevaluatedItems": True}, [1] * 3, 2),
    ({"unevaluatedProperties": True}, _named(20), 51),
    ({"pattern": "a{100}"}, "a" * 640, 1021),
    ({"pattern": "a"}, "a" * 31, 1),
    ({"pattern": "a"}, "a" * 32, 2),
    ({"pattern": "^a"}, "a" * 21, 1),
    ({"pattern": "a"}, 7, 1),
    ({"patternProperties": {"^n": True, "x": _WHOLE}}, _named(10), 21),
    ({"patternProperties": {"^n": _WHOLE}}, _named(10, 1), 21),
    ({"patternProperties": {"^n": True}}, {"n" * 64: 1}, 5),
    ({"patternProperties": {"^n": True}}, [1] * 10, 1),
    ({"additionalProperties": True}, _named(10), 11),
    ({"additionalProperties": _WHOLE}, _named(10, 1), 21),
    ({"additionalProperties": False}, [1] * 10, 1),
    ({"additionalProperties": False}, {"x": 1}, 2),
    ({"patternProperties": {"^x": True}, "additionalProperties": _WHOLE}, {"a": 1, "b": 2}, 10),
    ({"patternProperties": {"^x": True}, "additionalProperties": True}, {"x" * 64: 1}, 10),
    ({"properties": {"a": True}, "additionalProperties": True}, {"a": 1}, 3),
    ({"enum": [1]}, 1, 1),
    ({"enum": [[0] * 20]}, [0] * 20, 4),
    ({"enum": [_named(20)]}, _named(20), 4),
    ({"enum": [[[1] * 7]]}, [[1] * 7], 3),
    ({"enum": [[[1] * 8]]}, [[1] * 8], 4),
    ({"uniqueItems": True}, list(range(20)), 21),
    ({"uniqueItems": True}, [[1] * 16, [2] * 16], 9),
    ({"uniqueItems": True}, [1, 1, [2] * 800], 5),
    ({"uniqueItems": False}, list(range(20)), 1),
    ({"uniqueItems": True}, "abc", 1),
    ({"$ref": "#/$defs/a", "$defs": {"a": _WHOLE}}, 1, 2),
    ({"not": {"type": "string"}}, 1, 3),
    ({"if": _WHOLE, "then": _WHOLE, "else": False}, 1, 3),
]


@pytest.mark.parametrize(("schema", "value", "steps"), _COSTS)
def test_a_check_costs_exactly_what_its_keywords_go_through(
    schema: Any, value: Any, steps: int
) -> None:
    """A price that fell would let a slow check through; one that rose would refuse honest ones."""
    work = _Counted()
    bounded = BoundedSchema(schema)
    fits = bounded.accepts(value, work)
    assert work.spent == steps
    assert bounded.accepts(value, Work(steps)) is fits
    if steps:
        with pytest.raises(CheckTooCostly, match="check_limit"):
            bounded.accepts(value, Work(steps - 1))


def test_a_contract_that_is_honest_today_stays_within_the_bounds() -> None:
    assert (ARGUMENT_STEPS_MAX, ANSWER_STEPS_MAX) == (1_000_000, 250_000)


def test_no_more_mismatches_are_looked_for_than_were_asked() -> None:
    bounded = BoundedSchema({"items": _WHOLE})
    value = ["a", 1, "b", "c"]
    assert [list(m.path) for m in bounded.mismatches(value, _Counted())] == [[0]]
    found = bounded.mismatches(value, _Counted(), count_max=2)
    assert [list(m.path) for m in found] == [[0], [2]]
    few, all_of_it = _Counted(), _Counted()
    bounded.mismatches(value, few)
    bounded.mismatches(value, all_of_it, count_max=9)
    assert few.spent < all_of_it.spent


@pytest.mark.parametrize(
    ("schema", "value", "keyword", "path", "instance"),
    [
        ({"pattern": "^a"}, "b", "pattern", [], "b"),
        ({"items": {"pattern": "^a"}}, ["a", "b"], "pattern", [1], "b"),
        ({"patternProperties": {"^a": _WHOLE}}, {"ab": "x"}, "type", ["ab"], "x"),
        ({"additionalProperties": False}, {"a": 1}, "additionalProperties", [], {"a": 1}),
        ({"additionalProperties": _WHOLE}, {"a": "x"}, "type", ["a"], "x"),
        ({"properties": {"a": {"enum": [1]}}}, {"a": 2}, "enum", ["a"], 2),
        ({"items": {"uniqueItems": True}}, [[1, 1]], "uniqueItems", [0], [1, 1]),
        ({"anyOf": [_WHOLE]}, "x", "anyOf", [], "x"),
        ({"oneOf": [_WHOLE, _WHOLE]}, 1, "oneOf", [], 1),
        ({"items": {"$ref": "#/$defs/a"}, "$defs": {"a": _WHOLE}}, ["x"], "type", [0], "x"),
    ],
)
def test_a_mismatch_names_the_keyword_and_the_place(
    schema: Any, value: Any, keyword: str, path: list[Any], instance: Any
) -> None:
    (found,) = BoundedSchema(schema).mismatches(value, Work(ARGUMENT_STEPS_MAX))
    assert found.validator == keyword
    assert list(found.path) == path
    assert found.instance == instance
    assert found.message


@pytest.mark.parametrize(
    ("schema", "value", "path"),
    [
        (False, 1, []),
        ({"prefixItems": [False]}, [1], [0]),
        ({"properties": {"a": False}}, {"a": 1}, ["a"]),
    ],
)
def test_where_nothing_fits_the_place_is_named(schema: Any, value: Any, path: list[Any]) -> None:
    whole = {"allOf": [schema]} if schema is False else schema
    (found,) = BoundedSchema(whole).mismatches(value, Work(ARGUMENT_STEPS_MAX))
    assert (found.validator, list(found.path), found.message) == (
        "false", path, "nothing fits here",
    )  # fmt: skip


def test_a_check_that_is_given_up_says_why_and_holds_no_value() -> None:
    nested = {"properties": {"below": {"$ref": "#"}}}
    for schema, value, reason in (
        (nested, _deep(5000), "recursion"),
        ({"multipleOf": 0.01}, 10**400, "check_limit"),
    ):
        with pytest.raises(CheckTooCostly) as caught:
            accepts(schema, value)
        assert caught.value.reason == str(caught.value) == reason
        assert caught.value.__context__ is None
