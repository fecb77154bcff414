"""What is no YAML is named where the parser has met it, with or without what it was reading."""

from __future__ import annotations

import pytest

from effect_contracts.document_text import read_yaml

from .test_document_text import refused


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: b: c", "line 1, column 5: "),
        ("a: 'x", "line 1, column 6: "),
        ("- a\nb: c", "line 2, column 1: "),
        ("a: &x *y", "line 1, column 7: "),
    ],
)
def test_what_is_no_yaml_is_named_where_it_ends_to_be(text: str, place: str) -> None:
    assert refused(text).startswith(f"{place}not valid YAML: ")


@pytest.mark.parametrize("empty", ["[]", "{}"])
def test_what_holds_nothing_is_one_level(empty: str) -> None:
    def aliased(around: int) -> str:
        return f"a: &x {empty}\nb: " + "[" * around + "*x" + "]" * around

    assert read_yaml(aliased(62))
    assert "nested deeper than 64 levels" in refused(aliased(63))
