"""A worker that is stopped in mid-send and continued after its successor has settled the effect."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from effect_broker.faultpoints import FaultAction, FaultPoint
from effect_broker.proof.broker import wait_until
from hosting.scenes import LEASE_SECONDS, SAFETIES, Scene, go_on

POINTS = (
    FaultPoint.BEFORE_SOCKET_WRITE,
    FaultPoint.AFTER_TARGET_ANSWER,
    FaultPoint.BEFORE_OUTCOME_COMMIT,
)
SENT = {
    # What the target has received when the successor is done, and in the end: at least, since a
    # machine that stands still costs the successor an attempt; and no more where it is unsafe.
    (FaultPoint.BEFORE_SOCKET_WRITE, "idempotent"): (1, 1),
    (FaultPoint.BEFORE_SOCKET_WRITE, "reconcilable"): (1, 1),
    # Never sent while in doubt; the zombie's word that it did not send is a proof.
    (FaultPoint.BEFORE_SOCKET_WRITE, "unsafe"): (0, 1),
    (FaultPoint.AFTER_TARGET_ANSWER, "idempotent"): (2, 2),
    (FaultPoint.AFTER_TARGET_ANSWER, "reconcilable"): (1, 1),
    (FaultPoint.AFTER_TARGET_ANSWER, "unsafe"): (1, 1),
    (FaultPoint.BEFORE_OUTCOME_COMMIT, "idempotent"): (2, 2),
    (FaultPoint.BEFORE_OUTCOME_COMMIT, "reconcilable"): (1, 1),
    (FaultPoint.BEFORE_OUTCOME_COMMIT, "unsafe"): (1, 1),
}


@pytest.mark.parametrize("point", POINTS)
def test_a_zombie_sends_nothing_and_changes_no_receipt(scene: Scene, point: FaultPoint) -> None:
    scene.ensure_workers(len(SAFETIES) + 1)
    broker = scene.broker
    stopped: dict[str, tuple[str, int]] = {}
    # The idempotent one last: its second attempt must not meet what is armed for another.
    for safety in reversed(SAFETIES):
        tool = scene.offer(f"{safety}_{point}", safety, attempt_deadline_seconds=LEASE_SECONDS)
        broker.arm(point, FaultAction.STOP)
        effect_id = scene.submit(tool, safety)
        stopped[safety] = (effect_id, scene.stopped_at(point))
    settled = {}
    for safety, (effect_id, _) in stopped.items():
        effect = broker.settled(effect_id)
        assert effect["state"] == ("outcome_unknown" if safety == "unsafe" else "succeeded")
        unsent = point is FaultPoint.BEFORE_SOCKET_WRITE
        expect_sends(scene, effect_id, f"{safety}_{point}", SENT[point, safety][0], unsent)
        settled[safety] = (effect, broker.receipt(effect_id))

    for _, pid in stopped.values():
        go_on(pid)
    for safety, (effect_id, _) in stopped.items():
        effect, receipt = settled[safety]
        first = wait_until(partial(late_outcome, scene, effect_id), "the zombie's late fact")
        never_sent = point is FaultPoint.BEFORE_SOCKET_WRITE
        assert first["outcome"] == ("not_sent" if never_sent else "committed")
        after = broker.settled(effect_id)
        assert after["version"] > effect["version"]
        expect_sends(scene, effect_id, f"{safety}_{point}", SENT[point, safety][1])
        assert scene.ledger(f"{safety}_{point}").effects == 1
        assert after["state"] == "succeeded"
        if receipt is not None:
            assert broker.receipt(effect_id) == receipt
        assert [e["kind"] for e in scene.events(effect_id)].count("late_fact") == (
            0 if safety == "unsafe" else 1
        )


def expect_sends(scene: Scene, effect_id: str, kind: str, least: int, unsent: int = 0) -> None:
    """As many requests as attempts that may have sent, but for those that nobody could know of."""
    arrivals = scene.ledger(kind).arrivals
    attempts = scene.attempts(effect_id)
    may_have_sent = sum(attempt["bytes_may_have_left"] is not False for attempt in attempts)
    assert least <= arrivals == may_have_sent - unsent
    if kind.startswith("unsafe"):
        assert arrivals == least


def late_outcome(scene: Scene, effect_id: str) -> dict[str, Any] | None:
    """The first attempt, once its sender has recorded what it saw over the presumption."""
    first = scene.attempts(effect_id)[0]
    return first if first["recorded_at"] is not None and first["lost_at"] is not None else None
