"""Every schedule of one effect with two runs, one crash or pause, and one fault of the target."""

from __future__ import annotations

import pickle

import pytest

from effect_broker.proof.simulation.exploration import (
    CELLS,
    Depth,
    explore_cell,
    replay,
)
from effect_broker.proof.simulation.guards import without
from effect_broker.proof.simulation.invariants import Invariant, Violation
from effect_broker.proof.simulation.scope import Fault
from effect_contracts.facts import SafetyClass

pytestmark = pytest.mark.timeout(400)

# Two runs and a process that dies, anywhere. `effect-broker demo simulate --explore` does the same
# for one that stops and goes on at any later moment, which takes minutes.
TWO_RUNS = Depth(troubles=1, takeovers=1, target=0)
# One run with the same troubles, and whatever the target may do with one request or look-up.
ONE_RUN = Depth(troubles=1, takeovers=0, target=1)
DEATHS = [name for name, cell in CELLS.items() if cell.trouble is Fault.DEATH]
PAUSES = [
    name
    for name, cell in CELLS.items()
    if cell.trouble is Fault.PAUSE and cell.takeover is Fault.TAKEOVER
]


# The largest cells are only begun here; their ends are left to the command. `docs/simulation.md`
# says how large they are, and that the one of these with two runs and a death was clean.
BEGUN_SCHEDULES = 4000
BEGUN = {"explored-reconcilable-death-takeover", "explored-idempotent-pause-takeover"}
BEGUN |= {"explored-reconcilable-pause-takeover"}


def clean(name: str, depth: Depth) -> None:
    seen = explore_cell(name, depth, BEGUN_SCHEDULES if name in BEGUN else None)
    assert seen.violation is None
    assert seen.complete == (name not in BEGUN)
    assert seen.states > 100
    assert seen.schedules > seen.ended > 10


@pytest.mark.parametrize("name", DEATHS)
def test_two_runs_and_a_death_anywhere_break_nothing(name: str) -> None:
    clean(name, TWO_RUNS)


@pytest.mark.parametrize("name", PAUSES)
def test_a_pause_anywhere_and_any_fate_break_nothing(name: str) -> None:
    clean(name, ONE_RUN)


def test_every_kind_of_lost_commit_breaks_nothing() -> None:
    for safety in ("unsafe", "transactional"):
        name = f"explored-{safety}-death-takeover"
        clean(name, Depth(troubles=1, takeovers=0, target=0, store=1))


def test_a_limit_is_kept_and_said() -> None:
    seen = explore_cell(DEATHS[0], TWO_RUNS, 20)
    assert (seen.schedules, seen.complete) == (20, False)


def test_an_exploration_finds_what_a_missing_guard_prevents_and_tells_it_again() -> None:
    name = "explored-reconcilable-pause-takeover"
    with without("last_gate"):
        seen = explore_cell(name, ONE_RUN, None)
        assert seen.violation is not None
        assert seen.violation.invariant is Invariant.SENT_WITHIN_BUDGET
        again, story = replay(CELLS[name].scope, ONE_RUN, seen.picks)
    assert str(again) == str(seen.violation)
    assert "stops" in "\n".join(story)
    assert replay(CELLS[name].scope, ONE_RUN, seen.picks)[0] is None


def test_the_cells_are_every_class_with_every_trouble() -> None:
    assert {cell.safety for cell in CELLS.values()} == set(SafetyClass)
    assert len(CELLS) == len(SafetyClass) * 4


def test_a_violation_can_be_sent_between_processes() -> None:
    broken = Violation(Invariant.ONE_EFFECT, "two")
    again = pickle.loads(pickle.dumps(broken))
    assert (str(again), again.invariant) == (str(broken), broken.invariant)
