"""Whose content a receipt holds, and what a run is told of what a fact has settled or freed."""

from __future__ import annotations

from effect_adapters.base import Answer, Finding
from effect_broker.protocol.conclusion import Next
from effect_contracts.facts import Outcome, Verdict
from protocol.world import World, lost_answer, not_sent


def committed(name: str) -> Answer:
    return Answer(Outcome.COMMITTED, "ok", external_id=name, result={"object": name})


async def test_the_receipt_is_that_of_the_attempt_that_committed_last(idempotent: World) -> None:
    await idempotent.submit()
    idempotent.target.answers.extend([not_sent(), lost_answer(), committed("third")])
    await idempotent.run_until_at_rest()
    assert idempotent.outcomes == ["not_sent", "ambiguous", "committed"]
    assert idempotent.receipt is not None
    assert idempotent.receipt["external_id"] == "third"
    stored = idempotent.memory.receipt(idempotent.effect_id)
    assert stored is not None
    assert stored.result_ref == str(idempotent.snapshot.attempts[2].attempt_id)


async def test_the_receipt_is_that_of_a_first_attempt_that_was_only_slow(idempotent: World) -> None:
    await idempotent.submit()

    async def peer_sends() -> None:
        idempotent.let_pass(60)
        idempotent.target.answers.appendleft(lost_answer())
        await idempotent.dispatch(idempotent.snapshot.intent.version, 2)

    idempotent.target.while_sending = peer_sends
    idempotent.target.answers.append(committed("first"))
    await idempotent.dispatch(1, 1)
    assert idempotent.outcomes == ["committed", "ambiguous"]
    assert idempotent.receipt is not None
    assert (idempotent.receipt["external_id"], idempotent.receipt["attempts"]) == ("first", 2)
    stored = idempotent.memory.receipt(idempotent.effect_id)
    assert stored is not None
    assert stored.result_ref == str(idempotent.snapshot.attempts[0].attempt_id)


async def test_a_fact_that_frees_an_effect_says_which_attempt_is_next(reconcilable: World) -> None:
    await reconcilable.submit()
    reconcilable.target.answers.append(lost_answer())
    await reconcilable.dispatch(1, 1)
    reconcilable.let_pass(10_000)
    seen = await reconcilable.evidence(Verdict.NOT_COMMITTED)
    assert (seen.next, seen.ordinal) == (Next.DISPATCH, 2)


async def test_a_settlement_that_owes_a_count_says_when(reconcilable: World) -> None:
    """The first answer was lost, a look-up has denied the object, and it was sent again."""
    await reconcilable.submit()
    reconcilable.target.answers.append(lost_answer())
    seen = await reconcilable.dispatch(1, 1)
    reconcilable.let_pass(10_000)
    reconcilable.target.findings.append(Finding(Verdict.NOT_COMMITTED, "absent"))
    seen = await reconcilable.probe(reconcilable.snapshot.intent.version)
    assert seen.next is Next.DISPATCH
    settled = await reconcilable.dispatch(seen.version, 2)
    assert reconcilable.state == ("succeeded", "committed")
    assert (settled.next, settled.at) == (Next.WAIT, reconcilable.snapshot.intent.next_action_at)
    assert settled.at is not None


async def test_a_settlement_that_owes_nothing_ends_the_run(idempotent: World) -> None:
    await idempotent.submit()
    settled = await idempotent.dispatch(1, 1)
    assert (settled.next, settled.at) == (Next.END, None)


async def test_the_receipt_names_the_first_of_the_objects_that_were_seen(unsafe: World) -> None:
    """Where a person has said which of two counts, the first name of that word is the object's."""
    await unsafe.submit()
    unsafe.target.answers.append(lost_answer())
    await unsafe.dispatch(1, 1)
    await unsafe.evidence(Verdict.COMMITTED, "b", "a")
    assert unsafe.receipt is not None
    assert unsafe.receipt["external_id"] == "b"
