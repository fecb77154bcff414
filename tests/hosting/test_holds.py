"""Pauses over running workers: nothing is sent, nothing is lost, and the rest goes on."""

from __future__ import annotations

import asyncio
from functools import partial
from uuid import UUID, uuid4

import pytest

from effect_broker.faultpoints import FaultAction, FaultPoint
from effect_broker.holding import HoldScope, Placed
from effect_broker.proof.broker import wait_until
from effect_broker.store.holds import Holds
from effect_broker.store.pool import make_pool
from effect_broker.store.roles import DatabaseRole
from hosting.scenes import Scene, all_once, go_on

EFFECTS = 6
SETTLE_SECONDS = 60.0


def paused(scene: Scene, tool: str | None) -> Placed:
    """Pause a tool of every tenant, or (None) everything."""

    async def work() -> Placed:
        url = scene.broker.url(DatabaseRole.ADMIN)
        async with make_pool(url, None, application_name="test-admin", size_max=1) as pool:
            scope = HoldScope(tool=tool)
            return await Holds(pool, None).place(uuid4(), scope, "by a test", "operator:test")

    return asyncio.run(work())


def lifted(scene: Scene, hold_id: UUID) -> None:
    async def work() -> None:
        url = scene.broker.url(DatabaseRole.ADMIN)
        async with make_pool(url, None, application_name="test-admin", size_max=1) as pool:
            await Holds(pool, None).lift(hold_id, "by a test", "operator:test")

    asyncio.run(work())


def _state(scene: Scene, effect_id: str, state: str) -> bool | None:
    return scene.broker.effect(effect_id)["state"] == state or None


@pytest.mark.parametrize("everything", [False, True], ids=["the tool", "everything"])
def test_what_is_paused_is_accepted_waits_and_is_sent_once_afterwards(
    scene: Scene, everything: bool
) -> None:
    kind = f"paused_{everything}".lower()
    tool = scene.offer(kind)
    scene.ensure_workers(2)
    placed = paused(scene, None if everything else tool)
    assert placed.effective
    effect_ids = scene.submit_many(tool, EFFECTS)
    for effect in scene.settled(effect_ids):
        assert (effect["state"], effect["reason"]) == ("prepared", "paused")
    assert scene.ledger(kind).arrivals == 0
    other = scene.offer(f"{kind}_other")
    free = scene.submit(other, "free")
    expected = "paused" if everything else "committed"
    assert scene.broker.settled(free)["reason"] == expected
    lifted(scene, placed.hold.hold_id)
    for effect_id in (*effect_ids, free):
        wait_until(partial(_state, scene, effect_id, "succeeded"), "it goes on", SETTLE_SECONDS)
    assert all_once(scene.ledger(kind), EFFECTS)


def test_a_lost_answer_is_settled_by_the_look_up_although_its_tool_is_paused(scene: Scene) -> None:
    tool = scene.offer("paused_probe", "reconcilable")
    scene.ensure_workers(2)
    scene.broker.target.client.script("commit;RST", kind="paused_probe", method="POST")
    effect_id = scene.submit(tool, "lost")
    scene.broker.target.client.wait_effects(1, kind="paused_probe", timeout_seconds=30)
    placed = paused(scene, tool)
    wait_until(partial(_state, scene, effect_id, "succeeded"), "the look-up", SETTLE_SECONDS)
    assert scene.ledger("paused_probe").arrivals == 1
    lifted(scene, placed.hold.hold_id)


def test_a_pause_outwaits_a_process_that_stands_still_before_its_grant(scene: Scene) -> None:
    """It is stopped with its locks, and before its attempt is committed. The server ends its
    session, the pause says so only then, and the process wakes up to find nothing granted."""
    tool = scene.offer("paused_stopped", "unsafe")
    scene.ensure_workers(2)
    scene.broker.arm(FaultPoint.BEFORE_ATTEMPT_COMMIT, FaultAction.STOP)
    effect_id = scene.submit(tool, "stopped")
    pid = scene.stopped_at(FaultPoint.BEFORE_ATTEMPT_COMMIT)
    try:
        placed = paused(scene, tool)
        assert placed.effective
    finally:
        go_on(pid)
    effect = scene.broker.settled(effect_id, SETTLE_SECONDS)
    assert (effect["state"], effect["reason"]) == ("prepared", "paused")
    assert scene.ledger("paused_stopped").arrivals == 0
    lifted(scene, placed.hold.hold_id)
    wait_until(partial(_state, scene, effect_id, "succeeded"), "it goes on", SETTLE_SECONDS)
    assert scene.ledger("paused_stopped").arrivals == 1
