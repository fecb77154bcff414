"""What a reader of a refused document is told: each place and each sentence, to the letter."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from effect_contracts.document_text import json_text, problems_of, read_yaml

from .documents import IDEMPOTENT, problems_in
from .test_document_text import nested, refused

TOO_DEEP = "nested deeper than 64 levels; flatten it"


# Depth --------------------------------------------------------------------------------------------


def test_the_name_of_a_member_is_as_deep_as_its_value() -> None:
    """So that the first thing that lies too deep is told."""
    assert read_yaml(nested(64, mapping=True))
    assert refused(nested(65, mapping=True)) == f"line 1, column {4 * 64 + 2}: {TOO_DEEP}"


@pytest.mark.parametrize("around", [0, 1, 2, 3, 30, 31])
def test_the_levels_of_a_name_are_counted_from_those_of_its_object(around: int) -> None:
    """A name that is a list is refused, and one that lies too deep as such."""

    def named(levels: int) -> str:
        return "[" * around + "{? " + nested(levels) + " : 1}" + "]" * around

    # The lists around, the object, and the name.
    deepest = 64 - around - 1
    begin = f"line 1, column {around + 4}: "
    assert refused(named(deepest)) == f"{begin}a member name is a text; put it in quotes"
    assert refused(named(deepest + 1)) == f"line 1, column {around + 5 + deepest}: {TOO_DEEP}"


# Sentences ----------------------------------------------------------------------------------------


class Section(BaseModel):
    """A part of a document."""

    model_config = ConfigDict(extra="forbid")

    few: Annotated[tuple[int, ...], Field(min_length=1)] = (1,)
    verb: Literal["should", "shoulder", "must"] = "must"
    triple: tuple[int, int, int] = (1, 2, 3)
    either: list[int] | dict[str, int] = []
    last: int = 0


NAMES = (
    "approval_valid_seconds", "attempt_deadline_seconds", "attempts_max", "certificate",
    "queue_url", "secret",
)  # fmt: skip


def told(value: dict[str, Any]) -> dict[str, str]:
    """The problems of a section: pointer to sentence, in their order."""
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Section).validate_python(value)
    return _problems(caught.value, value)


def _problems(error: ValidationError, value: Any) -> dict[str, str]:
    problems = problems_of(error, value, NAMES).extras["problems"]
    assert isinstance(problems, list)
    return {problem["field"]: problem["message"] for problem in problems}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        # Four letters that only one name begins with name it, though it does not look alike,
        # or another looks more alike.
        ("appr", "did you mean 'approval_valid_seconds'?"),
        ("appro", "did you mean 'approval_valid_seconds'?"),
        ("cert", "did you mean 'certificate'?"),
        # Fewer do not.
        ("app", "remove it"), ("ap", "remove it"), ("q", "remove it"),
        # Of two names that begin so, the one that looks more alike.
        ("attempt", "did you mean 'attempts_max'?"),
        ("attempt_dead_second", "did you mean 'attempt_deadline_seconds'?"),
        ("secrets", "did you mean 'secret'?"),
    ],
)  # fmt: skip
def test_a_hint_names_the_field_that_was_meant(name: str, hint: str) -> None:
    assert told({name: 1}) == {f"/{name}": f"unknown field; {hint}"}


@pytest.mark.parametrize(
    ("value", "problems"),
    [
        # An item that is refused is not missed as well, and nothing behind it is passed over.
        ({"few": ["x"], "last": "y"}, ["/few/0", "/last"]),
        ({"few": [], "last": "y"}, ["/few", "/last"]),
        # What a list lacks at its end, and what stands between a member and its items.
        ({"triple": [1]}, ["/triple/1", "/triple/2"]),
        ({"triple": [1, 2]}, ["/triple/2"]),
        ({"either": ["x"]}, ["/either/0", "/either"]),
        ({"either": {"a": "x"}}, ["/either", "/either/a"]),
        ({"either": 1}, ["/either"]),
    ],
)
def test_each_problem_is_told_at_its_place_in_the_document(
    value: dict[str, Any], problems: list[str]
) -> None:
    assert list(told(value)) == problems


def test_a_choice_is_listed_as_the_document_has_to_spell_it() -> None:
    assert told({"verb": "x"}) == {"/verb": "must be 'should', 'shoulder' or 'must'"}


def test_a_sentence_of_ours_is_told_as_it_stands() -> None:
    place = "/adapter/url"
    assert problems_in(IDEMPOTENT, (place, "ftp://api.example.com")) == {
        place: "the URL begins with https:// (or http://) and a fixed host"
    }


@pytest.mark.parametrize("kind", ["a_kind", "too_shorter", "zone"])
def test_a_kind_of_problem_that_has_no_sentence_here_is_told_in_its_own(kind: str) -> None:
    """At a place below which something else was refused too."""
    error = ValidationError.from_exception_data(
        "Section",
        [
            InitErrorDetails(
                type=PydanticCustomError(kind, "Input should be another"), loc=("few",), input=1
            ),
            InitErrorDetails(type="int_type", loc=("few", 0), input="x"),
        ],
    )
    assert _problems(error, {"few": ["x"]}) == {
        "/few": "must be another",
        "/few/0": "must be a whole number, without quotes",
    }


# The text for pydantic ----------------------------------------------------------------------------


def test_letters_are_handed_on_as_they_are() -> None:
    assert json_text({"é": "…😀"}) == '{"é": "…😀"}'


@pytest.mark.parametrize("number", ["1e999", "-1e999"])
def test_a_number_that_is_none_is_not_handed_on(number: str) -> None:
    """The reader makes an infinity of it, which is no JSON."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text(read_yaml(f"a: {number}"))
