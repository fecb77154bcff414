"""How many signs that are no letters or digits a token has at most: one in eight, and no more."""

from __future__ import annotations

import pytest

from effect_contracts.key_smells import Smell, key_smells


@pytest.mark.parametrize(
    ("size", "places", "token"),
    [
        (24, {5, 11, 17}, True),
        (23, {5, 11, 17}, False),
        (22, {5, 11, 17}, False),
        (21, {5, 11}, True),
        (32, {5, 11, 17, 23}, True),
        (31, {5, 11, 17, 23}, False),
    ],
)
def test_a_token_has_one_sign_in_eight_at_most(size: int, places: set[int], token: bool) -> None:
    key = "".join("_" if place in places else "zQ3"[place % 3] for place in range(size))
    assert key_smells(key) == ((Smell.RANDOM,) if token else ())
