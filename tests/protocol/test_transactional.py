"""Mutations that share the broker's transaction, and their fences: design §4, "transactional"."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest

from effect_adapters.base import Answer
from effect_broker.protocol.conclusion import Next, View, write_decision
from effect_broker.protocol.ports import Change, Snapshot
from effect_contracts.decide import decide
from effect_contracts.facts import EvidenceSource, Outcome, Verdict
from protocol.world import TENANT, Trouble, World


async def open_attempt(world: World) -> None:
    """Grant the first attempt to a process that dies before its mutation."""
    await world.submit()
    world.store.troubles.extend([Trouble.NONE, Trouble.LOST_UNDONE])
    await world.dispatch(1, 1)
    assert world.outcomes == [None]


async def test_absence_is_settled_only_by_a_fence(transactional: World) -> None:
    await open_attempt(transactional)
    transactional.clock.seconds += 31
    await transactional.run()
    assert transactional.memory.fences(transactional.effect_id) == (1,)
    evidence = transactional.snapshot.facts.evidence[0]
    assert (evidence.source, evidence.verdict) == (
        EvidenceSource.TRANSACTION,
        Verdict.NOT_COMMITTED,
    )
    await transactional.run_until_at_rest()
    assert transactional.state == ("succeeded", "committed")
    assert len(transactional.target.entries) == 1


async def test_a_fenced_attempt_never_mutates(transactional: World) -> None:
    """The process of the first attempt wakes up after its successor has given it up."""
    await transactional.submit()
    zombie = transactional.ports_of(transactional.new_process("zombie"))
    other = transactional.ports_of(transactional.new_process("other"), transactional.memory)

    async def take_over() -> None:
        transactional.clock.seconds += 31
        await transactional.run(1, other)

    transactional.on_reach["after_attempt_commit"] = lambda: setattr(
        transactional.store, "before", take_over
    )
    await transactional.dispatch(1, 1, zombie)
    await transactional.run_until_at_rest()
    assert transactional.outcomes[0] == "not_sent"
    assert len(transactional.target.sent) == 1
    assert transactional.state == ("succeeded", "committed")


async def test_a_stale_probe_fences_nothing(transactional: World) -> None:
    """Between its decision and its step a peer has fenced attempt 1 and granted attempt 2."""
    await open_attempt(transactional)
    transactional.clock.seconds += 31
    seen = await transactional.reserve()
    assert seen.next is Next.PROBE

    other = transactional.ports_of(transactional.new_process("other"))
    settled = await transactional.probe(seen.version, other)
    transactional.clock.seconds += 5
    transactional.store.troubles.extend([Trouble.NONE, Trouble.LOST_UNDONE])
    await transactional.dispatch(settled.version, 2, other)
    assert transactional.outcomes == ["presumed_ambiguous", None]
    before = transactional.snapshot
    assert (await transactional.probe(seen.version)).next is Next.RELOAD
    assert transactional.memory.fences(transactional.effect_id) == (1,)
    assert transactional.snapshot == before


async def test_an_attempt_within_its_deadline_is_not_fenced(transactional: World) -> None:
    await open_attempt(transactional)
    version = transactional.snapshot.intent.version
    assert (await transactional.probe(version)).next is Next.RELOAD
    assert transactional.memory.fences(transactional.effect_id) == ()


async def test_a_mutation_whose_commit_answer_is_lost_is_found_and_not_run_again(
    transactional: World,
) -> None:
    await transactional.submit()
    transactional.store.troubles.extend([Trouble.NONE, Trouble.LOST_COMMITTED])
    calls = await transactional.run()
    assert calls.names == ["reserve", "dispatch 1", "reserve"]
    assert transactional.state == ("succeeded", "committed")
    assert len(transactional.target.entries) == 1


@pytest.mark.parametrize("trouble", [Trouble.BUSY, Trouble.UNAVAILABLE])
async def test_a_mutation_that_certainly_failed_does_not_wait_out_its_deadline(
    transactional: World, trouble: Trouble
) -> None:
    await transactional.submit()
    transactional.store.troubles.extend([Trouble.NONE, trouble])
    await transactional.dispatch(1, 1)
    await transactional.run_until_at_rest()
    assert transactional.outcomes == ["not_sent", "committed"]
    assert transactional.clock.seconds < 30  # the deadline of the first attempt
    assert len(transactional.target.entries) == 1


async def test_a_mutation_does_not_begin_after_its_budget(transactional: World) -> None:
    """The process slept between its permission and its mutation."""
    await transactional.submit()
    transactional.on_reach["after_attempt_commit"] = lambda: transactional.let_pass(31)
    await transactional.dispatch(1, 1)
    assert transactional.target.sent == []
    assert transactional.outcomes == ["not_sent"]


async def test_mutation_and_receipt_come_together(transactional: World) -> None:
    await transactional.submit()
    receipts: list[object] = []

    async def look() -> None:
        receipts.append(transactional.receipt)
        receipts.append(transactional.snapshot.mutation_ordinal)

    transactional.target.while_sending = look
    await transactional.run()
    assert receipts == [None, None]
    assert transactional.snapshot.mutation_ordinal == 1
    assert transactional.receipt is not None


async def test_no_mutation_commits_on_a_final_effect(transactional: World) -> None:
    """An operator has ended it while the attempt was open; the receipt says that nothing is."""
    await transactional.submit()

    def failed(snapshot: Snapshot) -> Change[View]:
        facts = replace(snapshot.facts, failed_by_operator=True)
        decision = decide(facts, snapshot.document.policy(), snapshot.now)
        return write_decision(snapshot, facts, decision, uuid4(), "operator:test", "failed", {})

    async def end() -> None:
        await transactional.memory.change(TENANT.tenant_id, transactional.effect_id, failed)

    transactional.on_reach["after_attempt_commit"] = lambda: setattr(
        transactional.store, "before", end
    )
    seen = await transactional.dispatch(1, 1)
    assert transactional.state == ("failed_final", "failed_by_operator")
    assert transactional.snapshot.mutation_ordinal is None
    assert transactional.outcomes == ["not_sent"]
    assert seen.next is Next.END
    last = transactional.memory.events(transactional.effect_id)[-1].advance
    assert (last.kind, last.metadata["contradicts"]) == ("late_fact", False)


async def test_a_mutation_that_proves_no_commit_leaves_the_key_free(transactional: World) -> None:
    await transactional.submit()
    transactional.target.answers.append(Answer(Outcome.RETRYABLE, "busy"))
    await transactional.run_until_at_rest()
    assert transactional.outcomes == ["retryable", "committed"]
    assert transactional.snapshot.mutation_ordinal == 2
