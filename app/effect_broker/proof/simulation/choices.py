"""All chance of a schedule as one list of numbers.

Every decision that a world does not make for itself is one pick here. So a schedule is a seed, or
the list of what was picked: a list replays the schedule, a shorter list is a simpler one. Zero is
always the quiet option (go on, no fault), and a list that has run out picks zero for ever.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import shake_128
from itertools import accumulate
from struct import unpack
from typing import Final

# Numbers that are drawn from the seed at once; about as many as one schedule needs.
_BLOCK: Final = 512


class Chance:
    """Numbers from a seed: SHAKE-128 in counter mode, the same everywhere, and drawn in blocks."""

    __slots__ = ("_blocks", "_numbers", "_seed")

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._blocks = 0
        self._numbers: Iterator[int] = iter(())

    def below(self, bound: int) -> int:
        """Return a number from 0 to `bound` - 1; the bias is of no account for small bounds."""
        for number in self._numbers:
            return number % bound
        self._numbers = self._next_block()
        return next(self._numbers) % bound

    def _next_block(self) -> Iterator[int]:
        self._blocks += 1
        text = f"{self._seed}/{self._blocks}".encode()
        return iter(unpack(f"<{_BLOCK}I", shake_128(text).digest(4 * _BLOCK)))


@dataclass(frozen=True, slots=True)
class Weights:
    """How likely each of some options is."""

    each: tuple[int, ...]
    sums: tuple[int, ...]
    total: int

    @classmethod
    def of(cls, *each: int) -> Weights:
        """Return the weights of options in order."""
        sums = tuple(accumulate(each))
        return cls(each, sums, sums[-1])


@lru_cache(maxsize=256)
def first_against(weight: int, others: int) -> Weights:
    """Return a weight for the first option, and one each for so many others."""
    return Weights.of(weight, *(1,) * others)


def _once_in(times: int) -> Weights:
    return first_against(times - 1, 1)


class Choices:
    """The picks of one schedule.

    Args:
        given: picks to replay. One that is not on offer counts as zero.
        chance: makes the picks after those; without it they are zero.

    Attributes:
        taken: what was picked, in order.
        sizes: how many options each pick had.
        quiet: from now on every pick is zero and none is recorded.
    """

    __slots__ = ("_at", "_chance", "_given", "quiet", "sizes", "taken")

    def __init__(self, given: Sequence[int] = (), chance: Chance | None = None) -> None:
        self._given = given
        self._chance = chance
        self._at = 0
        self.taken: list[int] = []
        self.sizes: list[int] = []
        self.quiet = False

    def of(self, size: int) -> int:
        """Pick one of `size` options."""
        if self.quiet or size <= 1:
            return 0
        at = self._at
        self._at = at + 1
        if at < len(self._given):
            picked = self._given[at]
            if not 0 <= picked < size:
                picked = 0
        elif self._chance is not None:
            picked = self._chance.below(size)
        else:
            picked = 0
        self.taken.append(picked)
        self.sizes.append(size)
        return picked

    def weighted(self, weights: Weights) -> int:
        """Pick an index; chance follows the weights, and a weight of zero is not on offer.

        The first option is always on offer.
        """
        if self.quiet:
            return 0
        at = self._at
        self._at = at + 1
        if at < len(self._given):
            picked = self._given[at]
            if not 0 <= picked < len(weights.each) or not weights.each[picked]:
                picked = 0
        elif self._chance is not None:
            picked = bisect_right(weights.sums, self._chance.below(weights.total))
        else:
            picked = 0
        self.taken.append(picked)
        self.sizes.append(len(weights.each))
        return picked

    def once_in(self, times: int) -> bool:
        """Say yes once in so many times."""
        return self.weighted(_once_in(times)) == 1

    @property
    def replayed(self) -> bool:
        """Whether all given picks have been used."""
        return self._at >= len(self._given)


def stripped(taken: Sequence[int]) -> tuple[int, ...]:
    """Return the picks without the zeros at the end, which mean nothing."""
    end = len(taken)
    while end and not taken[end - 1]:
        end -= 1
    return tuple(taken[:end])
