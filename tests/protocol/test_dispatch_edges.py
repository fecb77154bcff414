"""The edges of the steps: the end of a budget, a lock not granted, and whose look it is."""

from __future__ import annotations

import pytest

from effect_adapters.base import Answer, Finding
from effect_broker.protocol.conclusion import Next
from effect_broker.protocol.ports import VaultError
from effect_contracts.facts import CODE_OPERATION_GONE, Outcome, Verdict
from protocol.world import Trouble, World, lost_answer


@pytest.mark.parametrize("number", range(8))
async def test_no_other_request_than_the_bound_one_is_sent(idempotent: World, number: int) -> None:
    """Whatever its digest: it may sort before that of the bound one, or behind it."""
    await idempotent.submit()
    idempotent.replace_wire(f'{{"other": {number}}}'.encode())
    with pytest.raises(VaultError):
        await idempotent.dispatch(1, 1)
    assert idempotent.target.sent == []
    assert idempotent.outcomes == []


@pytest.mark.parametrize(("late_by", "sent"), [(-0.5, True), (0.0, False), (0.5, False)])
async def test_a_mutation_begins_within_its_budget_or_not_at_all(
    transactional: World, late_by: float, sent: bool
) -> None:
    await transactional.submit()
    transactional.on_reach["after_attempt_commit"] = lambda: transactional.let_pass(30 + late_by)
    await transactional.dispatch(1, 1)
    assert transactional.outcomes == ["committed" if sent else "not_sent"]
    assert len(transactional.target.sent) == (1 if sent else 0)


async def test_a_fence_that_is_not_granted_ends_the_run_and_is_tried_by_the_next(
    transactional: World,
) -> None:
    """The mutation's transaction may still be open, and holds the key."""
    await transactional.submit()
    transactional.store.troubles.extend([Trouble.NONE, Trouble.LOST_UNDONE])
    await transactional.dispatch(1, 1)
    transactional.let_pass(31)
    seen = await transactional.reserve()
    assert seen.next is Next.PROBE
    transactional.store.troubles.append(Trouble.BUSY)
    before = transactional.snapshot.intent
    assert (await transactional.probe(seen.version)).next is Next.END
    assert transactional.snapshot.intent == before
    assert transactional.memory.fences(transactional.effect_id) == ()
    await transactional.probe(seen.version)
    assert transactional.memory.fences(transactional.effect_id) == (1,)


async def two_attempts_of_which_the_first_was_accepted() -> World:
    """Attempt 1 was slow and is the operation; attempt 2 went out meanwhile and is in doubt."""
    adapter = {"kind": "simulated", "target": "ledger", "polls_operations": True}
    world = World("idempotent", adapter=adapter)
    await world.submit()

    async def peer_sends() -> None:
        world.let_pass(60)
        world.target.answers.appendleft(lost_answer())
        await world.dispatch(world.snapshot.intent.version, 2)

    world.target.while_sending = peer_sends
    world.target.answers.append(Answer(Outcome.IN_PROGRESS, "accepted", operation="op"))
    await world.dispatch(1, 1)
    assert world.outcomes == ["in_progress", "ambiguous"]
    return world


@pytest.mark.parametrize(
    ("finding", "covers"),
    [
        (Finding(Verdict.REJECTED, "operation_failed"), 1),
        (Finding(Verdict.UNKNOWN, CODE_OPERATION_GONE), 1),
        (Finding(Verdict.UNKNOWN, "busy"), 2),
        (Finding(Verdict.UNKNOWN, "zzz"), 2),
        (Finding(Verdict.NOT_COMMITTED, CODE_OPERATION_GONE), 2),
        (Finding(Verdict.NOT_COMMITTED, "absent"), 2),
    ],
)
async def test_a_look_speaks_of_the_operation_only_where_it_says_how_that_ended(
    finding: Finding, covers: int
) -> None:
    world = await two_attempts_of_which_the_first_was_accepted()
    seen = await world.reserve()
    assert seen.next is Next.PROBE
    world.target.findings.append(finding)
    await world.probe(seen.version)
    assert world.target.looked[-1].operation == "op"
    told = [e.advance for e in world.memory.events(world.effect_id)][-1]
    assert told.kind == "evidence_added"
    assert told.metadata["covers_through"] == covers


async def test_a_look_without_an_operation_covers_every_attempt(reconcilable: World) -> None:
    await reconcilable.submit()
    reconcilable.target.answers.append(lost_answer())
    seen = await reconcilable.dispatch(1, 1)
    reconcilable.target.findings.append(Finding(Verdict.REJECTED, "operation_failed"))
    await reconcilable.probe(seen.version)
    told = [e.advance for e in reconcilable.memory.events(reconcilable.effect_id)][-1]
    assert told.metadata["covers_through"] == 1


@pytest.mark.parametrize("accepted", [True, False])
async def test_what_was_accepted_is_polled_next_and_nothing_else_is(accepted: bool) -> None:
    adapter = {"kind": "simulated", "target": "ledger", "polls_operations": True}
    world = World("idempotent", adapter=adapter)
    await world.submit()
    answer = Answer(Outcome.IN_PROGRESS, "accepted", operation="op" if accepted else None)
    world.target.answers.append(answer)
    seen = await world.dispatch(1, 1)
    assert seen.next is (Next.PROBE if accepted else Next.WAIT)
    assert world.snapshot.facts.attempts[0].operation is accepted
    assert (await world.reserve()).next is (Next.PROBE if accepted else Next.DISPATCH)


async def test_an_outcome_that_is_known_already_is_told_as_it_stands(idempotent: World) -> None:
    await idempotent.submit()
    idempotent.target.answers.append(lost_answer())
    seen = await idempotent.dispatch(1, 1)
    attempt_id = idempotent.snapshot.attempts[0].attempt_id
    again = await idempotent.record_again(attempt_id, Outcome.COMMITTED)
    assert (again.next, again.reason, again.version) == (seen.next, seen.reason, seen.version)
    assert idempotent.outcomes == ["ambiguous"]
