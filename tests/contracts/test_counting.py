"""Numbers agree with what they count."""

from __future__ import annotations

import pytest

from effect_contracts.counting import counted, span


@pytest.mark.parametrize(
    ("number", "told"),
    [(0, "0 requests"), (1, "1 request"), (2, "2 requests"), (21, "21 requests")],
)
def test_one_is_told_from_several(number: int, told: str) -> None:
    assert counted(number, "request") == told


def test_a_plural_of_its_own_is_taken() -> None:
    assert [counted(n, "entry", "entries") for n in (1, 3)] == ["1 entry", "3 entries"]


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (-1.0, "0 s"), (0.0, "0 s"), (0.6, "1 s"), (119.0, "119 s"), (120.0, "2 min"),
        (7199.0, "120 min"), (7200.0, "2 h"), (172_799.0, "48 h"), (172_800.0, "2 d"),
    ],
)  # fmt: skip
def test_a_span_is_told_in_a_unit_of_which_there_are_two(seconds: float, told: str) -> None:
    assert span(seconds) == told
