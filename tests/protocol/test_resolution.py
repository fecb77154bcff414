"""What a person concludes: design §4, "Operator". Three conclusions, and none is "try again"."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from functools import partial
from uuid import uuid4

import pytest

from effect_adapters.base import Answer
from effect_broker.protocol import resolution as rules
from effect_broker.protocol.resolution import Refusal, Resolution, Resolved
from effect_contracts.facts import Alert, Conclusion, EvidenceSource, Hold, Outcome, Verdict
from protocol.world import TENANT, World, lost_answer, not_sent


async def resolve(
    world: World,
    conclusion: Conclusion,
    *,
    observed_at: datetime | None = None,
    version: int | None = None,
    external_id: str | None = None,
    decision_id: str = "d-1",
) -> Resolved:
    """State a conclusion, as one who has just looked."""
    content = b'{"reason":"seen"}'
    stated = Resolution(
        decision_id=decision_id,
        conclusion=conclusion,
        expected_version=version or world.snapshot.intent.version,
        observed_at=observed_at or world.clock.now(),
        external_id=external_id,
        reason="seen",
        content=content,
        digest=hashlib.sha256(content).digest(),
        actor="operator:test",
    )
    plan = partial(rules.resolve, resolution=stated, evidence_id=uuid4(), receipt_id=uuid4())
    return await world.memory.change(TENANT.tenant_id, world.effect_id, plan)


async def in_doubt(world: World) -> None:
    """Lose the answer of the first attempt."""
    await world.submit()
    world.target.answers.append(lost_answer())
    await world.dispatch(1, 1)


async def test_proof_of_success_settles_on_the_persons_word(unsafe: World) -> None:
    await in_doubt(unsafe)
    resolved = await resolve(unsafe, Conclusion.COMMITTED, external_id="ch_9")
    assert resolved.refusal is None
    assert unsafe.state == ("succeeded", "committed")
    assert unsafe.receipt is not None
    assert (unsafe.receipt["source"], unsafe.receipt["external_id"]) == ("operator", "ch_9")
    event = unsafe.memory.events(unsafe.effect_id)[-1].advance
    assert (event.kind, event.actor) == ("resolved", "operator:test")


async def test_an_unsafe_effect_that_did_not_happen_is_over_and_never_sent_again(
    unsafe: World,
) -> None:
    await in_doubt(unsafe)
    unsafe.clock.seconds += 1
    assert (await resolve(unsafe, Conclusion.NOT_COMMITTED)).refusal is None
    assert unsafe.state == ("failed_final", "proved_not_committed")
    assert len(unsafe.target.sent) == 1


async def test_a_reconcilable_effect_that_did_not_happen_is_sent_again(reconcilable: World) -> None:
    await in_doubt(reconcilable)
    reconcilable.clock.seconds += 61
    assert (await resolve(reconcilable, Conclusion.NOT_COMMITTED)).refusal is None
    assert reconcilable.state[0] == "retryable"
    await reconcilable.run_until_at_rest()
    assert reconcilable.state == ("succeeded", "committed")
    assert len(reconcilable.target.sent) == 2


async def test_final_failure_ends_it_whatever_the_class(unsafe: World) -> None:
    await in_doubt(unsafe)
    assert (await resolve(unsafe, Conclusion.FAILED)).refusal is None
    assert unsafe.state == ("failed_final", "failed_by_operator")
    assert unsafe.receipt is not None


async def test_absence_that_was_seen_too_early_is_refused_with_the_time_from_which_it_counts(
    reconcilable: World,
) -> None:
    await in_doubt(reconcilable)
    recorded_at = reconcilable.snapshot.facts.attempts[0].recorded_at
    assert recorded_at is not None
    bound_at = recorded_at + timedelta(seconds=60)
    reconcilable.clock.seconds += 100
    before = reconcilable.snapshot
    for observed_at in (recorded_at, bound_at):
        resolved = await resolve(reconcilable, Conclusion.NOT_COMMITTED, observed_at=observed_at)
        assert (resolved.refusal, resolved.counts_from) == (Refusal.TOO_EARLY, bound_at)
    assert reconcilable.snapshot.intent == before.intent
    late = bound_at + timedelta(microseconds=1)
    assert (await resolve(reconcilable, Conclusion.NOT_COMMITTED, observed_at=late)).refusal is None


async def test_without_a_bound_absence_counts_once_nothing_can_be_on_the_wire(
    unsafe: World,
) -> None:
    """The process that sent has died; its bytes may leave until the deadline and the margin."""
    await unsafe.submit()

    def die() -> None:
        raise KeyboardInterrupt

    unsafe.on_reach["after_attempt_commit"] = die
    with pytest.raises(KeyboardInterrupt):
        await unsafe.dispatch(1, 1)
    unsafe.clock.seconds += 40
    await unsafe.run()
    assert unsafe.state == ("outcome_unknown", "outcome_unknown")
    deadline_at = unsafe.snapshot.facts.attempts[0].deadline_at
    resolved = await resolve(unsafe, Conclusion.NOT_COMMITTED, observed_at=deadline_at)
    assert resolved.refusal is Refusal.TOO_EARLY
    assert (await resolve(unsafe, Conclusion.NOT_COMMITTED)).refusal is None


async def test_nobody_observes_the_future(unsafe: World) -> None:
    await in_doubt(unsafe)
    later = unsafe.clock.now() + timedelta(seconds=1)
    resolved = await resolve(unsafe, Conclusion.COMMITTED, observed_at=later)
    assert resolved.refusal is Refusal.IN_THE_FUTURE


async def test_of_two_persons_one_decides(unsafe: World) -> None:
    await in_doubt(unsafe)
    version = unsafe.snapshot.intent.version
    await unsafe.evidence(Verdict.UNKNOWN)
    resolved = await resolve(unsafe, Conclusion.FAILED, version=version)
    assert resolved.refusal is Refusal.STALE
    assert resolved.version == version + 1


async def test_nothing_is_concluded_of_an_attempt_that_may_still_be_sending(unsafe: World) -> None:
    await unsafe.submit()
    resolved: list[Resolved] = []

    async def decide_meanwhile() -> None:
        resolved.append(await resolve(unsafe, Conclusion.FAILED))

    unsafe.target.while_sending = decide_meanwhile
    await unsafe.dispatch(1, 1)
    assert resolved[0].refusal is Refusal.NOT_YET
    assert unsafe.state == ("succeeded", "committed")


async def test_what_is_final_stays(unsafe: World) -> None:
    await unsafe.submit()
    await unsafe.run()
    assert (await resolve(unsafe, Conclusion.FAILED)).refusal is Refusal.FINAL
    assert unsafe.state == ("succeeded", "committed")


async def test_an_effect_that_waits_for_nobody_is_left_to_the_broker(idempotent: World) -> None:
    await idempotent.submit()
    idempotent.target.answers.append(not_sent())
    await idempotent.dispatch(1, 1)
    assert idempotent.state[0] == "retryable"
    assert (await resolve(idempotent, Conclusion.FAILED)).refusal is Refusal.NOT_YET


async def test_a_held_effect_can_be_ended(idempotent: World) -> None:
    idempotent.memory.holds.add(Hold.PAUSED)
    await idempotent.submit()
    await idempotent.run()
    assert idempotent.memory.parked(idempotent.effect_id)
    assert (await resolve(idempotent, Conclusion.FAILED)).refusal is None
    assert idempotent.state == ("failed_final", "failed_by_operator")


@pytest.mark.parametrize("outcome", [Outcome.KEY_CONFLICT, Outcome.PARTIAL])
async def test_absence_is_no_way_out_of_a_conflict(idempotent: World, outcome: Outcome) -> None:
    """The contract permits no redispatch there; to accept it would look like help."""
    await idempotent.submit()
    idempotent.target.answers.append(Answer(outcome, "said"))
    await idempotent.dispatch(1, 1)
    idempotent.clock.seconds += 1000
    before = idempotent.snapshot
    resolved = await resolve(idempotent, Conclusion.NOT_COMMITTED)
    assert resolved.refusal is Refusal.NOT_PERMITTED
    assert idempotent.snapshot.intent == before.intent
    assert (await resolve(idempotent, Conclusion.FAILED)).refusal is None


async def test_a_person_says_which_of_two_objects_counts(reconcilable: World) -> None:
    await in_doubt(reconcilable)
    await reconcilable.evidence(Verdict.COMMITTED, "sim_1", "sim_2", source=EvidenceSource.WEBHOOK)
    assert reconcilable.state == ("manual_review", "contract_violation")
    resolved = await resolve(reconcilable, Conclusion.COMMITTED, external_id="sim_2")
    assert resolved.refusal is None
    assert reconcilable.state == ("succeeded", "committed")
    assert reconcilable.receipt is not None
    assert reconcilable.receipt["external_id"] == "sim_2"


async def test_a_commit_after_a_persons_failure_is_an_alert(unsafe: World) -> None:
    await in_doubt(unsafe)
    await resolve(unsafe, Conclusion.FAILED)
    receipt = unsafe.receipt
    await unsafe.evidence(Verdict.COMMITTED, "ch_1")
    assert unsafe.receipt == receipt
    assert unsafe.memory.alert(unsafe.effect_id) is Alert.LATE_CONTRADICTION


async def test_what_was_seen_before_the_effect_existed_does_not_prove_that_it_happened(
    unsafe: World,
) -> None:
    """A clock read in another zone, at 3 a.m.; the minute of the submit counts whole."""
    unsafe.clock.seconds += 90.5
    await in_doubt(unsafe)
    before = unsafe.snapshot
    minute = before.intent.created_at.replace(second=0, microsecond=0)
    assert minute < before.intent.created_at
    last = minute - timedelta(microseconds=1)
    for observed_at in (last, last - timedelta(hours=1)):
        resolved = await resolve(unsafe, Conclusion.COMMITTED, observed_at=observed_at)
        assert (resolved.refusal, resolved.counts_from) == (Refusal.TOO_EARLY, last)
    assert unsafe.snapshot.intent == before.intent
    assert (await resolve(unsafe, Conclusion.COMMITTED, observed_at=minute)).refusal is None


async def test_an_end_by_a_persons_will_rests_on_no_moment(unsafe: World) -> None:
    await in_doubt(unsafe)
    long_ago = unsafe.snapshot.intent.created_at - timedelta(days=1)
    assert (await resolve(unsafe, Conclusion.FAILED, observed_at=long_ago)).refusal is None
