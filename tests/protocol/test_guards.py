"""The guards of the plans one by one: each is a second lock on a door that has another."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest

from effect_adapters.base import Finding
from effect_broker.protocol import changes
from effect_broker.protocol.changes import Grant, GrantKind
from effect_broker.protocol.conclusion import Next, needs_writing, view
from effect_broker.protocol.ports import Advance, Change, Snapshot
from effect_contracts.facts import EffectState, EvidenceSource, Verdict
from protocol.world import TENANT, Trouble, World, lost_answer

IDENTITY = "simulated:ledger#acct_1"


def grant(snapshot: Snapshot, ordinal: int = 1) -> Change[Grant]:
    """Transaction 1 on a snapshot, by one who has read its version."""
    return changes.grant_attempt(
        snapshot,
        identity=IDENTITY,
        expected_version=snapshot.intent.version,
        ordinal=ordinal,
        attempt_id=uuid4(),
        executor_id="worker-1",
    )


async def test_an_ordinal_that_exists_is_owned_by_another_and_nothing_is_written(
    idempotent: World,
) -> None:
    await idempotent.submit()
    idempotent.target.answers.append(lost_answer())
    await idempotent.dispatch(1, 1)
    idempotent.clock.seconds += 60
    assert grant(idempotent.snapshot, 1) == Change(Grant(GrantKind.OWNED))
    assert grant(idempotent.snapshot, 2).result.kind is GrantKind.GRANTED


@pytest.mark.parametrize("state", ["succeeded", "failed_final", "cancelled", "compensated"])
async def test_a_final_effect_gets_no_attempt_whatever_its_facts_say(
    idempotent: World, state: str
) -> None:
    await idempotent.submit()
    intent = replace(idempotent.snapshot.intent, state=EffectState(state))
    final = replace(idempotent.snapshot, intent=intent)
    assert grant(final) == Change(Grant(GrantKind.STALE))


async def test_without_a_stored_request_there_is_no_permission(idempotent: World) -> None:
    await idempotent.submit()
    assert grant(idempotent.snapshot).result.kind is GrantKind.GRANTED
    assert grant(replace(idempotent.snapshot, wire=None)) == Change(Grant(GrantKind.STALE))


async def test_a_probe_that_is_overtaken_before_its_lock_asks_nothing(reconcilable: World) -> None:
    await reconcilable.submit()
    reconcilable.target.answers.append(lost_answer())
    seen = await reconcilable.dispatch(1, 1)
    assert seen.next is Next.PROBE

    async def overtake() -> None:
        await reconcilable.evidence(Verdict.UNKNOWN)

    reconcilable.store.before = overtake
    assert (await reconcilable.probe(seen.version)).next is Next.RELOAD
    assert reconcilable.target.looked == []


async def test_a_fence_that_is_overtaken_before_its_lock_is_not_written(
    transactional: World,
) -> None:
    await transactional.submit()
    transactional.store.troubles.extend([Trouble.NONE, Trouble.LOST_UNDONE])
    await transactional.dispatch(1, 1)
    transactional.clock.seconds += 31
    seen = await transactional.reserve()
    assert seen.next is Next.PROBE

    async def overtake() -> None:
        await transactional.evidence(Verdict.UNKNOWN)

    transactional.store.before = overtake
    assert (await transactional.probe(seen.version)).next is Next.RELOAD
    assert transactional.memory.fences(transactional.effect_id) == ()


async def test_the_first_wire_stays(idempotent: World) -> None:
    await idempotent.submit()
    before = idempotent.snapshot
    other = idempotent.vault.seal(TENANT.tenant_id, idempotent.effect_id, "wire", b"other")
    plan = changes.bind_wire(before, wire=other, wire_digest=bytes(32))
    assert plan == Change(None)


async def test_what_is_stored_already_is_written_again_only_if_it_says_something_else(
    idempotent: World,
) -> None:
    """Waits differ by their time alone, parks by their reason alone."""
    await idempotent.submit()
    idempotent.target.answers.append(lost_answer())
    await idempotent.dispatch(1, 1)
    snapshot = idempotent.snapshot
    _, decision = view(snapshot, IDENTITY)
    assert decision is not None
    assert not needs_writing(snapshot, decision)
    for changed in (
        replace(snapshot.intent, next_action_at=idempotent.clock.now()),
        replace(snapshot.intent, reason="settling"),
        replace(snapshot.intent, state=EffectState.RECONCILING),
    ):
        assert needs_writing(replace(snapshot, intent=changed), decision)


async def test_a_loss_is_written_even_if_nothing_else_changes(unsafe: World) -> None:
    """A parked effect whose open attempt has run out says the same as before, but for that."""
    await unsafe.submit()

    def die() -> None:
        raise KeyboardInterrupt

    unsafe.on_reach["after_attempt_commit"] = die
    with pytest.raises(KeyboardInterrupt):
        await unsafe.dispatch(1, 1)
    unsafe.clock.seconds += 31
    _, decision = view(unsafe.snapshot, IDENTITY)
    assert decision is not None
    assert decision.lost == (1,)
    intent = replace(
        unsafe.snapshot.intent,
        state=EffectState.OUTCOME_UNKNOWN,
        reason="outcome_unknown",
        next_action_at=None,
    )
    assert needs_writing(replace(unsafe.snapshot, intent=intent), decision)


async def test_a_late_commit_contradicts_an_operators_failure(unsafe: World) -> None:
    await unsafe.submit()
    unsafe.target.answers.append(lost_answer())
    await unsafe.dispatch(1, 1)
    before = unsafe.snapshot
    ended = replace(
        before,
        intent=replace(before.intent, state=EffectState.FAILED_FINAL),
        facts=replace(before.facts, failed_by_operator=True),
    )
    for verdict, contradicts in ((Verdict.COMMITTED, True), (Verdict.UNKNOWN, False)):
        change = changes.add_evidence(
            ended,
            evidence_id=uuid4(),
            source=EvidenceSource.WEBHOOK,
            finding=Finding(verdict, "told"),
            began_at=ended.now,
            covers_through=1,
            target_identity=None,
            result=None,
            result_digest=None,
            receipt_id=uuid4(),
            actor="webhook",
        )
        advance = change.writes[-1]
        assert isinstance(advance, Advance)
        assert advance.metadata["contradicts"] is contradicts


async def test_a_requeue_expects_the_generation_that_had_no_run(idempotent: World) -> None:
    await idempotent.submit()
    await idempotent.requeue_due()
    snapshot = idempotent.snapshot
    assert changes.requeue(snapshot, expected_generation=1, actor="test") == Change(False)
    assert changes.requeue(snapshot, expected_generation=2, actor="test").result
