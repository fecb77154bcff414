"""Accounts of what schedules do not come by: persons, webhooks, holds, counts, operations."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any
from unittest.mock import patch
from uuid import uuid4

from effect_adapters.base import Answer, Finding
from effect_broker.protocol import changes, compensation, resolution, wishes
from effect_broker.protocol.acknowledgement import Acknowledged, Acknowledgement, acknowledge
from effect_broker.protocol.conclusion import View
from effect_broker.protocol.ports import Change, Snapshot
from effect_broker.protocol.resolution import Resolution
from effect_contracts.facts import (
    CODE_SEVERAL_MATCHES,
    Alert,
    Conclusion,
    EvidenceSource,
    Hold,
    Outcome,
    Verdict,
)
from protocol import world as worlds
from protocol.world import TENANT, World, lost_answer, not_sent
from trace_check.memory_log import LoggedStore


def world_of(safety: str, **members: object) -> World:
    """A world whose account can be exported."""
    with patch.object(worlds, "MemoryStore", LoggedStore):
        return World(safety, **members)


def account(world: World) -> list[bytes]:
    """Return the trace of a world."""
    store = world.memory
    assert isinstance(store, LoggedStore)
    return store.trace()


async def tell(world: World, verdict: Verdict, *ids: str) -> View:
    """A webhook has arrived."""

    def planned(snapshot: Snapshot) -> Change[View]:
        return changes.add_evidence(
            snapshot,
            evidence_id=uuid4(),
            source=EvidenceSource.WEBHOOK,
            finding=Finding(verdict, "told", ids),
            began_at=snapshot.now,
            covers_through=len(snapshot.attempts),
            target_identity=None,
            result=None,
            result_digest=None,
            receipt_id=uuid4(),
            actor="webhook:provider",
        )

    world.let_pass(1)
    return await world.memory.change(TENANT.tenant_id, world.effect_id, planned)


async def conclude(world: World, conclusion: Conclusion, external_id: str | None = None) -> None:
    """A person has looked just now, and says what follows."""
    world.let_pass(100)
    content = b'{"reason":"seen"}'
    stated = Resolution(
        decision_id=f"decision-{conclusion}",
        conclusion=conclusion,
        expected_version=world.snapshot.intent.version,
        observed_at=world.clock.now(),
        external_id=external_id,
        reason="seen",
        content=content,
        digest=hashlib.sha256(content).digest(),
        actor="operator:test",
    )
    plan = partial(resolution.resolve, resolution=stated, evidence_id=uuid4(), receipt_id=uuid4())
    world.let_pass(1)
    resolved = await world.memory.change(TENANT.tenant_id, world.effect_id, plan)
    assert resolved.refusal is None


async def wish(world: World, plan: Callable[..., Change[Any]]) -> None:
    """A caller asks for something."""
    asked = partial(plan, receipt_id=uuid4(), actor="caller:test")
    granted = await world.memory.change(TENANT.tenant_id, world.effect_id, asked)
    assert granted is not None
    assert granted.changed


async def _in_doubt(safety: str, **members: object) -> World:
    world = world_of(safety, **members)
    await world.submit()
    world.target.answers.append(lost_answer())
    await world.dispatch((await world.reserve()).version, 1)
    return world


async def _redispatched() -> World:
    """A reconcilable effect that was sent again, and owes a count."""
    world = await _in_doubt("reconcilable")
    world.let_pass(61)
    await conclude(world, Conclusion.NOT_COMMITTED)
    while world.state[0] != "succeeded":
        world.let_pass(2)
        await world.requeue_due()
        await world.run(world.snapshot.intent.generation)
    return world


# The scenes ---------------------------------------------------------------------------------------


async def resolved_as_committed() -> World:
    world = await _in_doubt("unsafe")
    await conclude(world, Conclusion.COMMITTED, "ch_9")
    return world


async def resolved_as_failed() -> World:
    world = await _in_doubt("unsafe")
    await conclude(world, Conclusion.FAILED)
    await tell(world, Verdict.COMMITTED, "sim_1")
    return world


async def proved_absent() -> World:
    world = await _in_doubt("unsafe")
    await conclude(world, Conclusion.NOT_COMMITTED)
    return world


async def two_objects_and_a_person() -> World:
    world = await _in_doubt("unsafe")
    await tell(world, Verdict.COMMITTED, "sim_1", "sim_2")
    assert world.state == ("manual_review", "contract_violation")
    await conclude(world, Conclusion.COMMITTED, "sim_2")
    assert world.state == ("succeeded", "committed")
    return world


async def told_by_a_webhook() -> World:
    world = await _in_doubt("unsafe")
    await tell(world, Verdict.COMMITTED, "sim_1")
    await tell(world, Verdict.COMMITTED, "sim_2")
    return world


async def failing_runs() -> World:
    world = world_of("idempotent")
    await world.submit()
    while world.state[0] == "prepared":
        world.let_pass(1000)
        await world.requeue_due()
    assert world.state == ("manual_review", "run_failing")
    return world


async def held_and_let_go() -> World:
    world = world_of("idempotent")
    world.memory.holds.add(Hold.PAUSED)
    await world.submit()
    await world.run()
    assert world.state == ("prepared", "paused")
    world.memory.holds.clear()
    world.let_pass(1)
    await world.run()
    assert world.state == ("succeeded", "committed")
    return world


async def polled() -> World:
    adapter = {"kind": "simulated", "target": "ledger", "polls_operations": True}
    world = world_of("unsafe", adapter=adapter)
    await world.submit()
    world.target.answers.append(Answer(Outcome.IN_PROGRESS, "accepted", operation="op"))
    world.target.findings.append(Finding(Verdict.REJECTED, "operation_failed"))
    await world.run_until_at_rest()
    assert world.state == ("failed_final", "rejected")
    return world


async def counted_twice() -> World:
    world = await _redispatched()
    world.target.findings.append(Finding(Verdict.UNKNOWN, "unmatched_status_503"))
    found = ("sim_1", "sim_2")
    world.target.findings.append(Finding(Verdict.MISMATCH, CODE_SEVERAL_MATCHES, found))
    await world.run_until_at_rest()
    return world


async def counted_as_absent() -> World:
    world = await _redispatched()
    world.target.findings.append(Finding(Verdict.NOT_COMMITTED, "absent"))
    await world.run_until_at_rest()
    return world


async def acknowledged() -> World:
    world = await counted_twice()
    await tell(world, Verdict.MISMATCH, "sim_3")
    world.let_pass(1)
    said = Acknowledgement(Alert.DUPLICATE_DETECTED, "refunded", "operator:test")
    plan = partial(acknowledge, said=said)
    became = await world.memory.change(TENANT.tenant_id, world.effect_id, plan)
    assert became is Acknowledged.NEW
    return world


async def undone_while_it_is_counted() -> World:
    world = await _redispatched()
    undone = partial(compensation.undo, by=uuid4(), actor="worker:other")
    world.target.findings.append(Finding(Verdict.NOT_COMMITTED, "absent"))
    world.let_pass(10_000)
    version, identity = world.snapshot.intent.version, world.snapshot.intent.target_identity
    begin = partial(
        changes.begin_probe, identity=identity or "", expected_version=version,
        timeout_seconds=5.0, executor_id="worker-1",
    )  # fmt: skip
    start = await world.memory.change(TENANT.tenant_id, world.effect_id, begin)
    assert start.began_at is not None
    world.let_pass(1)
    await world.memory.change(TENANT.tenant_id, world.effect_id, undone)
    world.let_pass(1)
    found = partial(
        changes.add_evidence, evidence_id=uuid4(), source=EvidenceSource.PROBE,
        finding=Finding(Verdict.NOT_COMMITTED, "absent"), began_at=start.began_at,
        covers_through=start.covers_through, target_identity=identity, result=None,
        result_digest=None, receipt_id=uuid4(), actor="worker:worker-1",
    )  # fmt: skip
    await world.memory.change(TENANT.tenant_id, world.effect_id, found)
    assert world.state == ("compensated", "committed")
    assert world.memory.alert(world.effect_id) is None
    return world


async def not_counted() -> World:
    world = await _redispatched()
    world.adapter.moved_to = "http://elsewhere#other"
    await world.run_until_at_rest()
    return world


async def target_changed() -> World:
    world = await _in_doubt("idempotent")
    world.adapter.moved_to = "http://elsewhere#other"
    await world.run_until_at_rest()
    assert world.state == ("manual_review", "target_changed")
    return world


async def refused_in_all_ways() -> World:
    world = world_of("unsafe")
    for key, answer in {
        "conflict": Answer(Outcome.KEY_CONFLICT, "conflict"),
        "part": Answer(Outcome.PARTIAL, "partial"),
        "refused": Answer(Outcome.REJECTED, "refused"),
    }.items():
        world.let_pass(1)
        await world.submit(key)
        world.target.answers.append(answer)
        await world.run_until_at_rest()
    await world.submit("never-sent")
    world.target.answers.extend(not_sent() for _ in range(3))
    await world.run_until_at_rest()
    assert world.state == ("failed_final", "never_sent")
    return world


async def withdrawn() -> World:
    world = world_of("idempotent")
    await world.submit()
    world.let_pass(1)
    await wish(world, wishes.cancel)
    assert world.state == ("cancelled", "cancelled")
    return world


async def looked_up_on_demand() -> World:
    world = await _in_doubt("reconcilable", probe={"initial_seconds": 300})
    world.target.findings.append(Finding(Verdict.UNKNOWN, "unmatched_status_503"))
    await world.run()
    world.let_pass(3)
    await wish(world, wishes.reconcile)
    await world.run_until_at_rest()
    return world


async def expired() -> World:
    world = world_of("idempotent")
    await world.submit(send_before=world.clock.now())
    world.let_pass(1)
    await world.run()
    assert world.state == ("failed_final", "expired")
    return world


SCENES: Mapping[str, Callable[[], Awaitable[World]]] = {
    scene.__name__: scene
    for scene in (
        resolved_as_committed,
        resolved_as_failed,
        proved_absent,
        two_objects_and_a_person,
        told_by_a_webhook,
        failing_runs,
        held_and_let_go,
        polled,
        counted_twice,
        counted_as_absent,
        acknowledged,
        undone_while_it_is_counted,
        not_counted,
        target_changed,
        refused_in_all_ways,
        expired,
        withdrawn,
        looked_up_on_demand,
    )
}
