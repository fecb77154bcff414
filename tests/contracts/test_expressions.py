"""Pointers, URLs and schemas in a contract, each asked itself: what they reach and what they do."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from effect_contracts.expressions import (
    EXPRESSION_CHARS_MAX,
    SECONDS_MAX,
    URL_CHARS_MAX,
    Expression,
    JsonSchema,
    Pointer,
    UrlExpansionError,
    UrlTemplate,
    expand_url,
    is_loopback,
    origin_of,
    pointer_step,
    pointer_tokens,
    pointer_value,
    schema_names,
    schema_parts,
    schema_reaches,
    search,
    url_variables,
)

DEFINED = {"$defs": {"a": {"type": "object", "properties": {"x": {}}}}}


def taken(kind: Any, value: Any) -> Any:
    return TypeAdapter(kind).validate_python(value)


def refused(kind: Any, value: Any) -> str:
    with pytest.raises(ValidationError) as problem:
        TypeAdapter(kind).validate_python(value)
    return str(problem.value.errors()[0]["msg"])


def test_bounds_are_as_documented() -> None:
    assert (SECONDS_MAX, EXPRESSION_CHARS_MAX, URL_CHARS_MAX) == (315_360_000.0, 1024, 2048)


# Pointers ----------------------------------------------------------------------------------------


def test_a_pointer_is_split_at_its_signs() -> None:
    assert pointer_tokens("") == ()
    assert pointer_tokens("/") == ("",)
    assert pointer_tokens("/a~1b/m~0n/~01") == ("a/b", "m~n", "~1")


@pytest.mark.parametrize(
    ("token", "found"),
    [
        ("0", (True, "x")), ("1", (True, "y")), ("2", (False, None)), ("01", (False, None)),
        ("-1", (False, None)), ("", (False, None)), ("9" * 10, (False, None)),
        ("1\n", (False, None)),
    ],
)  # fmt: skip
def test_an_element_is_named_by_its_index(token: str, found: tuple[bool, Any]) -> None:
    assert pointer_step(["x", "y"], token) == found


def test_a_pointer_leads_to_a_value_that_is_there() -> None:
    value = {"a": [{"b": None}], "": 7}
    assert pointer_value(value, "") == (True, value)
    assert pointer_value(value, "/") == (True, 7)
    assert pointer_value(value, "/a/0/b") == (True, None)
    for nowhere in ("/b", "/a/0/c", "/a/0/b/c", "/a/1/b"):
        assert pointer_value(value, nowhere) == (False, None)
    assert pointer_step("text", "0") == (False, None)


@pytest.mark.parametrize(
    ("pointer", "words"),
    [
        ("a", "begins with '/'"),
        ("/a~", "written ~0"),
        ("/a~2", "written ~0"),
        ("/a\n", "printable"),
        ("/" + "a" * 512, "at most 512"),
    ],
)
def test_a_pointer_of_another_form_is_refused(pointer: str, words: str) -> None:
    assert words in refused(Pointer, pointer)


@pytest.mark.parametrize("pointer", ["", "/", "/a~0/b~1c", "/" + "a" * 511])
def test_a_pointer_of_the_form_is_taken(pointer: str) -> None:
    assert taken(Pointer, pointer) == pointer


# JMESPath ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("", "at least 1"),
        ("a[", "not a JMESPath expression"),
        ("nothing(a)", "no function 'nothing'"),
        ("[a, nothing(b)]", "no function 'nothing'"),
        ("length()", "takes 1 argument"),
        ("length(a, b)", "takes 1 argument"),
        ("join('x')", "takes 2 argument"),
        ("merge()", "takes 1 argument"),
        ("a" * (EXPRESSION_CHARS_MAX + 1), "at most 1024"),
    ],
)
def test_an_expression_that_could_not_be_evaluated_is_refused(expression: str, words: str) -> None:
    assert words in refused(Expression, expression)


@pytest.mark.parametrize(
    "expression", ["a", "length(a)", "join('x', a)", "merge(a)", "merge(a, b, c)", "a" * 1024]
)
def test_an_expression_with_its_arguments_is_taken(expression: str) -> None:
    assert taken(Expression, expression) == expression


def test_an_odd_answer_extracts_nothing() -> None:
    assert search("length(a)", {"a": [1, 2]}) == 2
    assert search("length(a)", {"a": 7}) is None
    assert search("abs(a)", {"a": "x"}) is None
    assert search("a.b", None) is None


# URLs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1"])
def test_this_machine_is_known_by_its_spelling(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "localhost.example", "example.com", "10.0.0.1", "::2"])
def test_no_other_machine_is(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://a.example/x{?y}", "https://a.example"),
        ("https://a.example:443/", "https://a.example"),
        ("http://a.example:80", "http://a.example"),
        ("http://a.example:443", "http://a.example:443"),
        ("https://a.example:80", "https://a.example:80"),
        ("https://A.example:1/{x}/y", "https://a.example:1"),
        ("https://[::1]:8443/", "https://[::1]:8443"),
        ("ftp://a.example:21/", "ftp://a.example:21"),
        # What stands right behind the host is no part of it.
        ("https://a.example{/x}", "https://a.example"),
        ("https://a.example{?x,y}", "https://a.example"),
        ("http://a.example:8080{/x}{?y}", "http://a.example:8080"),
        ("https://[::1]:8443{?x}", "https://[::1]:8443"),
    ],
)
def test_an_origin_is_scheme_host_and_port(url: str, origin: str) -> None:
    assert origin_of(url) == origin


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "printable ASCII"),
        ("https://a.example/ x", "printable ASCII"),
        ("https://a.example/\n", "printable ASCII"),
        ("https://a.example/#x", "fragment"),
        ("https://a.example/{#x}", "fragment"),
        ("ftp://a.example/", "begins with https://"),
        ("a.example", "begins with https://"),
        ("https://{host}/", "the host is fixed"),
        ("https://a{x}.example/", "the host is fixed"),
        ("https://a.example{x}", "the host is fixed"),
        ("https://a.example{.x}", "the host is fixed"),
        ("https://user@a.example/", "no user name"),
        ("https:///x", "DNS name"),
        ("https://-a.example/", "DNS name"),
        ("https://a.example-/", "DNS name"),
        ("https://a_b.example/", "DNS name"),
        ("https://a.example:/", "DNS name"),
        ("https://a.example:123456/", "DNS name"),
        ("https://a.example:65536/", "not valid"),
        ("https://a.example:0/", "between 1 and 65535"),
        ("https://a.example/{x", "not closed"),
        ("https://a.example/x}", "not closed"),
        ("https://a.example/<x>", "percent-encode"),
        ("https://a.example/{+x}", "operator '+'"),
        ("https://a.example/{}", "not an expression"),
        ("https://a.example/{1x}", "not an expression"),
        ("https://a.example/{x:0}", "not an expression"),
        ("https://a.example/{x,}", "not an expression"),
        ("https://a.example/../x", "'.' or '..'"),
        ("https://a.example/%2E%2e/x", "'.' or '..'"),
        ("https://a.example/x/.", "'.' or '..'"),
        ("https://a.example/x/.{?y}", "'.' or '..'"),
        ("https://a.example/..{/y}", "'.' or '..'"),
        ("https://a.example/" + "a" * 2048, "at most 2048"),
    ],
)
def test_a_url_that_would_not_go_where_it_says_is_refused(url: str, words: str) -> None:
    assert words in refused(UrlTemplate, url)


@pytest.mark.parametrize(
    "url",
    [
        "https://a.example", "http://a.example:1/", "https://a.example:65535/x", "https://1.2.3.4/",
        "https://[::1]/", "https://a.example?x=1", "https://a.example{/x}", "https://a.example{?x}",
        "https://a.example/{x,y:3,z*}{;p}{&q}", "https://a.example/...", "https://a/x.y",
        "https://a.example/{x.y}", ("https://a.example/" + "a" * 2048)[:2048],
    ],
)  # fmt: skip
def test_a_url_with_a_fixed_host_is_taken(url: str) -> None:
    assert taken(UrlTemplate, url) == url


def test_variables_are_named_in_order_each_once() -> None:
    assert url_variables("https://a.example/{b}/{a}{?b,c}") == ("b", "a", "c")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x y", "x%20y"), (7, "7"), (0, "0"), (True, "true"), (False, "false"), (1.0, "1"),
        (1.5, "1.5"), (1e20, "1" + "0" * 20), (1e21, "1e%2B21"), (-2.0, "-2"), ("a/b", "a%2Fb"),
    ],
)  # fmt: skip
def test_a_value_is_written_as_in_canonical_json(value: Any, text: str) -> None:
    url = expand_url("https://a.example/{a.b}", {"a": {"b": value}}, "k")
    assert url == f"https://a.example/{text}"


@pytest.mark.parametrize(
    ("template", "url"),
    [
        ("https://a.example{/x}", "https://a.example/1"),
        ("https://a.example{?x}", "https://a.example?x=1"),
        ("https://a.example:8443{/x,x}{?x}", "https://a.example:8443/1/1?x=1"),
        ("https://a.example/a.{x}", "https://a.example/a.1"),
    ],
)
def test_an_expression_may_stand_right_behind_the_host(template: str, url: str) -> None:
    assert taken(UrlTemplate, template) == template
    assert expand_url(template, {"x": 1}, "k") == url


def test_key_and_operation_are_no_arguments() -> None:
    arguments = {"key": "mine", "operation": "own"}
    made = expand_url("https://a.example/{key}/{operation}", arguments, "k1", "op1")
    assert made == "https://a.example/k1/op1"
    # Without a reference the name is an argument like every other.
    made = expand_url("https://a.example/{key}/{operation}", arguments, "k1")
    assert made == "https://a.example/k1/own"


@pytest.mark.parametrize(
    ("template", "arguments", "code", "variable"),
    [
        ("/{x}", {}, "url_variable_missing", "x"),
        ("/{x}", {"x": None}, "url_variable_missing", "x"),
        ("/{x}", {"x": ""}, "url_variable_missing", "x"),
        ("/{x.y}", {"x": 7}, "url_variable_missing", "x.y"),
        ("/a{/x}{?y}", {"x": "", "y": "1"}, "url_variable_missing", "x"),
        ("/{x}", {"x": [1]}, "url_variable_not_scalar", "x"),
        ("/{x}", {"x": {}}, "url_variable_not_scalar", "x"),
        ("/{x}/y", {"x": "."}, "url_dot_segment", ""),
        ("/{x}/y", {"x": ".."}, "url_dot_segment", ""),
    ],
)
def test_arguments_that_make_no_url_are_named(
    template: str, arguments: dict[str, Any], code: str, variable: str
) -> None:
    with pytest.raises(UrlExpansionError) as problem:
        expand_url(f"https://a.example{template}", arguments, "k")
    assert (problem.value.code, problem.value.variable) == (code, variable)
    assert str(problem.value) == (f"{code} ({variable})" if variable else code)


def test_what_is_empty_in_the_query_is_sent_empty() -> None:
    assert expand_url("https://a.example/x{?y}", {"y": ""}, "k") == "https://a.example/x?y="
    made = expand_url("https://a.example/x?z=1{&y}", {"y": ""}, "k")
    assert made == "https://a.example/x?z=1&y="


# Schemas -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "odd"}, "/type breaks the keyword 'anyOf'"),
        ({"properties": {"a": {"minimum": "x"}}}, "/properties/a/minimum breaks"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "$schema is left out"),
        ({"properties": {"a": {"$id": "x"}}}, "leave $id out"),
        ({"pattern": "("}, "the regular expression '('"),
        ({"patternProperties": {"(": {}}}, "the regular expression '('"),
        (
            {"patternProperties": {"a": {}}, "unevaluatedProperties": False},
            "do not go together",
        ),
        ({"$ref": "https://example.com/x"}, "only local references"),
        ({"$dynamicRef": "other"}, "only local references"),
        ({"$ref": "#/$defs/a"}, "leads nowhere"),
        ({"$ref": "#/default", "default": {"type": "object"}}, "leads to no schema"),
        ({"$ref": "#"}, "leads back to itself"),
        ({"allOf": [{"$ref": "#"}]}, "leads back to itself"),
        ({"not": {"anyOf": [{"if": {"$ref": "#/not"}}]}}, "leads back to itself"),
        ({"dependentSchemas": {"a": {"$ref": "#"}}}, "leads back to itself"),
        (
            {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
            "leads back to itself",
        ),
    ],
)
def test_a_schema_that_could_not_be_checked_is_refused(schema: Any, words: str) -> None:
    assert words in refused(JsonSchema, schema)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"$schema": "https://json-schema.org/draft/2020-12/schema"},
        {"$schema": "https://json-schema.org/draft/2020-12/schema#"},
        {"properties": {"a": {"$ref": "#"}}},  # it goes into the value
        {"items": {"$ref": "#"}, "additionalProperties": {"$ref": "#"}},
        {"$defs": {"t": True}, "$ref": "#/$defs/t"},
        {**DEFINED, "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]},
        {"patternProperties": {"^a": {}}, "additionalProperties": False},
        {"unevaluatedProperties": False},
    ],
)
def test_a_schema_that_ends_is_taken(schema: Any) -> None:
    assert taken(JsonSchema, schema) == schema


def test_schemas_inside_are_found_and_data_is_none() -> None:
    schema = {
        "properties": {"a": {"const": {"properties": {"no": {}}}, "items": {"title": "i"}}},
        "anyOf": [{"title": "o"}, True],
        "enum": [{"properties": {"no": {}}}],
    }
    parts = list(schema_parts(schema))
    assert [part.get("title") for part in parts].count(None) == 2
    assert {part["title"] for part in parts if "title" in part} == {"i", "o"}
    assert schema_names(schema) == {"a"}


_OPEN: dict[str, Any] = {"type": "object"}
_CLOSED = {"properties": {"a": {"properties": {"b": {}}}}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "tokens", "reaches"),
    [
        (_OPEN, ("x", "y"), True),
        (_OPEN, (), True),
        (_CLOSED, ("a",), True),
        (_CLOSED, ("a", "b"), True),
        (_CLOSED, ("a", "c"), False),
        (_CLOSED, ("b",), False),
        (_CLOSED, (), True),
        ({"properties": {"a": {}}}, ("b",), False),
        ({"properties": {"a": True}}, ("a", "b", "c"), True),
        ({"properties": {"a": False}}, ("a", "b"), False),
        ({"additionalProperties": False}, ("a",), False),
        ({"additionalProperties": {"properties": {"b": {}}}}, ("a", "b"), True),
        ({"additionalProperties": {"properties": {"b": {}}}}, ("a", "c"), False),
        ({"properties": {"a": {}}, "additionalProperties": _CLOSED}, ("z", "a"), True),
        ({"properties": {"a": _CLOSED}, "additionalProperties": _OPEN}, ("a", "z"), False),
        ({"patternProperties": {"^x": _CLOSED}}, ("xy", "a"), True),
        ({"patternProperties": {"^x": _CLOSED}}, ("xy", "z"), False),
        ({"patternProperties": {"^x": _CLOSED}}, ("y",), False),
        ({"patternProperties": {"^x": _CLOSED}}, ("*", "a"), True),
        ({"properties": {"p": _CLOSED}}, ("*", "a"), True),
        ({"properties": {"p": _CLOSED}}, ("*", "z"), False),
        ({"items": _CLOSED}, ("0", "a"), True),
        ({"items": _CLOSED}, ("*", "a"), True),
        ({"items": _CLOSED}, ("*", "z"), False),
        ({"items": _CLOSED}, ("x", "a"), False),
        ({"prefixItems": [_CLOSED]}, ("7", "a"), True),
        ({"prefixItems": [_CLOSED]}, ("*", "z"), False),
        ({"allOf": [_OPEN, _CLOSED]}, ("a",), True),
        ({"allOf": [_OPEN, _CLOSED]}, ("z",), False),
        ({"anyOf": [_CLOSED]}, ("a", "b"), True),
        ({"oneOf": [_CLOSED]}, ("z",), False),
        ({"if": {}, "then": _CLOSED}, ("a", "b"), True),
        ({"if": {}, "else": _CLOSED}, ("z",), False),
        ({**DEFINED, "$ref": "#/$defs/a"}, ("x",), True),
        ({**DEFINED, "$ref": "#/$defs/a"}, ("y",), False),
        ({"$defs": {"a": {"$anchor": "n"}}, "$ref": "#n"}, ("y",), True),
        ({"$ref": "#", "properties": {"a": {"$ref": "#"}}}, ("a", "a", "a"), True),
        ({"$ref": "#", "properties": {"a": {"$ref": "#"}}}, ("a", "a", "b"), False),
    ],
)
def test_a_schema_reaches_what_it_declares_and_an_open_one_everything(
    schema: dict[str, Any], tokens: tuple[str, ...], reaches: bool
) -> None:
    assert schema_reaches(schema, tokens) is reaches
