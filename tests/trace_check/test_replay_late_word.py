"""The word of a process that sent after the end: what it owes, as the broker wrote it."""

from __future__ import annotations

import pytest

from effect_adapters.base import Answer
from effect_contracts.facts import Outcome
from effect_contracts.trace import verify_lines
from protocol.test_count import step, stopped_behind_the_gate
from protocol.world import World, lost_answer
from trace_check.staged import account, world_of


def reconcilable() -> World:
    return world_of("reconcilable", settlement_bound_seconds=60.0)


def violations(world: World) -> tuple[object, ...]:
    return tuple(verify_lines(account(world), whole=True).violations)


@pytest.mark.parametrize(
    ("came_back", "owes"),
    [
        (lost_answer(), True),
        (Answer(Outcome.COMMITTED, "committed"), True),
        (Answer(Outcome.COMMITTED, "committed", external_id="another"), False),
        (Answer(Outcome.REJECTED, "refused"), False),
    ],
)
async def test_a_late_word_owes_a_count_if_it_may_have_sent(came_back: Answer, owes: bool) -> None:
    """Two objects with an id each are an alert at once, and need no count."""
    world = reconcilable()
    await stopped_behind_the_gate(world, came_back)
    assert (world.snapshot.intent.next_action_at is not None) is owes
    assert violations(world) == ()


async def test_the_count_that_follows_a_late_word_is_part_of_the_account() -> None:
    world = reconcilable()
    await stopped_behind_the_gate(world, lost_answer())
    world.target.entries.append(world.entry())
    await step(world)
    assert world.memory.events(world.effect_id)[-1].advance.kind == "duplicate_detected"
    assert violations(world) == ()


async def test_a_late_word_after_a_failure_owes_one_too() -> None:
    world = reconcilable()
    await stopped_behind_the_gate(world, lost_answer(), after=Answer(Outcome.REJECTED, "refused"))
    assert world.state == ("failed_final", "rejected")
    assert violations(world) == ()
