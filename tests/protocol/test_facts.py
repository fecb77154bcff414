"""Facts, whoever learns them and whenever: design §4, "the fence is the intent's version"."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest

from effect_adapters.base import Answer, Finding
from effect_broker.protocol import conclusion
from effect_broker.protocol.conclusion import Next
from effect_broker.protocol.ports import EvidenceRow
from effect_contracts.facts import (
    EffectState,
    Evidence,
    EvidenceSource,
    Hold,
    Outcome,
    Verdict,
)
from protocol.world import Trouble, World, lost_answer, not_sent

ACCEPTED = Answer(Outcome.IN_PROGRESS, "accepted", operation="op")


async def unknown(world: World) -> World:
    """Bring an effect to `outcome_unknown` or whatever its class makes of a lost answer."""
    await world.submit()
    world.target.answers.append(lost_answer())
    await world.dispatch(1, 1)
    return world


# Every fact counts --------------------------------------------------------------------------------


async def test_a_late_fact_settles_a_parked_effect(unsafe: World) -> None:
    await unknown(unsafe)
    assert unsafe.memory.parked(unsafe.effect_id)
    await unsafe.evidence(Verdict.COMMITTED, "sim_9", source=EvidenceSource.WEBHOOK)
    assert unsafe.state == ("succeeded", "committed")
    receipt = unsafe.receipt
    assert receipt is not None
    assert (receipt["source"], receipt["external_id"]) == ("webhook", "sim_9")
    assert not unsafe.memory.parked(unsafe.effect_id)


@pytest.mark.parametrize("state", ["dispatching", "outcome_unknown", "reconciling", "retryable",
                                   "manual_review"])  # fmt: skip
async def test_proof_of_a_commit_settles_from_every_state_with_an_attempt(
    state: str, reconcilable: World
) -> None:
    world = reconcilable
    await world.submit()

    async def tell() -> None:
        assert world.snapshot.intent.state.value == state
        await world.evidence(Verdict.COMMITTED, "sim_1")

    match state:
        case "dispatching":
            world.target.while_sending = tell
            await world.dispatch(1, 1)
        case "outcome_unknown":
            world.target.answers.append(lost_answer())
            await world.dispatch(1, 1)
            await tell()
        case "reconciling":
            world.target.answers.append(lost_answer())
            seen = await world.dispatch(1, 1)
            world.target.while_looking = tell
            await world.probe(seen.version)
        case "retryable":
            world.target.answers.append(not_sent())
            await world.dispatch(1, 1)
            await tell()
        case _:
            world.target.answers.append(Answer(Outcome.PARTIAL, "partial"))
            await world.dispatch(1, 1)
            await tell()
    assert world.state == ("succeeded", "committed")


async def test_a_fact_raises_the_version_and_makes_other_decisions_stale(
    reconcilable: World,
) -> None:
    await unknown(reconcilable)
    seen = await reconcilable.reserve()
    assert seen.next is Next.PROBE
    await reconcilable.evidence(Verdict.UNKNOWN)
    assert reconcilable.snapshot.intent.version == seen.version + 1
    assert (await reconcilable.probe(seen.version)).next is Next.RELOAD
    assert reconcilable.target.looked == []


async def test_a_fact_that_leaves_work_makes_the_effect_due_now(reconcilable: World) -> None:
    await unknown(reconcilable)
    await reconcilable.run()
    waits_until = reconcilable.snapshot.intent.next_action_at
    reconcilable.clock.seconds = 62.0
    assert waits_until != reconcilable.clock.now()
    await reconcilable.evidence(Verdict.NOT_COMMITTED)
    assert reconcilable.snapshot.intent.state is EffectState.RETRYABLE
    assert reconcilable.snapshot.intent.next_action_at == reconcilable.clock.now()


# After the end ------------------------------------------------------------------------------------


@pytest.mark.parametrize("verdict", list(Verdict))
async def test_a_fact_on_a_final_effect_changes_no_receipt(
    idempotent: World, verdict: Verdict
) -> None:
    await idempotent.submit()
    await idempotent.run()
    before, version = idempotent.receipt, idempotent.snapshot.intent.version
    await idempotent.evidence(verdict, "sim_1")
    assert idempotent.receipt == before
    assert idempotent.state == ("succeeded", "committed")
    intent = idempotent.snapshot.intent
    assert (intent.version, intent.next_action_at) == (version + 1, None)
    last = idempotent.memory.events(idempotent.effect_id)[-1].advance
    assert last.kind == "late_fact"


async def test_a_late_commit_of_a_failed_effect_says_that_it_contradicts(unsafe: World) -> None:
    await unsafe.submit()

    async def give_up() -> None:
        unsafe.clock.seconds += 31
        await unsafe.run(1, unsafe.ports_of(unsafe.new_process("worker-2")))
        await unsafe.evidence(Verdict.NOT_COMMITTED)
        assert unsafe.state == ("failed_final", "proved_not_committed")

    unsafe.target.while_sending = give_up
    await unsafe.dispatch(1, 1)
    assert unsafe.state == ("failed_final", "proved_not_committed")
    assert unsafe.outcomes == ["committed"]  # stored all the same
    last = unsafe.memory.events(unsafe.effect_id)[-1].advance
    assert (last.kind, last.metadata["contradicts"]) == ("late_fact", True)


async def test_a_second_object_found_after_the_end_freezes_the_contract(idempotent: World) -> None:
    """Its key does not hold what the contract says; the other effects must not go on with it."""
    await idempotent.submit()
    await idempotent.run()
    await idempotent.evidence(Verdict.COMMITTED, "sim_77")
    assert idempotent.state == ("succeeded", "committed")
    await idempotent.submit("order-2")
    assert idempotent.snapshot.facts.holds == {Hold.FROZEN}


async def test_different_external_ids_freeze_the_contract_for_its_other_effects(
    reconcilable: World,
) -> None:
    await unknown(reconcilable)
    await reconcilable.evidence(Verdict.COMMITTED, "a", "b", source=EvidenceSource.WEBHOOK)
    assert reconcilable.state == ("manual_review", "contract_violation")
    await reconcilable.submit("order-2")
    await reconcilable.run()
    assert reconcilable.snapshot.intent.reason == "frozen"
    assert reconcilable.memory.parked(reconcilable.effect_id)
    assert len(reconcilable.target.sent) == 1


# Receipts -----------------------------------------------------------------------------------------


async def test_the_receipt_of_a_probed_success_holds_the_result_of_the_probe(
    reconcilable: World,
) -> None:
    await unknown(reconcilable)
    reconcilable.target.findings.append(
        Finding(Verdict.COMMITTED, "found", ("sim_1",), {"id": "sim_1"}, {"total": 5})
    )
    await reconcilable.run()
    receipt, stored = reconcilable.receipt, reconcilable.memory.receipt(reconcilable.effect_id)
    assert receipt is not None
    assert stored is not None
    assert (receipt["source"], receipt["external_id"]) == ("probe", "sim_1")
    plain = reconcilable.result(stored.result_ref)
    assert plain == {"result": {"id": "sim_1"}, "fields": {"total": 5}}
    assert receipt["result_digest"] == reconcilable.digest_of(stored.result_ref)


async def test_the_receipt_of_an_answer_holds_its_result(idempotent: World) -> None:
    await idempotent.submit()
    idempotent.target.answers.append(
        Answer(Outcome.COMMITTED, "committed", "sim_1", {"id": "sim_1"})
    )
    await idempotent.run()
    receipt, stored = idempotent.receipt, idempotent.memory.receipt(idempotent.effect_id)
    assert receipt is not None
    assert stored is not None
    assert receipt["source"] == "response"
    assert idempotent.result(stored.result_ref) == {"result": {"id": "sim_1"}, "fields": {}}
    assert receipt["result_digest"] == idempotent.digest_of(stored.result_ref)


async def test_an_answer_without_a_canonical_form_is_a_commit_all_the_same(
    unsafe: World,
) -> None:
    await unsafe.submit()
    unsafe.target.answers.append(
        Answer(Outcome.COMMITTED, "committed", "sim_1", {"text": "nul \0"})
    )
    await unsafe.run()
    assert unsafe.state == ("succeeded", "committed")
    stored = unsafe.memory.receipt(unsafe.effect_id)
    assert stored is not None
    assert "left_out" in unsafe.result(stored.result_ref)


@pytest.mark.parametrize("end", ["expired", "rejected", "never_sent"])
async def test_a_failure_has_a_receipt_too(unsafe: World, end: str) -> None:
    match end:
        case "expired":
            await unsafe.submit(send_before=unsafe.clock.now())
        case "rejected":
            await unsafe.submit()
            unsafe.target.answers.append(Answer(Outcome.REJECTED, "refused"))
        case _:
            await unsafe.submit()
            unsafe.target.answers.extend([not_sent()] * 3)
    await unsafe.run_until_at_rest()
    assert unsafe.state == ("failed_final", end)
    receipt = unsafe.receipt
    assert receipt is not None
    assert (receipt["state"], receipt["reason"]) == ("failed_final", end)


# What a change believes to have written, and what a reader finds ----------------------------------


async def test_a_plan_sees_its_own_look_up_as_the_next_reader_will(reconcilable: World) -> None:
    """A look-up that began before the latest attempt is no look-up since that attempt."""
    await unknown(reconcilable)
    began_at = reconcilable.clock.now()
    await reconcilable.evidence(Verdict.NOT_COMMITTED)
    reconcilable.clock.seconds += 100
    await reconcilable.evidence(Verdict.NOT_COMMITTED)
    await reconcilable.dispatch(reconcilable.snapshot.intent.version, 2)
    snapshot = reconcilable.memory.snapshot(reconcilable.effect_id)
    late = EvidenceRow(
        Evidence(str(uuid4()), EvidenceSource.PROBE, Verdict.UNKNOWN, began_at, 1), None
    )
    facts = conclusion.with_evidence(snapshot, late).facts
    assert (facts.probes_since_attempt, facts.probe_began_at) == (0, None)


# Holds --------------------------------------------------------------------------------------------


async def test_a_held_effect_is_parked_with_its_reason_and_probes_go_on(
    reconcilable: World,
) -> None:
    await unknown(reconcilable)
    reconcilable.memory.holds.add(Hold.PAUSED)
    reconcilable.target.findings.append(Finding(Verdict.UNKNOWN, "busy"))
    await reconcilable.run()
    assert len(reconcilable.target.looked) >= 1
    await reconcilable.submit("order-2")
    await reconcilable.run()
    assert reconcilable.snapshot.intent.reason == "paused"
    assert reconcilable.memory.parked(reconcilable.effect_id)
    assert reconcilable.snapshot.intent.state is EffectState.PREPARED


async def test_a_fact_unparks_what_is_no_longer_held(idempotent: World) -> None:
    await unknown(idempotent)
    idempotent.memory.holds.add(Hold.PAUSED)
    await idempotent.run()
    assert idempotent.memory.parked(idempotent.effect_id)
    idempotent.memory.holds.clear()
    await idempotent.evidence(Verdict.UNKNOWN)
    assert not idempotent.memory.parked(idempotent.effect_id)
    await idempotent.run_until_at_rest()
    assert idempotent.state == ("succeeded", "committed")


# Accepted operations ------------------------------------------------------------------------------


def polling(safety: str = "idempotent") -> World:
    """A target that accepts operations and says later how they ended."""
    adapter = {
        "kind": "simulated", "target": "ledger", "probes": safety == "reconcilable",
        "polls_operations": True,
    }  # fmt: skip
    return World(safety, adapter=adapter)


async def test_an_operation_that_failed_speaks_of_its_own_attempt_only() -> None:
    """Attempt 1 was slow and is the operation; attempt 2 went out meanwhile and is in doubt."""
    world = polling()
    await world.submit()

    async def take_over() -> None:
        world.clock.seconds += 60
        world.target.answers.appendleft(lost_answer())
        await world.dispatch(world.snapshot.intent.version, 2)

    world.target.while_sending = take_over
    world.target.answers.append(ACCEPTED)
    seen = await world.dispatch(1, 1)
    assert world.outcomes == ["in_progress", "ambiguous"]
    world.target.findings.append(Finding(Verdict.REJECTED, "operation_failed"))
    await world.probe(seen.version)
    assert world.target.looked[-1].operation == "op"
    (evidence,) = world.snapshot.facts.evidence
    assert evidence.covers_through == 1
    assert world.snapshot.intent.state is not EffectState.FAILED_FINAL


async def test_an_operation_that_has_ended_is_not_asked_about_a_later_attempt() -> None:
    """Its old failure would be taken for the later attempt's."""
    world = polling("reconcilable")
    await world.submit()
    zombie = world.ports_of(world.new_process("zombie"))

    async def take_over() -> None:
        world.clock.seconds += 60
        await world.run()  # presumes attempt 1, probes, nothing is there yet
        world.clock.seconds += 60
        world.target.answers.appendleft(replace(ACCEPTED, operation="op-2"))
        calls = await world.run()
        assert "dispatch 2" in calls.names

    world.target.while_sending = take_over
    world.target.findings.extend([Finding(Verdict.NOT_COMMITTED, "absent")] * 20)
    world.target.answers.append(lost_answer())
    await world.dispatch(1, 1, zombie)
    assert world.outcomes == ["ambiguous", "in_progress"]
    world.target.findings.clear()
    world.target.findings.append(Finding(Verdict.REJECTED, "operation_failed"))
    world.target.findings.extend([Finding(Verdict.UNKNOWN, "busy")] * 5)
    world.clock.seconds += 60
    await world.run()
    rejected = [e for e in world.snapshot.facts.evidence if e.verdict is Verdict.REJECTED]
    assert [e.covers_through for e in rejected] == [2]
    # Attempt 1 is in doubt still, and is looked up by its key and no longer by the operation.
    assert [c.operation for c in world.target.looked][-2:] == ["op-2", None]


async def test_an_operation_that_was_cleared_is_not_asked_about_a_later_attempt() -> None:
    world = polling("reconcilable")
    await world.submit()
    world.target.answers.append(ACCEPTED)
    await world.dispatch(1, 1)
    world.clock.seconds += 100
    await world.evidence(Verdict.NOT_COMMITTED)
    world.target.answers.append(lost_answer())
    seen = await world.dispatch(world.snapshot.intent.version, 2)
    assert world.outcomes == ["in_progress", "ambiguous"]
    await world.probe(seen.version)
    assert world.target.looked[-1].operation is None


async def test_the_operation_that_is_still_open_is_the_one_that_is_asked() -> None:
    world = polling()
    await world.submit()

    async def take_over() -> None:
        world.clock.seconds += 60
        world.target.answers.appendleft(replace(ACCEPTED, operation="op-2"))
        await world.dispatch(world.snapshot.intent.version, 2)
        world.target.findings.append(Finding(Verdict.REJECTED, "operation_failed"))
        await world.probe(world.snapshot.intent.version)

    world.target.while_sending = take_over
    world.target.answers.append(replace(ACCEPTED, operation="op-1"))
    seen = await world.dispatch(1, 1)
    world.target.findings.append(Finding(Verdict.COMMITTED, "operation_succeeded", ("sim_1",)))
    world.clock.seconds += 1
    await world.run(ports=None)
    assert [c.operation for c in world.target.looked] == ["op-2", "op-1"]
    assert world.state == ("succeeded", "committed")
    assert seen.next in {Next.PROBE, Next.WAIT}


# The probe ----------------------------------------------------------------------------------------


async def test_an_erased_argument_never_looks_like_a_mismatch(reconcilable: World) -> None:
    await unknown(reconcilable)
    reconcilable.target.entries.append(reconcilable.entry())
    reconcilable.erase("arguments")
    version = reconcilable.snapshot.intent.version
    with pytest.raises(Exception, match="arguments"):
        await reconcilable.probe(version)
    assert reconcilable.target.looked == []
    assert reconcilable.snapshot.intent.version == version


@pytest.mark.parametrize("trouble", [Trouble.UNAVAILABLE, Trouble.LOST_UNDONE])
async def test_a_probe_that_could_not_be_begun_asks_nothing(
    reconcilable: World, trouble: Trouble
) -> None:
    await unknown(reconcilable)
    reconcilable.store.troubles.append(trouble)
    with pytest.raises(Exception, match="scripted"):
        await reconcilable.probe(reconcilable.snapshot.intent.version)
    assert reconcilable.target.looked == []


async def test_a_probe_whose_finding_is_lost_is_asked_again(reconcilable: World) -> None:
    await unknown(reconcilable)
    reconcilable.target.entries.append(reconcilable.entry())
    reconcilable.store.troubles.extend([Trouble.NONE, Trouble.UNAVAILABLE])
    with pytest.raises(Exception, match="scripted"):
        await reconcilable.probe(reconcilable.snapshot.intent.version)
    assert reconcilable.snapshot.facts.evidence == ()
    await reconcilable.run_until_at_rest()
    assert reconcilable.state == ("succeeded", "committed")


async def test_evidence_bears_the_time_at_which_the_probe_began(reconcilable: World) -> None:
    await unknown(reconcilable)
    began_at = reconcilable.clock.now()

    async def be_slow() -> None:
        reconcilable.clock.seconds += 20

    reconcilable.target.while_looking = be_slow
    await reconcilable.probe(reconcilable.snapshot.intent.version)
    (evidence,) = reconcilable.snapshot.facts.evidence
    assert evidence.began_at == began_at


async def test_the_first_conclusive_probe_begins_after_the_bound(reconcilable: World) -> None:
    """No absence that was seen earlier permits a second attempt, however late it was recorded."""
    await unknown(reconcilable)
    recorded_at = reconcilable.snapshot.facts.attempts[0].recorded_at
    assert recorded_at is not None
    await reconcilable.run_until_at_rest()
    first, second = reconcilable.snapshot.facts.attempts
    decisive = [e for e in reconcilable.snapshot.facts.evidence if e.began_at <= second.started_at]
    assert (decisive[-1].began_at - recorded_at).total_seconds() > 60
    assert all((e.began_at - recorded_at).total_seconds() <= 60 for e in decisive[:-1])
    assert first.outcome is Outcome.AMBIGUOUS
    assert reconcilable.state == ("succeeded", "committed")


async def test_absence_that_began_before_the_bound_permits_nothing(reconcilable: World) -> None:
    await unknown(reconcilable)

    async def be_slow() -> None:
        reconcilable.clock.seconds += 200  # it ends long after the bound

    reconcilable.clock.seconds += 59
    reconcilable.target.while_looking = be_slow
    version = reconcilable.snapshot.intent.version
    await reconcilable.probe(version)
    assert reconcilable.snapshot.facts.evidence[-1].verdict is Verdict.NOT_COMMITTED
    seen = await reconcilable.reserve()
    assert seen.next is Next.PROBE


async def test_an_attempt_that_begins_during_a_probe_is_not_covered_by_it(
    reconcilable: World,
) -> None:
    await unknown(reconcilable)
    reconcilable.clock.seconds += 61

    async def overtake() -> None:
        await reconcilable.evidence(Verdict.NOT_COMMITTED)
        reconcilable.target.answers.append(lost_answer())
        await reconcilable.dispatch(reconcilable.snapshot.intent.version, 2)

    reconcilable.target.while_looking = overtake
    reconcilable.clock.seconds += 61
    await reconcilable.probe(reconcilable.snapshot.intent.version)
    assert reconcilable.outcomes == ["ambiguous", "ambiguous"]
    assert reconcilable.snapshot.facts.evidence[-1].covers_through == 1
    assert reconcilable.snapshot.intent.state is not EffectState.RETRYABLE


async def test_two_probes_at_once_do_no_harm(reconcilable: World) -> None:
    await unknown(reconcilable)
    reconcilable.target.entries.append(reconcilable.entry())

    async def overtake() -> None:
        await reconcilable.probe(reconcilable.snapshot.intent.version)

    reconcilable.target.while_looking = overtake
    await reconcilable.probe(reconcilable.snapshot.intent.version)
    assert reconcilable.state == ("succeeded", "committed")
    events = [e.advance.kind for e in reconcilable.memory.events(reconcilable.effect_id)]
    assert events.count("late_fact") == 1
