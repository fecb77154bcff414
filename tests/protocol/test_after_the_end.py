"""What comes after an effect was undone, was alarmed, or has lost its rows to retention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from effect_adapters.base import Answer
from effect_adapters.simulated import LedgerEntry
from effect_broker.protocol import changes
from effect_broker.protocol.conclusion import Next
from effect_broker.protocol.ports import Advance, Change, Snapshot
from effect_contracts.facts import (
    CODE_FAILURE_NOTICE,
    CODE_SEVERAL_MATCHES,
    Alert,
    EffectState,
    EvidenceSource,
    Outcome,
    Verdict,
)
from protocol.test_count import redispatched, step
from protocol.test_facts_edges import ended, fact
from protocol.world import ARGUMENTS, World

LOOKED, TOLD = EvidenceSource.PROBE, EvidenceSource.WEBHOOK


def advance_of(change: Change[Any]) -> Advance:
    (advance,) = [write for write in change.writes if isinstance(write, Advance)]
    return advance


@pytest.mark.parametrize(
    ("source", "verdict", "code", "alert"),
    [
        # A count that was under way finds what was undone gone, changed, or tells nothing.
        (LOOKED, Verdict.NOT_COMMITTED, "seen", None),
        (LOOKED, Verdict.MISMATCH, "seen", None),
        (LOOKED, Verdict.UNKNOWN, "seen", None),
        (LOOKED, Verdict.COMMITTED, "seen", None),
        (LOOKED, Verdict.MISMATCH, CODE_SEVERAL_MATCHES, Alert.DUPLICATE_DETECTED),
        # What never was need not have been undone.
        (TOLD, Verdict.UNKNOWN, CODE_FAILURE_NOTICE, Alert.LATE_CONTRADICTION),
    ],
)
async def test_what_was_undone_may_be_gone_and_is_not_counted_again(
    reconcilable: World, source: EvidenceSource, verdict: Verdict, code: str, alert: Alert | None
) -> None:
    await reconcilable.submit()
    await reconcilable.run()
    undone = ended(reconcilable.snapshot, EffectState.COMPENSATED)
    change = fact(undone, source, verdict, code)
    assert change.result.alert is alert
    assert (change.result.next, advance_of(change).next_action_at) == (Next.END, None)
    assert change.result.state is EffectState.COMPENSATED


async def test_two_objects_stay_the_alert_whatever_is_told_later(reconcilable: World) -> None:
    await redispatched(reconcilable)
    key = reconcilable.snapshot.intent.downstream_key
    reconcilable.target.entries.append(LedgerEntry("sim_0", key, dict(ARGUMENTS)))
    await step(reconcilable)
    assert reconcilable.memory.alert(reconcilable.effect_id) is Alert.DUPLICATE_DETECTED
    told = await reconcilable.evidence(Verdict.MISMATCH, source=TOLD)
    assert told.alert is not None
    assert reconcilable.memory.alert(reconcilable.effect_id) is Alert.DUPLICATE_DETECTED


def removed(snapshot: Snapshot) -> Snapshot:
    """What retention leaves of it."""
    facts = replace(snapshot.facts, attempts=(), evidence=())
    return replace(snapshot, attempts=(), evidence=(), facts=facts)


async def test_an_answer_that_comes_after_its_row_was_removed_changes_nothing(
    idempotent: World,
) -> None:
    await idempotent.submit()
    await idempotent.run()
    (attempt,) = idempotent.snapshot.attempts
    change = changes.record_outcome(
        removed(idempotent.snapshot),
        attempt_id=attempt.attempt_id,
        answer=Answer(Outcome.COMMITTED, "again"),
        result=None,
        result_digest=None,
        operation=None,
        receipt_id=uuid4(),
        executor_id="worker-1",
    )
    assert (change.writes, change.result.next) == ((), Next.END)
    assert change.result.state is EffectState.SUCCEEDED


@pytest.mark.parametrize("state", [EffectState.SUCCEEDED, EffectState.COMPENSATED])
async def test_what_says_nothing_contradicts_no_receipt_whose_rows_were_removed(
    idempotent: World, state: EffectState
) -> None:
    await idempotent.submit()
    await idempotent.run()
    change = fact(removed(ended(idempotent.snapshot, state)), TOLD, Verdict.UNKNOWN)
    assert change.result.alert is None
    failed = removed(ended(idempotent.snapshot, EffectState.FAILED_FINAL))
    told = fact(failed, TOLD, Verdict.COMMITTED, ids=("sim_1",))
    assert told.result.alert is Alert.LATE_CONTRADICTION
