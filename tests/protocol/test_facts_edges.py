"""The edges of what follows from a fact: the very moment, the very row, one reason or another."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import pytest

from effect_adapters.base import Answer, Finding
from effect_broker.protocol import changes, conclusion
from effect_broker.protocol.conclusion import Next, View, needs_writing, view
from effect_broker.protocol.ports import AttemptRow, Change, EvidenceRow, FreezeContract, Snapshot
from effect_contracts.facts import (
    CODE_FAILURE_NOTICE,
    CODE_SEVERAL_MATCHES,
    Alert,
    EffectState,
    Evidence,
    EvidenceSource,
    Hold,
    Outcome,
    Verdict,
)
from protocol.world import World, lost_answer

IDENTITY = "simulated:ledger#acct_1"


async def in_doubt(world: World) -> Snapshot:
    """An effect whose only answer was lost."""
    await world.submit()
    world.target.answers.append(lost_answer())
    await world.dispatch(1, 1)
    return world.snapshot


@pytest.mark.parametrize("other", ["a:before#it", "z:after#it"])
async def test_another_target_holds_the_effect_whatever_its_name(
    idempotent: World, other: str
) -> None:
    snapshot = await in_doubt(idempotent)
    assert snapshot.intent.target_identity == IDENTITY
    assert conclusion.held_facts(snapshot, IDENTITY).holds == frozenset()
    assert conclusion.held_facts(snapshot, other).holds == {Hold.TARGET_CHANGED}
    both = replace(snapshot.facts, holds=frozenset({Hold.PAUSED, Hold.TARGET_CHANGED}))
    held = conclusion.held_facts(replace(snapshot, facts=both), other)
    assert held.holds == {Hold.PAUSED, Hold.TARGET_CHANGED}


@pytest.mark.parametrize("changed", [0, 1, 2])
async def test_an_outcome_becomes_that_of_its_own_attempt_alone(
    idempotent: World, changed: int
) -> None:
    snapshot = await in_doubt(idempotent)
    first = snapshot.attempts[0]
    rows = tuple(
        AttemptRow(
            **{
                **{name: getattr(first, name) for name in AttemptRow.__slots__},
                "attempt_id": UUID(int=number + 1),
                "fact": replace(first.fact, ordinal=number + 1),
            }
        )
        for number in range(3)
    )
    known = replace(rows[changed], fact=replace(rows[changed].fact, outcome=Outcome.NOT_SENT))
    after = conclusion.with_attempt(replace(snapshot, attempts=rows), known)
    ordinals = [a.fact.ordinal for a in after.attempts]
    outcomes = [a.fact.outcome is Outcome.NOT_SENT for a in after.attempts]
    assert ordinals == [1, 2, 3]
    assert outcomes == [place == changed for place in range(3)]
    assert after.facts.attempts == tuple(a.fact for a in after.attempts)


@pytest.mark.parametrize(
    ("seconds", "source", "counted"),
    [
        (-1, EvidenceSource.PROBE, False),
        (0, EvidenceSource.PROBE, False),
        (1, EvidenceSource.PROBE, True),
        (100, EvidenceSource.PROBE, True),
        (1, EvidenceSource.OPERATOR, False),
        (1, EvidenceSource.WEBHOOK, False),
        (1, EvidenceSource.TRANSACTION, False),
    ],
)
async def test_a_look_up_counts_if_it_began_after_the_latest_attempt(
    reconcilable: World, seconds: float, source: EvidenceSource, counted: bool
) -> None:
    snapshot = await in_doubt(reconcilable)
    began_at = snapshot.attempts[-1].fact.started_at + timedelta(seconds=seconds)
    fact = Evidence("e1", source, Verdict.UNKNOWN, began_at, 1)
    after = conclusion.with_evidence(snapshot, EvidenceRow(fact))
    assert after.facts.probes_since_attempt == (1 if counted else 0)
    assert after.facts.probe_began_at == (began_at if counted else None)
    assert after.evidence == ()  # it proves nothing
    later = conclusion.with_evidence(after, EvidenceRow(replace(fact, verdict=Verdict.MISMATCH)))
    assert later.facts.probes_since_attempt == (2 if counted else 0)
    assert [row.fact.verdict for row in later.evidence] == [Verdict.MISMATCH]
    assert later.facts.evidence == tuple(row.fact for row in later.evidence)


async def test_the_latest_look_up_is_the_one_that_began_last(reconcilable: World) -> None:
    snapshot = await in_doubt(reconcilable)
    started_at = snapshot.attempts[-1].fact.started_at
    for seconds in (5, 2):
        fact = Evidence(
            f"e{seconds}",
            EvidenceSource.PROBE,
            Verdict.UNKNOWN,
            started_at + timedelta(seconds=seconds),
            1,
        )
        snapshot = conclusion.with_evidence(snapshot, EvidenceRow(fact))
    assert snapshot.facts.probe_began_at == started_at + timedelta(seconds=5)


@pytest.mark.parametrize(
    ("seconds", "following"), [(-1, Next.PROBE), (0, Next.PROBE), (1, Next.WAIT)]
)
async def test_a_final_effect_is_counted_when_its_time_has_come(
    reconcilable: World, seconds: float, following: Next
) -> None:
    await reconcilable.submit()
    await reconcilable.run()
    snapshot = reconcilable.snapshot
    assert snapshot.intent.state is EffectState.SUCCEEDED
    at = snapshot.now + timedelta(seconds=seconds)
    seen, decision = view(
        replace(snapshot, intent=replace(snapshot.intent, next_action_at=at)), IDENTITY
    )
    assert decision is None
    assert (seen.next, seen.at) == (following, at)


@pytest.mark.parametrize("stored", ["a_reason", "z_reason"])
async def test_another_reason_is_written_whatever_its_name(unsafe: World, stored: str) -> None:
    snapshot = await in_doubt(unsafe)
    _, decision = view(snapshot, IDENTITY)
    assert decision is not None
    assert not needs_writing(snapshot, decision)
    intent = replace(snapshot.intent, reason=stored)
    assert needs_writing(replace(snapshot, intent=intent), decision)


# After the end ------------------------------------------------------------------------------------


def fact(
    snapshot: Snapshot,
    source: EvidenceSource,
    verdict: Verdict,
    code: str = "seen",
    ids: tuple[str, ...] = (),
    began_at: datetime | None = None,
) -> Change[View]:
    """What a fact about the effect as it stands would write."""
    return changes.add_evidence(
        snapshot,
        evidence_id=uuid4(),
        source=source,
        finding=Finding(verdict, code, ids),
        began_at=began_at or snapshot.now,
        covers_through=len(snapshot.attempts),
        target_identity=IDENTITY,
        result=None,
        result_digest=None,
        receipt_id=uuid4(),
        actor="worker:test",
    )


def frozen(change: Change[View]) -> bool:
    return any(isinstance(write, FreezeContract) for write in change.writes)


def ended(snapshot: Snapshot, state: EffectState) -> Snapshot:
    """The effect, settled in that state, long after the bound of its look-ups."""
    return replace(
        snapshot,
        intent=replace(snapshot.intent, state=state, next_action_at=None),
        now=snapshot.now + timedelta(seconds=100_000),
    )


CONTRADICTION = Alert.LATE_CONTRADICTION
TOLD, LOOKED, PERSON = EvidenceSource.WEBHOOK, EvidenceSource.PROBE, EvidenceSource.OPERATOR


@pytest.mark.parametrize(
    ("source", "verdict", "code", "alert", "freezes"),
    [
        (TOLD, Verdict.COMMITTED, "seen", None, False),
        (TOLD, Verdict.MISMATCH, "seen", CONTRADICTION, False),
        (TOLD, Verdict.UNKNOWN, CODE_FAILURE_NOTICE, CONTRADICTION, False),
        (TOLD, Verdict.UNKNOWN, "seen", None, False),
        (PERSON, Verdict.MISMATCH, "seen", None, False),
        (LOOKED, Verdict.COMMITTED, "seen", None, False),
        (LOOKED, Verdict.UNKNOWN, "seen", None, False),
        (LOOKED, Verdict.UNKNOWN, CODE_FAILURE_NOTICE, None, False),
        (LOOKED, Verdict.NOT_COMMITTED, "seen", CONTRADICTION, False),
        (LOOKED, Verdict.MISMATCH, "seen", CONTRADICTION, False),
        (LOOKED, Verdict.MISMATCH, CODE_SEVERAL_MATCHES, Alert.DUPLICATE_DETECTED, True),
    ],
)
async def test_a_fact_after_a_success_is_an_alert_only_if_it_speaks_against_it(
    reconcilable: World,
    source: EvidenceSource,
    verdict: Verdict,
    code: str,
    alert: Alert | None,
    freezes: bool,
) -> None:
    await reconcilable.submit()
    await reconcilable.run()
    settled = ended(reconcilable.snapshot, EffectState.SUCCEEDED)
    change = fact(settled, source, verdict, code)
    assert (change.result.alert, frozen(change)) == (alert, freezes)
    assert change.result.version == settled.intent.version + 1
    assert change.result.state is EffectState.SUCCEEDED


@pytest.mark.parametrize(
    ("source", "verdict", "code", "alert", "freezes"),
    [
        (TOLD, Verdict.COMMITTED, "seen", CONTRADICTION, False),
        (TOLD, Verdict.MISMATCH, "seen", CONTRADICTION, False),
        (TOLD, Verdict.UNKNOWN, CODE_FAILURE_NOTICE, None, False),
        (TOLD, Verdict.UNKNOWN, "seen", None, False),
        (LOOKED, Verdict.UNKNOWN, "seen", None, False),
        (LOOKED, Verdict.NOT_COMMITTED, "seen", None, False),
        # The target's look-up had denied what it shows now: nobody may trust it any more.
        (LOOKED, Verdict.COMMITTED, "seen", CONTRADICTION, True),
        (LOOKED, Verdict.MISMATCH, "seen", CONTRADICTION, True),
    ],
)
async def test_a_fact_after_a_failure_is_an_alert_only_if_it_speaks_against_it(
    reconcilable: World,
    source: EvidenceSource,
    verdict: Verdict,
    code: str,
    alert: Alert | None,
    freezes: bool,
) -> None:
    await reconcilable.submit()
    reconcilable.target.answers.append(Answer(Outcome.REJECTED, "declined"))
    await reconcilable.dispatch(1, 1)
    assert reconcilable.state == ("failed_final", "rejected")
    settled = ended(reconcilable.snapshot, EffectState.FAILED_FINAL)
    change = fact(settled, source, verdict, code)
    assert (change.result.alert, frozen(change)) == (alert, freezes)
    assert change.result.version == settled.intent.version + 1


async def test_the_states_of_a_fact_count_up_by_one(reconcilable: World) -> None:
    snapshot = await in_doubt(reconcilable)
    change = fact(snapshot, LOOKED, Verdict.COMMITTED, ids=("sim_1",))
    assert change.result.version == snapshot.intent.version + 1
    assert change.result.state is EffectState.SUCCEEDED
