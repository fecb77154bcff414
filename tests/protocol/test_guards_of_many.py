"""Guards where there is more than one attempt: the last one counts, and each is fenced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from effect_adapters.base import Answer, Finding
from effect_broker.protocol import changes
from effect_broker.protocol.ports import (
    AddEvidence,
    Advance,
    AttemptRow,
    Change,
    FenceMutation,
    Snapshot,
)
from effect_contracts.facts import (
    CODE_FAILURE_NOTICE,
    EffectState,
    EvidenceSource,
    Outcome,
    Verdict,
)
from protocol.world import World, lost_answer

IDENTITY = "simulated:ledger#acct_1"


async def many(world: World, count: int, **known: object) -> Snapshot:
    """An effect in doubt as if so many attempts had gone the way of the first."""
    await world.submit()
    world.target.answers.append(lost_answer())
    await world.dispatch(1, 1)
    snapshot = world.snapshot
    first = snapshot.attempts[0]
    rows = tuple(
        AttemptRow(
            **{
                **{name: getattr(first, name) for name in AttemptRow.__slots__},
                "attempt_id": UUID(int=number),
                "fact": replace(first.fact, ordinal=number, **known),  # type: ignore[arg-type]
            }
        )
        for number in range(1, count + 1)
    )
    facts = replace(snapshot.facts, attempts=tuple(row.fact for row in rows))
    return replace(snapshot, attempts=rows, facts=facts)


def written(change: Change[Any], kind: type[Any]) -> list[Any]:
    return [write for write in change.writes if isinstance(write, kind)]


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_a_count_covers_all_attempts_and_has_its_time(
    reconcilable: World, count: int
) -> None:
    snapshot = await many(reconcilable, count)
    intent = replace(snapshot.intent, state=EffectState.SUCCEEDED, next_action_at=snapshot.now)
    change = changes.begin_probe(
        replace(snapshot, intent=intent),
        identity=IDENTITY,
        expected_version=intent.version,
        timeout_seconds=7.0,
        executor_id="worker-1",
    )
    (advance,) = written(change, Advance)
    assert advance.kind == "count_started"
    assert advance.metadata == {"covers_through": count}
    assert (advance.next_action_at - snapshot.now).total_seconds() == 7.0
    assert change.result.covers_through == count


@pytest.mark.parametrize("count", [1, 2, 3, 4])
async def test_the_row_of_an_operation_is_that_of_its_attempt(
    reconcilable: World, count: int
) -> None:
    snapshot = await many(reconcilable, count, outcome=Outcome.IN_PROGRESS, operation=True)
    found = changes.open_operation(snapshot)
    assert found is not None
    assert found.attempt_id == UUID(int=count)
    final = replace(snapshot.intent, state=EffectState.SUCCEEDED)
    assert changes.open_operation(replace(snapshot, intent=final)) is None


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("present", [True, False])
async def test_a_fence_stands_on_the_key_of_every_attempt(
    transactional: World, count: int, present: bool
) -> None:
    snapshot = await many(transactional, count, outcome=Outcome.AMBIGUOUS)
    snapshot = replace(snapshot, mutation_ordinal=count if present else None)
    change = changes.settle_transaction(
        snapshot,
        identity=IDENTITY,
        expected_version=snapshot.intent.version,
        evidence_id=uuid4(),
        receipt_id=uuid4(),
        actor="worker:worker-1",
    )
    (evidence,) = written(change, AddEvidence)
    assert evidence.covers_through == count
    assert evidence.code == ("mutation_key_present" if present else "mutation_key_fenced")
    assert evidence.verdict is (Verdict.COMMITTED if present else Verdict.NOT_COMMITTED)
    fenced = [fence.ordinal for fence in written(change, FenceMutation)]
    assert fenced == ([] if present else list(range(1, count + 1)))


@pytest.mark.parametrize("code", ["busy", "zzz", CODE_FAILURE_NOTICE])
async def test_only_a_notice_of_failure_speaks_against_a_success(
    idempotent: World, code: str
) -> None:
    await idempotent.submit()
    await idempotent.run()
    snapshot = idempotent.snapshot
    change = changes.add_evidence(
        snapshot,
        evidence_id=uuid4(),
        source=EvidenceSource.WEBHOOK,
        finding=Finding(Verdict.UNKNOWN, code),
        began_at=snapshot.now,
        covers_through=1,
        target_identity=IDENTITY,
        result=None,
        result_digest=None,
        receipt_id=uuid4(),
        actor="worker:test",
    )
    assert (change.result.alert is not None) is (code == CODE_FAILURE_NOTICE)


async def test_an_answer_whose_rows_retention_has_removed_changes_nothing(
    idempotent: World,
) -> None:
    await idempotent.submit()
    await idempotent.run()
    settled = idempotent.snapshot
    removed = replace(settled, attempts=(), facts=replace(settled.facts, attempts=()))

    def record(snapshot: Snapshot) -> Change[Any]:
        return changes.record_outcome(
            snapshot,
            attempt_id=uuid4(),
            answer=Answer(Outcome.COMMITTED, "late"),
            result=None,
            result_digest=None,
            operation=None,
            receipt_id=uuid4(),
            executor_id="worker-1",
        )

    late = record(removed)
    assert late.writes == ()
    assert late.result.state is EffectState.SUCCEEDED
    # Of an effect whose rows stand, and of one that goes on, it is a mistake of ours.
    going_on = replace(removed, intent=replace(settled.intent, state=EffectState.RETRYABLE))
    unbound = replace(removed, intent=replace(settled.intent, target_identity=None))
    for snapshot in (settled, going_on, unbound):
        with pytest.raises(AssertionError):
            record(snapshot)
