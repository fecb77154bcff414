"""Numbers agree with what they count."""

from __future__ import annotations

import pytest

from effect_contracts.counting import counted


@pytest.mark.parametrize(
    ("number", "told"),
    [(0, "0 requests"), (1, "1 request"), (2, "2 requests"), (21, "21 requests")],
)
def test_one_is_told_from_several(number: int, told: str) -> None:
    assert counted(number, "request") == told


def test_a_plural_of_its_own_is_taken() -> None:
    assert [counted(n, "entry", "entries") for n in (1, 3)] == ["1 entry", "3 entries"]
