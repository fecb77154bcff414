"""A key that a machine has made has letters and digits that take turns; a name has none of this."""

from __future__ import annotations

import pytest

from effect_contracts.key_smells import Smell, key_smells

from .test_key_smells_edges import _kinds


@pytest.mark.parametrize(
    ("key", "smells"),
    [
        ("4711471147114711", ()),
        ("deadbeefdeadbeef", ()),
        ("deadbeefdeadbee1", (Smell.RANDOM,)),
    ],
)
def test_a_digest_has_digits_and_letters(key: str, smells: tuple[Smell, ...]) -> None:
    assert key_smells(key) == smells


def test_turns_are_counted_between_neighbours() -> None:
    """12 changes among the 25 neighbours of 26 signs are enough, among 26 they are not."""
    assert key_smells(_kinds([2] * 13)) == (Smell.RANDOM,)
    assert key_smells(_kinds([2] * 12 + [3])) == ()
