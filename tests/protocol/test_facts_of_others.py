"""Of several facts the one that is meant: whose certificate, which evidence, which success."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from effect_adapters.base import Finding
from effect_broker.protocol import changes
from effect_broker.protocol.conclusion import Next, View, view
from effect_broker.protocol.ports import Change, Snapshot
from effect_contracts.facts import Alert, Certified, EffectState, EvidenceSource, Verdict
from protocol.test_facts_edges import IDENTITY, PERSON, TOLD, ended, fact, in_doubt
from protocol.world import TENANT, World


@pytest.mark.parametrize(("of", "next_"), [(IDENTITY, Next.DISPATCH), ("z:other#it", Next.END)])
async def test_a_certificate_of_another_target_permits_nothing(of: str, next_: Next) -> None:
    world = World("idempotent", oversight={"certificate": {}})
    await world.submit()
    snapshot, now = world.snapshot, world.clock.now()
    said = (Certified("c-1", of, frozenset(), now, now + timedelta(days=1)),)
    there = replace(snapshot, facts=replace(snapshot.facts, certificates=said))
    assert view(there, IDENTITY)[0].next is next_


async def _tell(world: World, source: EvidenceSource, verdict: Verdict, number: int) -> None:
    def planned(snapshot: Snapshot) -> Change[View]:
        return changes.add_evidence(
            snapshot,
            evidence_id=UUID(int=number),
            source=source,
            finding=Finding(verdict, "told", ()),
            began_at=snapshot.now,
            covers_through=len(snapshot.attempts),
            target_identity=None,
            result=None,
            result_digest=None,
            receipt_id=uuid4(),
            actor="operator:test",
        )

    await world.memory.change(TENANT.tenant_id, world.effect_id, planned)


@pytest.mark.parametrize("ids", [(1, 2), (2, 1)])
async def test_a_receipt_names_the_evidence_that_has_settled_whatever_the_ids(
    unsafe: World, ids: tuple[int, int]
) -> None:
    await in_doubt(unsafe)
    await _tell(unsafe, TOLD, Verdict.MISMATCH, ids[0])
    await _tell(unsafe, PERSON, Verdict.COMMITTED, ids[1])
    assert unsafe.state == ("succeeded", "committed")
    assert unsafe.receipt is not None
    assert unsafe.receipt["source"] == "operator"


async def test_a_success_of_which_no_fact_says_so_is_contradicted_by_the_next_one(
    idempotent: World,
) -> None:
    """Its rows are all there. No write of ours leaves an effect like this."""
    claimed = ended(await in_doubt(idempotent), EffectState.SUCCEEDED)
    assert fact(claimed, TOLD, Verdict.UNKNOWN).result.alert is Alert.LATE_CONTRADICTION
    assert fact(claimed, TOLD, Verdict.COMMITTED, ids=("sim_1",)).result.alert is None
