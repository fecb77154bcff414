"""Where the languages of a contract turn: neighbours of a limit, of a name, of a sign."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from effect_contracts.expressions import (
    JsonSchema,
    UrlTemplate,
    _checked_schema,
    expand_url,
    pointer_step,
    schema_reaches,
    unknown_keywords,
)

_CLOSED = {"properties": {"a": {}}, "additionalProperties": False}


@pytest.mark.parametrize("token", ["2", "3", "999999999"])
def test_an_element_beyond_the_end_is_not_there(token: str) -> None:
    assert pointer_step(["x", "y"], token) == (False, None)


@pytest.mark.parametrize("name", ["amount", "operatio", "operations", "zone"])
def test_names_that_sort_around_the_operations_are_arguments(name: str) -> None:
    template = f"https://a.example/{{{name}}}/{{operation}}"
    TypeAdapter(UrlTemplate).validate_python(template)
    assert expand_url(template, {name: "mine"}, "k", "op") == "https://a.example/mine/op"


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e22, "1e%2B22"), (-1e22, "-1e%2B22"), (-1e20, "-1" + "0" * 20), (1e-7, "1e-07")],
)
def test_a_large_number_is_written_with_its_exponent(value: float, text: str) -> None:
    assert expand_url("https://a.example/{a}", {"a": value}, "k") == f"https://a.example/{text}"


@pytest.mark.parametrize("host", ["a", "z"])
def test_a_template_that_was_not_checked_goes_nowhere_else(host: str) -> None:
    """An expression stands for a letter of its own when origins are compared."""
    with pytest.raises(AssertionError, match="fixes the origin"):
        expand_url("https://{host}/", {"host": host}, "k")


def test_what_a_schema_neither_checks_nor_says_is_named() -> None:
    schema = {
        "titel": "t",
        "title": "t",
        "x-ours": 1,
        "x": 1,
        "$comment": "c",
        "minLength": 1,
        "properties": {"no keyword": {"requird": ["a"]}},
        "anyOf": [True, {"then": {}, "typ": "string"}],
        "default": {"no schema": {"either": 1}},
    }
    assert unknown_keywords(schema) == ["requird", "titel", "typ", "x"]
    assert unknown_keywords({}) == unknown_keywords(True) == []


def refused(schema: Any) -> str:
    with pytest.raises(ValidationError) as problem:
        TypeAdapter(JsonSchema).validate_python(schema)
    return str(problem.value)


def test_a_schema_too_deep_for_the_library_is_refused() -> None:
    """Asked directly: the library that reads documents has a limit of its own before it."""
    deep: dict[str, Any] = {}
    for _ in range(3000):
        deep = {"not": deep}
    with pytest.raises(ValueError, match=r"^the JSON Schema is nested too deeply$"):
        _checked_schema(deep)


@pytest.mark.parametrize("year", ["2019-09", "2020-11", "2020-13", "2030-01"])
def test_a_draft_before_or_after_is_another(year: str) -> None:
    found = refused({"$schema": f"https://json-schema.org/draft/{year}/schema"})
    assert "$schema is left out or https://json-schema.org/draft/2020-12/schema" in found


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#", "not": True},
        {"$ref": "#", "allOf": [{}, True]},
        {"$ref": "#", "allOf": [{"$ref": "#/allOf/1"}, {}]},
    ],
)
def test_what_stands_beside_an_endless_reference_does_not_hide_it(schema: Any) -> None:
    assert "leads back to itself" in refused(schema)


@pytest.mark.parametrize("member", ["", "!", "(", ")", "+", "0x"])
@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"p": {}}},
        {"patternProperties": {"^x": {}}},
        {"items": {}},
        {"prefixItems": [{}]},
    ],
)
def test_only_the_star_stands_for_every_member(schema: dict[str, Any], member: str) -> None:
    assert schema_reaches(schema, ("*",))
    assert not schema_reaches(schema, (member,))


def test_a_member_before_the_star_is_looked_up_by_its_name() -> None:
    schema = {"properties": {"!": _CLOSED, "p": {}}, "additionalProperties": False}
    assert schema_reaches(schema, ("!", "a"))
    assert not schema_reaches(schema, ("!", "b"))
