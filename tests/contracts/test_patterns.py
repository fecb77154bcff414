"""Regular expressions of contracts: linear in the text, one meaning, or refused with a sentence."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effect_contracts.patterns import PATTERN_WEIGHT_MAX, linear_pattern


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|aa)+$", "(x+x+)+y", "^(.*a){12}$"])
def test_what_makes_a_backtracking_engine_hang_ends(pattern: str) -> None:
    began = time.process_time()
    assert not linear_pattern(pattern).found_in("a" * 50_000 + "!")
    assert time.process_time() - began < 30


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(?=a)b", "look-around"),
        ("(?<!a)b", "look-around"),
        (r"(a)\1", "backreferences"),
        ("(", "unclosed group"),
        ("x{", "unclosed counted repetition"),
        ("[", "unclosed character class"),
        ("[]", "unclosed character class"),
        ("[]a]", r"write \] for the bracket"),
        ("[^]a]", r"write \] for the bracket"),
        ("[a[b]]", r"write \[ for the bracket"),
        ("[[:alpha:]]", r"write \[ for the bracket"),
        ("[a-z&&[^b]]", "engines read them differently"),
        ("[a--b]", "engines read them differently"),
        (r"\<word\>", "not of ECMA-262"),
        (r"\Aab\z", "not of ECMA-262"),
        ("(?x) a # b", "only i, m and s"),
        ("(?-u)a", "only i, m and s"),
        ("(?:a{1000}){1000}", "repeats too much"),
        ("(?:(?:a{50}){50}){50}", "repeats too much"),
        (".{1,5000}", "repeats too much"),
        ("a" * 2000, "at most 1024 characters"),
    ],
)
def test_what_is_not_linear_or_means_two_things_is_refused(pattern: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        linear_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "found", "missed"),
    [
        ("^[a-z]{3}$", "eur", "eur\n"),
        ("^[^@ ]+@[^@ ]+$", "a@example.com", "a@b@c"),
        (r"^\p{L}+$", "Zoë", "a1"),
        ("^(?i:abc)$", "ABC", "abd"),
        (r"^[\w.-]+\/\d{2,4}$", "a.b/12", "a/1"),
        (r"\bcat\b", "a cat.", "concat"),
        ("", "", None),
    ],
)
def test_the_common_part_of_the_dialects_is_taken(
    pattern: str, found: str, missed: str | None
) -> None:
    compiled = linear_pattern(pattern)
    assert compiled == pattern
    assert compiled.found_in(found)
    assert missed is None or not compiled.found_in(missed)


@pytest.mark.parametrize(
    ("pattern", "least"),
    [
        ("a{100}", 100),
        ("(ab){50}", 100),
        ("((ab){5}){10}", 100),
        ("[a-z]{1,100}", 100),
        ("a{2}{3}{20}", 100),
        (r"(\x61{10}|\{b\}){10}", 100),
        (r"[({]{100}", 100),
    ],
)
def test_the_weight_is_never_less_than_the_positions(pattern: str, least: int) -> None:
    assert least <= linear_pattern(pattern).weight <= PATTERN_WEIGHT_MAX


@pytest.mark.parametrize(
    ("pattern", "weight"),
    [
        ("", 1),
        ("a", 2),
        ("abc", 4),
        ("a|b", 4),
        ("a*b+c?", 7),
        (r"\d\x41\u0042\p{L}", 5),
        (r"[a-z\]]", 2),
        (r"[\da-z]b", 3),
        ("[^a]b", 3),
        ("()", 2),
        ("(?i)a", 2),
        ("(?:a)", 3),
        ("(?i:a)", 3),
        ("(?P<name>ab)", 4),
        ("(ab)", 4),
        ("(abc)", 5),
        ("((a)b)", 5),
        ("(ab)(c)", 6),
        ("a{0}", 3),
        ("a{1}", 3),
        ("a{2}", 4),
        ("a{7}", 9),
        ("a{0,7}", 9),
        ("a{3,7}", 9),
        ("a{3,}", 5),
        ("ab{5}", 8),
        ("(ab){5}", 17),
        ("(ab|c){5}", 27),
        ("a{2}{3}", 9),
        ("a{2}{3}{4}", 28),
        ("a{0}{3}", 6),
        ("a{3}b{2}", 8),
    ],
)
def test_the_weight_counts_each_position_of_what_is_repeated(pattern: str, weight: int) -> None:
    """A bound that moved would refuse tomorrow what is registered today, or cost more."""
    assert linear_pattern(pattern).weight == weight


@pytest.mark.parametrize(
    ("taken", "refused"),
    [
        ("a{4094}", "a{4095}"),
        ("(a{2000}b{2000})", "(a{2000}b{2000}c{2000})"),
        ("x" * 1024, "x" * 1025),
    ],
)
def test_a_pattern_is_taken_up_to_the_bound_and_no_further(taken: str, refused: str) -> None:
    assert linear_pattern(taken) == taken
    with pytest.raises(ValueError, match=r"repeats too much|at most 1024"):
        linear_pattern(refused)


@settings(deadline=None)  # the machine may be busy
@given(st.text(alphabet=r"ab(){}[]?*+|\^$.-,:<>=!1d&~", max_size=14))
def test_every_text_is_a_pattern_or_a_sentence(text: str) -> None:
    said = ""
    try:
        linear_pattern(text).found_in("ab1")
    except ValueError as refusal:
        said = str(refusal)
    assert len(said) < 400
    assert "\n" not in said
