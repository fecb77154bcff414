"""How the text of a contract document is read: JSON types only, to a bound, and each refusal with
its place."""

from __future__ import annotations

from typing import Any

import pytest

from effect_contracts.canonical import BODY_BYTES_MAX
from effect_contracts.document_text import NODES_MAX, PROBLEMS_MAX, read_yaml
from effect_contracts.errors import ContractInvalid

from .documents import IDEMPOTENT, problems_in


def refused(text: str) -> str:
    """The one problem of a text that is no JSON document; it is one of the whole document."""
    with pytest.raises(ContractInvalid) as refusal:
        read_yaml(text)
    problems = refusal.value.extras["problems"]
    assert isinstance(problems, list)
    assert [problem["field"] for problem in problems] == [""]
    message: str = problems[0]["message"]
    return message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # Nothing, truth and numbers as JSON and the core schema of YAML 1.2 spell them.
        ("", None), ("~", None), ("null", None), ("Null", "Null"), ("none", "none"),
        ("true", True), ("false", False), ("True", "True"), ("tru", "tru"), ("g", "g"), ("u", "u"),
        ("0", 0), ("-0", 0), ("7", 7), ("-5", -5), ("10", 10), ("01", "01"), ("+1", "+1"),
        ("1.5", 1.5), ("-0.25", -0.25), ("1e3", 1000.0), ("1E+3", 1000.0), ("1.5e-1", 0.15),
        (".5", ".5"), ("5.", "5."), ("1.5.2", "1.5.2"),
        ("9007199254740991", 9007199254740991), ("-9007199254740991", -9007199254740991),
        # What looks like them and is a text.
        ("2026-11-29x", "2026-11-29x"), ("26-11-29", "26-11-29"), ("'2026-11-29'", "2026-11-29"),
        ("'5'", "5"), ('"true"', "true"), ("'~'", "~"), ("''", ""),
        ("|\n  5", "5"), (">\n  null\n", "null\n"),
        # Tags that say what is there anyway.
        ("!!str 5", "5"), ("!!str null", "null"), ("! 5", "5"), ("! [5]", [5]),
        ("!!seq [1]", [1]), ("!!map {b: 1}", {"b": 1}), ("! {b: 1}", {"b": 1}),
        ("[]", []), ("{}", {}), ("[[], {b: [1, 2]}]", [[], {"b": [1, 2]}]),
    ],
)  # fmt: skip
def test_a_plain_scalar_is_of_the_type_that_json_gives_it(text: str, value: Any) -> None:
    read = read_yaml(f"a: {text}")
    assert read == {"a": value}
    assert type(read["a"]) is type(value)


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("!!int 5", 4, "tags are not read"), ("!foo x", 4, "tags are not read"),
        ("!!seq {b: 1}", 4, "tags are not read"), ("!!map [1]", 4, "tags are not read"),
        ("!!str [1]", 4, "tags are not read"), ("!!null ''", 4, "tags are not read"),
        ("[x, !!a y]", 8, "tags are not read"),
        ("123456789012345678", 4, "beyond"), ("-12345678901234567", 4, "beyond"),
        (".inf", 4, "infinities"), ("-.INF", 4, "infinities"), ("+.Inf", 4, "infinities"),
        (".nan", 4, "infinities"), ("[.NaN]", 5, "infinities"),
        ("2026-11-29", 4, "a date"), ("2026-1-1", 4, "a date"), ("2026-11-29t10:00", 4, "a date"),
        ("2026-11-29 10:00", 4, "a date"),
        ("*nothing", 4, "names no finished anchor"), ("&x [*x]", 8, "names no finished anchor"),
        ("{[]: 1}", 5, "a member name is a text"), ("{1: 1}", 5, "a member name is a text"),
        ("{<<: 1}", 5, "merge keys"), ("{b: 1, b: 2}", 11, "is there twice"),
        ("{b: 1, 'b': 2}", 11, "is there twice"),
        ("@x", 4, "not valid YAML"), ("%x", 4, "not valid YAML"),
    ],
)  # fmt: skip
def test_a_refusal_names_line_and_column(text: str, column: int, words: str) -> None:
    message = refused(f"first: 1\na: {text}")
    assert message.startswith(f"line 2, column {column}: ")
    assert words in message


def test_one_document_is_read_whatever_stands_around_it() -> None:
    assert read_yaml("%YAML 1.2\n---\na: 1\n...\n# end\n") == {"a": 1}
    assert read_yaml("# begin\n\na: 1\n") == {"a": 1}
    message = refused("a: 1\n---\nb: 1\n")
    assert message == "line 2, column 1: a second document begins; put each contract in a file"
    assert refused("") == "the document is empty; docs/contracts.md shows how one begins"


def test_a_quoted_name_is_a_name_whatever_it_would_mean_without_quotes() -> None:
    assert read_yaml("'<<': 1\n\"5\": 2\n? a\n: 3\n") == {"<<": 1, "5": 2, "a": 3}


def test_an_anchor_may_stand_at_any_value_and_is_read_where_it_is_named() -> None:
    assert read_yaml("a: &x 1\nb: *x\n") == {"a": 1, "b": 1}
    assert read_yaml("&x a: &y [1]\nb: *x\nc: [*y, *y]\n") == {"a": [1], "b": "a", "c": [[1], [1]]}
    assert read_yaml("a: &x 1\nb: &x 2\nc: *x\n") == {"a": 1, "b": 2, "c": 2}


def test_a_document_has_256_kib_at_most_however_many_letters_these_are() -> None:
    assert BODY_BYTES_MAX == 256 * 1024
    for letter, size in (("x", 1), ("é", 2)):
        longest = f"a: {letter * ((BODY_BYTES_MAX - 4) // size)}"
        longest += "#" * (BODY_BYTES_MAX - len(longest.encode()))
        assert len(read_yaml(longest)["a"]) > 100_000
        assert "larger than 262144 bytes" in refused(longest + "#")


def nested(levels: int, *, mapping: bool = False) -> str:
    """A value of so many levels."""
    return "{a: " * levels + "1" + "}" * levels if mapping else "[" * levels + "1" + "]" * levels


@pytest.mark.parametrize("mapping", [False, True])
def test_a_value_has_64_levels_at_most(mapping: bool) -> None:
    assert read_yaml(nested(64, mapping=mapping))
    assert "nested deeper than 64 levels" in refused(nested(65, mapping=mapping))


@pytest.mark.parametrize("mapping", [False, True])
@pytest.mark.parametrize("around", [0, 1, 10])
def test_an_alias_is_as_deep_as_what_it_names(around: int, mapping: bool) -> None:
    def aliased(levels: int) -> str:
        anchored = nested(levels, mapping=mapping)
        # The deepest part is neither the first nor the last of its neighbours.
        shallow = "{s: 1}" if mapping else "[1]"
        neighbours = (
            f"{{b: {shallow}, c: {anchored}, d: {shallow}}}"
            if mapping
            else f"[{shallow}, {anchored}, {shallow}]"
        )
        return f"a: &x {neighbours}\nb: " + "[" * around + "*x" + "]" * around

    # The document is one level, and so is what holds the neighbours.
    assert read_yaml(aliased(62 - around))
    message = refused(aliased(63 - around))
    assert "nested deeper than 64 levels" in message
    if around:
        assert message.startswith(f"line 2, column {4 + around}: ")


def test_a_scalar_that_is_named_has_no_levels() -> None:
    assert read_yaml("a: &x 1\nb: " + "[" * 63 + "*x" + "]" * 63)
    assert "nested deeper" in refused("a: &x 1\nb: " + "[" * 64 + "*x" + "]" * 64)


def test_a_document_has_20000_values_at_most() -> None:
    assert NODES_MAX == 20_000
    # The list, and what it holds.
    assert len(read_yaml("[" + "1," * 19_999 + "]")) == 19_999
    message = refused("[" + "1," * 20_000 + "]")
    assert message.startswith("line 1, column 40000: the document has more than 20000 values")


@pytest.mark.parametrize(
    ("anchored", "values"), [("1", 1), ("[1]", 2), ("[1, [2, 3]]", 5), ("{b: 1}", 3)]
)
def test_an_alias_counts_as_many_values_as_it_names(anchored: str, values: int) -> None:
    # The outermost list, the anchored one, and fill.
    times = 1000
    fill = NODES_MAX - 1 - values - times * values

    def text(more: int) -> str:
        return f"[&x {anchored}, " + "*x, " * times + "1, " * (fill + more) + "]"

    assert len(read_yaml(text(0))) == 1 + times + fill
    assert "more than 20000 values" in refused(text(1))
    assert "more than 20000 values" in refused(text(0)[:-1] + "*x]")


@pytest.mark.parametrize("surplus", [0, 1, 30])
def test_so_many_problems_are_listed_and_no_more(surplus: int) -> None:
    """The first of a document that is wrong everywhere, of fields and of rules alike."""
    assert PROBLEMS_MAX == 50
    unknown = [(f"/adapter/nonsense{n}", 1) for n in range(50 + surplus)]
    assert len(problems_in(IDEMPOTENT, *unknown)) == 50
    pointers = [f"/no/{n}" for n in range(50 + surplus)]
    assert len(problems_in(IDEMPOTENT, ("/sensitive", pointers))) == 50
