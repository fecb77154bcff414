"""What is told of arguments that do not fit, and of which: each bound of it from both sides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from effect_contracts.document import ContractDocument, contract_json_schema, field_names
from effect_contracts.errors import InvalidArguments

from .documents import IDEMPOTENT, document


def refusal_of(schema: dict[str, Any], value: Any) -> InvalidArguments:
    """What is told of one argument `a` that its schema refuses."""
    whole = {"type": "object", "properties": {"a": schema}}
    with pytest.raises(InvalidArguments) as refused:
        document(IDEMPOTENT, ("/arguments", whole)).check_arguments({"a": value})
    return refused.value


@pytest.mark.parametrize(
    ("schema", "value", "keyword", "expected"),
    [
        # Types and numbers of the schema are told.
        ({"type": "integer"}, "x", "type", "integer"),
        ({"type": ["integer", "null"]}, "x", "type", "integer or null"),
        ({"minimum": 5}, 4, "minimum", "5"),
        ({"exclusiveMaximum": 0.5}, 1, "exclusiveMaximum", "0.5"),
        ({"maxLength": 2}, "abc", "maxLength", "2"),
        # Its texts, lists and truths are not: of the keywords before and behind `type`.
        ({"enum": ["b"]}, "x", "enum", None),
        ({"const": "b"}, "x", "const", None),
        ({"pattern": "^b$"}, "x", "pattern", None),
        ({"required": ["b"]}, {}, "required", None),
        ({"uniqueItems": True}, [1, 1], "uniqueItems", None),
    ],
)
def test_a_type_or_a_number_that_is_asked_for_is_told_and_no_text(
    schema: dict[str, Any], value: Any, keyword: str, expected: str | None
) -> None:
    refusal = refusal_of(schema, value)
    assert refusal.extras["keyword"] == keyword
    assert refusal.extras.get("expected") == expected
    if expected is not None:
        assert refusal.detail == (
            "The arguments break the contract's schema by its keyword "
            f"'{keyword}', which asks for {expected}."
        )


@pytest.mark.parametrize(("wrong", "told"), [(19, "/a/100"), (20, "/a/100"), (21, "/a/80")])
def test_of_twenty_mismatches_the_first_by_its_place_is_told(wrong: int, told: str) -> None:
    """The place is compared as a text, and the last element is the first of these by it."""
    elements = [1] * (101 - wrong) + ["x"] * wrong
    assert refusal_of({"items": {"type": "integer"}}, elements).field == told


@pytest.mark.parametrize("name", ["!", "$ref", "(a)", "**", "+", "a"])
def test_a_forbidden_member_is_that_name_and_not_every_one(name: str) -> None:
    """Whether it sorts before the star, which stands for each, or behind it."""
    forbidding = document(
        IDEMPOTENT, ("/arguments", {"type": "object"}), ("/forbidden", [f"/{name}"])
    )
    forbidding.check_arguments({"other": 1})
    with pytest.raises(InvalidArguments) as refused:
        forbidding.check_arguments({"other": 1, name: 2})
    assert refused.value.field == f"/{name}"


def test_every_member_of_every_section_may_be_hinted_at() -> None:
    # Without its memory, which another test may have filled.
    names = field_names.__wrapped__()
    assert names == tuple(sorted(set(_declared(contract_json_schema()))))
    assert {"tool", "attempts_max", "queue_url", "poll_url", "horizon_seconds"} <= set(names)
    assert set(ContractDocument.model_fields) <= set(names)


def _declared(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        yield from part.get("properties", {})
        part = list(part.values())
    if isinstance(part, list):
        for below in part:
            yield from _declared(below)
