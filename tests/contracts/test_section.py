"""A part of a contract is strict and frozen, and what is absent stays absent when it is stored."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import Field, ValidationError

from effect_contracts.section import Section


class Example(Section):
    needed: int | None
    number: int = 0
    text: str = ""
    maybe: str | None = None
    maybe_not: str | None = "x"
    many: tuple[int, ...] = ()
    more: tuple[int, ...] = (1,)
    named: dict[str, int] = Field(default_factory=dict)
    filled: dict[str, int] = Field(default_factory=lambda: {"a": 1})
    aliased: str | None = Field(default=None, alias="other")
    written: str | None = Field(default=None, serialization_alias="written-as")


def stored(**members: Any) -> dict[str, Any]:
    return Example(**{"needed": 1, **members}).model_dump(by_alias=True)


PLAIN = {
    "needed": 1, "number": 0, "text": "", "maybe_not": "x", "more": (1,), "filled": {"a": 1},
}  # fmt: skip


def test_what_is_empty_and_empty_by_default_is_not_stored() -> None:
    assert stored() == PLAIN
    assert stored(maybe=None, many=(), named={}, other=None, written=None) == PLAIN


def test_a_default_that_says_something_is_stored() -> None:
    """A document keeps the meaning that it had, if a later release has another default."""
    assert stored(number=0, text="", maybe_not="x") == PLAIN


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"needed": None}, {"needed": None}),
        ({"maybe": "y"}, {"maybe": "y"}),
        ({"maybe": ""}, {"maybe": ""}),
        ({"maybe_not": None}, {"maybe_not": None}),
        ({"many": (2,)}, {"many": (2,)}),
        ({"more": ()}, {"more": ()}),
        ({"named": {"a": 1}}, {"named": {"a": 1}}),
        ({"filled": {}}, {"filled": {}}),
        ({"other": "z"}, {"other": "z"}),
        ({"written": "z"}, {"written-as": "z"}),
    ],
)
def test_what_is_given_or_empties_a_default_is_stored(
    given: dict[str, Any], kept: dict[str, Any]
) -> None:
    assert stored(**given) == {**PLAIN, **kept}


@pytest.mark.parametrize(
    "given", [{"number": "1"}, {"number": True}, {"number": 1.0}, {"text": 1}, {"unknown": 1}]
)
def test_another_type_or_an_unknown_field_is_refused_without_its_value(
    given: dict[str, Any],
) -> None:
    given = {name: "hunter2" if value == "1" else value for name, value in given.items()}
    with pytest.raises(ValidationError) as refused:
        Example(needed=1, **given)
    assert "hunter2" not in str(refused.value)
    assert "input_value" not in str(refused.value)


def test_a_part_cannot_be_changed_once_it_is_read() -> None:
    part: Any = Example(needed=1)
    with pytest.raises(ValidationError, match="frozen"):
        part.needed = 2
