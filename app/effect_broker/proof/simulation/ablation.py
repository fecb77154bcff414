"""Ablation: a guard is switched off, and a world is searched for what it prevents.

The same schedules are run with and without the guard: from the first seed, or the first path of an
exploration, up to the one that breaks. Without the guard an invariant breaks; with it none does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from effect_broker.proof.simulation.exploration import explore, replay
from effect_broker.proof.simulation.guards import Guard, without
from effect_broker.proof.simulation.invariants import Violation
from effect_broker.proof.simulation.schedule import run_picks, run_seed, silence
from effect_broker.proof.simulation.scope import Scope
from effect_broker.proof.simulation.shrinking import shrunk

# Schedules that are tried for one guard; each has a world in which its loss shows much sooner.
SCHEDULES_MAX: Final = 3000


@dataclass(frozen=True, slots=True)
class Loss:
    """What the loss of a guard has broken.

    Attributes:
        schedules: how many it took, the one that broke among them.
    """

    guard: Guard
    violation: Violation
    picks: tuple[int, ...]
    schedules: int


def loss_of(guard: Guard, schedules_max: int = SCHEDULES_MAX) -> Loss | None:
    """Switch the guard off, and those beside it; return what breaks first, None if nothing does.

    Something else than the guard is there to prevent counts as nothing.
    """
    with without(*guard.beside, guard.name), silence():
        for count, violation, picks in _schedules(guard.world, guard, schedules_max):
            if violation is not None and violation.invariant in guard.breaks:
                return Loss(guard, violation, picks, count)
    return None


def kept(guard: Guard, schedules: int) -> Violation | None:
    """Run the same schedules with the guard, and without those beside it; return what breaks."""
    assert guard.scope is not None
    with without(*guard.beside), silence():
        for _, violation, _ in _schedules(guard.scope, guard, schedules):
            if violation is not None:
                return violation
    return None


def story_of(loss: Loss) -> list[str]:
    """Return the shortest story of a loss."""
    guard = loss.guard
    scope = guard.world
    with without(*guard.beside, guard.name), silence():
        if guard.depth is not None:
            return replay(scope, guard.depth, loss.picks)[1]

        def shows(picks: Sequence[int]) -> bool:
            broken = run_picks(scope, picks).violation
            return broken is not None and broken.invariant is loss.violation.invariant

        return run_picks(scope, shrunk(loss.picks, shows), telling=True).story


def _schedules(
    scope: Scope, guard: Guard, count: int
) -> Iterator[tuple[int, Violation | None, tuple[int, ...]]]:
    """Give the number of schedules so far, what the last one broke, and its picks."""
    if guard.depth is not None:
        seen = explore(scope, guard.depth, count)
        yield seen.schedules, seen.violation, seen.picks
        return
    for seed in range(count):
        outcome = run_seed(scope, seed)
        yield seed + 1, outcome.violation, outcome.picks
