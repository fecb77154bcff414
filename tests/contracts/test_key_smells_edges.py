"""Where chance begins: how long, how mixed, and how many signs a part of a key may have."""

from __future__ import annotations

import pytest

from effect_contracts.key_smells import Smell, key_shape, key_smells

HEX = "12ab34cd" * 20
RANDOM = (Smell.RANDOM,)
POSITION = (Smell.POSITION,)


@pytest.mark.parametrize("size", [32, 40, 56, 64, 96, 128])
def test_a_digest_has_the_length_of_one(size: int) -> None:
    """A hash of the business identity is a good key, if it says of what."""
    assert key_smells(f"refund:{HEX[:size]}") == ()
    for other in (size - 1, size + 1):
        assert key_smells(f"refund:{HEX[:other]}") == RANDOM


@pytest.mark.parametrize(
    ("run", "smells"),
    [
        ("ab1cdefabcdefa2b", RANDOM),  # 16 hex digits, the numbers apart
        ("abcdefabcdefab12", ()),  # together
        ("ab1cdefabcdefa2", ()),  # 15 are too few to tell
        ("abcXYZ12abcXYZ34abcz", RANDOM),  # 20 letters and digits that take turns
        ("abcXYZ12abcXYZ34abz", ()),
        ("abcXYZabcXYZ34abczzz", ()),
    ],
)
def test_a_part_that_a_machine_has_made_takes_turns(run: str, smells: tuple[Smell, ...]) -> None:
    assert key_smells(f"charge-{run}") == smells


def _kinds(lengths: list[int]) -> str:
    """Lower and upper case in turns, and one number: so many neighbours of different kinds."""
    signs = ["z", "Q"] * len(lengths)
    parts = [signs[place] * length for place, length in enumerate(lengths)]
    parts[1] = "7" * lengths[1]
    return "".join(parts)


def test_a_token_changes_its_kind_about_every_second_sign() -> None:
    assert key_smells(_kinds([2] * 13)) == RANDOM  # 12 changes in 26 signs
    assert key_smells(_kinds([2] * 11 + [4])) == ()  # 11


def test_a_token_has_twenty_signs_and_all_three_kinds() -> None:
    assert key_smells("zQ3" * 6 + "zQ") == RANDOM
    assert key_smells("zQ3" * 6 + "z") == ()
    assert key_smells("zQ" * 15) == ()


def test_a_token_has_few_signs_that_are_no_letters_or_digits() -> None:
    assert key_smells("zQ3zQ3z-Q3zQ3zQ-3zQ3zQ3_") == RANDOM  # an eighth
    assert key_smells("zQ3zQ-z-Q3zQ3zQ-3zQ3zQ3_") == ()


def test_the_first_places_of_a_list_are_places_and_objects_have_higher_numbers() -> None:
    for key in ("0", "7", "999", "charge-0", "charge-1", "send[0]", "refund_1"):
        assert key_smells(key) == POSITION
    for key in ("1000", "charge-2", "charge-10", "charge.1", "send[2]"):
        assert key_smells(key) == ()


def test_a_key_may_smell_of_two_things() -> None:
    assert key_smells("call_9aXbQ3kLmN0pRs5TuVwXyZ12:1732900000") == (Smell.TOOL_CALL, Smell.TIME)


@pytest.mark.parametrize(
    ("key", "shape"),
    [
        ("a:b", "<word>:<word>"),
        ("Step-3:TRY", "step-<n>:try"),
        ("é", "<other>"),
        ("x\x7fy", "<word><other><word>"),
        ("a%2Fb", "<word><other><word>"),
        ("01ARZ3NDEKTSV4RRFFQ69G5FAV", "<ulid>"),
        ("018f2b1c-7b2a-7c3d-9a0c-0305e82c3301:x", "<uuid7>:<word>"),
        ("3f2504e04f8941d39a0c0305e82c3301", "<uuid4>"),
        ("order:1732900000:2026-11-29T10:00:00Z", "<word>:<time>:<time>"),
        ("a-12ab34cd12ab34cd", "<word>-<hex16>"),
        ("a-abcXYZ12abcXYZ34abcz", "<word>-<text20>"),
        ("a-12ab", "<word>-<n><word>"),
    ],
)
def test_a_shape_names_each_part_and_keeps_the_signs_between_them(key: str, shape: str) -> None:
    assert key_shape(key) == shape
