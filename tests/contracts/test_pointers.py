"""Places in errors are bounded, and printable, whatever names a caller chose."""

from __future__ import annotations

import pytest

from effect_contracts.pointers import POINTER_CHARS_MAX, json_pointer


def test_a_pointer_has_512_characters_at_most() -> None:
    assert POINTER_CHARS_MAX == 512
    assert json_pointer(["a" * 511]) == "/" + "a" * 511
    assert json_pointer(["a" * 512]) == ""
    assert json_pointer(["a" * 509, "b"]) == "/" + "a" * 509 + "/b"
    # Signs count as they are written.
    assert json_pointer(["a" * 509, "/"]) == "/" + "a" * 509
    # After a name that is left out nothing follows: it would be another place.
    assert json_pointer(["a", "b" * 512, "c"]) == "/a"


@pytest.mark.parametrize("name", ["\n", "\x00", "\ud800", "a\u202eb"])
def test_nothing_follows_a_name_that_is_not_printable(name: str) -> None:
    assert json_pointer([name, "a"]) == ""
    assert json_pointer(["a", name, "b"]) == "/a"


def test_names_and_indices_are_written_as_the_standard_has_them() -> None:
    assert json_pointer([]) == ""
    assert json_pointer(["", 0, "~1", "a/b~"]) == "//0/~01/a~1b~0"
