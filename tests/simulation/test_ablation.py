"""Each guard of the protocol is switched off alone, and somebody notices.

A guard whose loss nothing notices is either untested or not needed. The same schedules are clean
with the guard, so it is the guard that makes the difference.
"""

from __future__ import annotations

import ast

import pytest

from effect_broker import repair
from effect_broker.proof.simulation.ablation import SCHEDULES_MAX, kept, loss_of, story_of
from effect_broker.proof.simulation.guards import GUARDS, Guard, simulated_guards, without
from effect_broker.protocol import changes, conclusion, resolution, steps, webhook
from effect_contracts import decide as decisions
from repository.checkout import CHECKOUT


@pytest.mark.parametrize("guard", simulated_guards(), ids=lambda guard: guard.name)
def test_the_loss_of_a_guard_is_noticed(guard: Guard) -> None:
    loss = loss_of(guard)
    assert loss is not None, f"without {guard.name}, {SCHEDULES_MAX} schedules were clean"
    assert loss.violation.invariant in guard.breaks
    # With it, and still without those that hold the same promise, the same schedules are clean.
    assert kept(guard, loss.schedules if guard.depth is None else SCHEDULES_MAX) is None


@pytest.mark.parametrize("name", ["last_gate", "clock_margin", "mutation_fence"])
def test_a_loss_has_a_story_that_ends_with_what_broke(name: str) -> None:
    loss = loss_of(GUARDS[name])
    assert loss is not None
    story = story_of(loss)
    assert story[-1].endswith(f"BROKEN: {loss.violation.invariant}: {_text(story[-1])}")
    assert any("commits permission" in line for line in story)
    assert len(story) < 40


def _text(line: str) -> str:
    return line.split(": ", 2)[2]


def test_switching_off_ends_with_the_block() -> None:
    owners = (changes, conclusion, steps, resolution, webhook, repair, decisions, decisions._Case)
    before = [dict(vars(owner)) for owner in owners]
    with without(*(guard.name for guard in simulated_guards())):
        assert all(dict(vars(o)) != was for o, was in zip(owners, before, strict=True))
    assert [dict(vars(owner)) for owner in owners] == before


def test_a_second_lock_names_locks_that_exist() -> None:
    for guard in GUARDS.values():
        assert guard.name not in guard.beside
        assert all(GUARDS[name].switched_off is not None for name in guard.beside)
        assert (guard.scope is None) == (guard.proof is not None)


@pytest.mark.parametrize(
    "guard", [g for g in GUARDS.values() if g.proof is not None], ids=lambda guard: guard.name
)
def test_a_guard_that_no_simulation_can_lose_names_a_test_that_exists(guard: Guard) -> None:
    assert guard.proof is not None
    file, _, name = guard.proof.partition("::")
    tree = ast.parse((CHECKOUT / file).read_text("utf-8"))
    tests = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert name in tests
