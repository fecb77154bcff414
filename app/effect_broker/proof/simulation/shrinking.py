"""From a schedule that shows something to a short one that still does.

Delta debugging over the list of picks: parts of it are made quiet (zero), cut out, and single picks
lowered, as long as the schedule shows the same. A pick that means something else after a cut is no
harm, since every list is a schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from effect_broker.proof.simulation.choices import stripped

# Tries; a schedule takes a millisecond or two, and the last ones hardly shorten any more.
TRIES_MAX: Final = 3000

Shows = Callable[[Sequence[int]], bool]


def shrunk(picks: Sequence[int], shows: Shows, tries_max: int = TRIES_MAX) -> tuple[int, ...]:
    """Return a shorter and simpler list that still shows it.

    `picks` themselves must show it.
    """
    best = stripped(picks)
    tries = 0
    improved = True
    while improved:
        improved = False
        for candidate in _simpler(best):
            if tries >= tries_max:
                return best
            tries += 1
            if _measure(candidate) < _measure(best) and shows(candidate):
                best, improved = candidate, True
                break
    return best


def _measure(picks: Sequence[int]) -> tuple[int, int, int]:
    return (sum(map(bool, picks)), len(picks), sum(picks))


def _simpler(picks: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    size = len(picks)
    while size >= 1:
        for at in range(0, len(picks), size):
            part = picks[at : at + size]
            if any(part):
                yield stripped((*picks[:at], *(0,) * len(part), *picks[at + size :]))
        for at in range(0, len(picks), size):
            yield stripped((*picks[:at], *picks[at + size :]))
        size //= 2
    for at, pick in enumerate(picks):
        for lower in {1, pick // 2, pick - 1}:
            if 0 < lower < pick:
                yield stripped((*picks[:at], lower, *picks[at + 1 :]))


def spelled(picks: Sequence[int]) -> str:
    """Return the picks as a word for a command line; runs of zeros are counted."""
    words: list[str] = []
    zeros = 0
    for pick in (*picks, None):
        if pick == 0:
            zeros += 1
            continue
        if zeros:
            words.append(f"z{zeros}" if zeros > 1 else "0")
            zeros = 0
        if pick is not None:
            words.append(str(pick))
    return ".".join(words) or "-"


def read(word: str) -> tuple[int, ...]:
    """Read what `spelled` wrote.

    Raises:
        ValueError: it was written by something else.
    """
    if word == "-":
        return ()
    picks: list[int] = []
    for part in word.split("."):
        count = int(part[1:]) if part.startswith("z") else 0
        if not 0 <= count <= 100_000:
            raise ValueError("too many picks")
        picks += [0] * count if part.startswith("z") else [int(part)]
    return tuple(picks)
