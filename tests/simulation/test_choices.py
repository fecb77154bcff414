"""All chance of a schedule is one list: a seed and the list that it gave are the same schedule."""

from __future__ import annotations

import pytest

from effect_broker.proof.simulation.choices import Chance, Choices, Weights, stripped
from effect_broker.proof.simulation.shrinking import read, shrunk, spelled

GOLDEN_OF_SEED_7 = [844, 284, 53, 468, 793, 442, 889, 395]


def test_a_seed_gives_the_same_numbers_on_every_machine() -> None:
    chance = Chance(7)
    assert [chance.below(1000) for _ in range(8)] == GOLDEN_OF_SEED_7
    many = [Chance(seed).below(10) for seed in range(500)]
    assert set(many) == set(range(10))


def test_what_was_picked_is_picked_again() -> None:
    first = Choices((), Chance(3))
    picked = [first.of(5), first.weighted(Weights.of(1, 2, 3)), first.of(9), first.of(1)]
    again = Choices(first.taken)
    assert [again.of(5), again.weighted(Weights.of(1, 2, 3)), again.of(9), again.of(1)] == picked
    assert again.replayed


def test_a_list_that_has_run_out_and_a_pick_that_is_not_on_offer_are_quiet() -> None:
    choices = Choices((7, 1))
    assert choices.of(3) == 0
    assert choices.weighted(Weights.of(1, 0, 1)) == 0  # not on offer
    assert choices.of(100) == 0
    choices.quiet = True
    taken = list(choices.taken)
    assert choices.of(9) == 0
    assert choices.taken == taken


def test_a_weight_of_nothing_is_never_picked() -> None:
    choices = Choices((), Chance(1))
    assert {choices.weighted(Weights.of(1, 0, 3)) for _ in range(200)} == {0, 2}


def test_zeros_at_the_end_mean_nothing() -> None:
    assert stripped([0, 3, 0, 1, 0, 0]) == (0, 3, 0, 1)
    assert stripped([0, 0]) == ()


def test_shrinking_keeps_what_shows_and_drops_the_rest() -> None:
    picks = tuple(range(40))
    short = shrunk(picks, lambda candidate: 17 in candidate and 23 in candidate)
    assert short == (17, 23)
    assert shrunk(picks, lambda candidate: sum(candidate) >= 5) == (5,)


@pytest.mark.parametrize("picks", [(), (0, 0, 0, 4), (1, 0, 12, 0, 0, 3)])
def test_picks_are_spelled_and_read_again(picks: tuple[int, ...]) -> None:
    assert read(spelled(picks)) == picks


@pytest.mark.parametrize("word", ["", "a", "z", "1..2", "z999999999"])
def test_a_word_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        read(word)
