"""What persons say: a yes or no before the first attempt, and what they may conclude."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from effect_broker.protocol import approval, resolution
from effect_broker.protocol.approval import Approval, Judged
from effect_broker.protocol.ports import AddApproval, Advance, AskToCancel, Change, Snapshot
from effect_broker.protocol.resolution import Permitted, Refusal, Resolution, Resolved
from effect_contracts.facts import Conclusion, EffectState, Hold
from protocol.world import World, lost_answer

TICK = timedelta(microseconds=1)


def approving(**changes: Any) -> World:
    return World("idempotent", oversight={"approval_valid_seconds": 60, **changes})


def said(snapshot: Snapshot, approved: bool, request_hash: bytes | None = None) -> Approval:
    content = b'{"reason":"read"}'
    return Approval(
        decision_id="d-1",
        approved=approved,
        request_hash=request_hash or snapshot.intent.request_hash,
        content=content,
        digest=hashlib.sha256(content).digest(),
        actor="operator:test",
    )


def judged(snapshot: Snapshot, approved: bool, **more: Any) -> Change[Judged]:
    return approval.judge(snapshot, said(snapshot, approved, **more), receipt_id=uuid4())


def advance_of(change: Change[Any]) -> Advance:
    (advance,) = [write for write in change.writes if isinstance(write, Advance)]
    return advance


# Approvals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("approved", [True, False])
async def test_a_yes_frees_the_first_attempt_and_a_no_withdraws_it(approved: bool) -> None:
    world = approving()
    await world.submit()
    snapshot = world.snapshot
    change = judged(snapshot, approved)
    assert change.result.refusal is None
    (stored,) = [write for write in change.writes if isinstance(write, AddApproval)]
    assert (stored.approved, stored.at) == (approved, snapshot.now)
    advance = advance_of(change)
    assert advance.kind == ("approved" if approved else "denied")
    assert advance.metadata["decision_id"] == "d-1"
    cancels = [write for write in change.writes if isinstance(write, AskToCancel)]
    assert cancels == ([] if approved else [AskToCancel(snapshot.now)])
    expected = EffectState.PREPARED if approved else EffectState.CANCELLED
    assert change.result.state is advance.state is expected
    assert advance.next_action_at == (snapshot.now if approved else None)


@pytest.mark.parametrize("approved", [True, False])
async def test_nobody_judges_what_waits_for_nobody(approved: bool, idempotent: World) -> None:
    await idempotent.submit()
    waiting = approving()
    await waiting.submit()
    fresh = waiting.snapshot
    final = replace(fresh, intent=replace(fresh.intent, state=EffectState.FAILED_FINAL))
    cancelled = replace(fresh, intent=replace(fresh.intent, state=EffectState.CANCELLED))
    tried = replace(fresh, attempts=(await in_doubt(World("idempotent"))).attempts)
    for snapshot in (idempotent.snapshot, final, cancelled, tried):
        change = judged(snapshot, approved)
        assert change == Change(Judged(approval.Refusal.NOT_WAITING, snapshot.intent.state))


@pytest.mark.parametrize("other", [bytes(32), b"\xff" * 32])
async def test_a_word_on_another_request_changes_nothing(other: bytes) -> None:
    world = approving()
    await world.submit()
    change = judged(world.snapshot, True, request_hash=other)
    assert change == Change(Judged(approval.Refusal.ANOTHER_REQUEST, EffectState.PREPARED))


@pytest.mark.parametrize("approved", [True, False])
async def test_what_was_failed_meanwhile_is_not_denied_again(approved: bool) -> None:
    world = approving()
    await world.submit()
    snapshot = world.snapshot
    failed = replace(snapshot, facts=replace(snapshot.facts, failed_by_operator=True))
    change = judged(failed, approved)
    assert (change.result.refusal is approval.Refusal.NOT_WAITING) is not approved


# Resolutions --------------------------------------------------------------------------------------


async def in_doubt(world: World) -> Snapshot:
    await world.submit()
    world.target.answers.append(lost_answer())
    await world.dispatch(1, 1)
    return world.snapshot


def resolved(
    snapshot: Snapshot, *, step: int = 0, proposed_by: str | None = None
) -> Change[Resolved]:
    content = b'{"reason":"seen"}'
    stated = Resolution(
        decision_id="d-1",
        conclusion=Conclusion.FAILED,
        expected_version=snapshot.intent.version + step,
        observed_at=snapshot.now,
        external_id=None,
        reason="seen",
        content=content,
        digest=hashlib.sha256(content).digest(),
        actor="operator:test",
        proposed_by=proposed_by,
    )
    return resolution.resolve(snapshot, stated, evidence_id=uuid4(), receipt_id=uuid4())


@pytest.mark.parametrize("step", [-1, 1])
async def test_a_conclusion_on_another_version_is_stale(unsafe: World, step: int) -> None:
    snapshot = await in_doubt(unsafe)
    assert resolved(snapshot, step=step).result.refusal is Refusal.STALE
    assert resolved(snapshot).result.refusal is None


@pytest.mark.parametrize("proposed_by", [None, "operator:first"])
@pytest.mark.parametrize("asks", [True, False, None])
async def test_a_second_person_is_needed_only_where_the_contract_asks(
    asks: bool | None, proposed_by: str | None
) -> None:
    more: dict[str, Any] = {} if asks is None else {"oversight": {"second_person": asks}}
    snapshot = await in_doubt(World("unsafe", **more))
    change = resolved(snapshot, proposed_by=proposed_by)
    needed = bool(asks) and proposed_by is None
    assert (change.result.refusal is Refusal.NEEDS_SECOND_PERSON) is needed
    if not needed:
        assert advance_of(change).metadata.get("proposed_by") == proposed_by
        assert ("proposed_by" in advance_of(change).metadata) is (proposed_by is not None)


async def test_nobody_is_asked_of_what_is_final_or_under_way(reconcilable: World) -> None:
    await reconcilable.submit()
    fresh = reconcilable.snapshot
    assert resolution.permitted(fresh) == ()
    parked = replace(fresh, parked=True)
    assert resolution.permitted(parked) != ()
    for state in EffectState:
        final = state in {EffectState.SUCCEEDED, EffectState.FAILED_FINAL,
                          EffectState.CANCELLED, EffectState.COMPENSATED}  # fmt: skip
        asked = state in {EffectState.OUTCOME_UNKNOWN, EffectState.MANUAL_REVIEW,
                          EffectState.RECONCILING}  # fmt: skip
        for is_parked in (False, True):
            there = replace(fresh, intent=replace(fresh.intent, state=state), parked=is_parked)
            expected = not final and (asked or is_parked)
            assert bool(resolution.permitted(there)) is expected, (state, is_parked)


async def test_absence_may_be_stated_from_the_moment_that_counts(reconcilable: World) -> None:
    snapshot = await in_doubt(reconcilable)
    recorded_at = snapshot.facts.attempts[0].recorded_at
    assert recorded_at is not None
    counts_from = recorded_at + timedelta(seconds=60)
    expected = (
        Permitted(Conclusion.COMMITTED),
        Permitted(Conclusion.NOT_COMMITTED, counts_from),
        Permitted(Conclusion.FAILED),
    )
    assert resolution.permitted(snapshot) == expected
    later = replace(snapshot, now=counts_from + timedelta(seconds=9))
    assert resolution.permitted(later) == expected


@pytest.mark.parametrize(
    ("reason", "helps"),
    [("paused", False), ("a_reason", True), ("z_reason", True), ("outcome_unknown", True)],
)
async def test_absence_is_offered_only_where_something_follows_from_it(
    reconcilable: World, reason: str, helps: bool
) -> None:
    """Held, the effect would wait for a person with the same words as before."""
    snapshot = await in_doubt(reconcilable)
    intent = replace(snapshot.intent, state=EffectState.MANUAL_REVIEW, reason=reason)
    facts = replace(snapshot.facts, holds=frozenset({Hold.PAUSED}))
    there = replace(snapshot, intent=intent, facts=facts, parked=True)
    stated = {found.conclusion for found in resolution.permitted(there)}
    assert (Conclusion.NOT_COMMITTED in stated) is helps


async def test_absence_that_ends_an_unsafe_effect_is_offered_whatever_its_reason(
    unsafe: World,
) -> None:
    """It settles, so it is help even if it is called by the stored reason."""
    snapshot = await in_doubt(unsafe)
    for reason in ("outcome_unknown", "proved_not_committed"):
        there = replace(snapshot, intent=replace(snapshot.intent, reason=reason))
        stated = {found.conclusion for found in resolution.permitted(there)}
        assert Conclusion.NOT_COMMITTED in stated
