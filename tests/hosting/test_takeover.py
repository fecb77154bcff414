"""A worker that is killed and never restarted: its peer takes over in time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest

from effect_broker.config import HEARTBEAT_TTL_SECONDS
from effect_broker.faultpoints import FaultPoint
from hosting.scenes import LEASE_SECONDS, Scene

POINTS = (
    FaultPoint.AFTER_RESERVE,
    FaultPoint.BEFORE_ATTEMPT_COMMIT,
    FaultPoint.AFTER_ATTEMPT_COMMIT,
    FaultPoint.AFTER_TARGET_ANSWER,
)
KIND = "takeover"


@dataclass(frozen=True, slots=True)
class Killed:
    """An effect whose worker was killed at a point."""

    effect: dict[str, Any]
    killed_at: datetime
    attempts: list[dict[str, Any]]
    events: list[dict[str, Any]]


@pytest.fixture(scope="module")
def killed(scene: Scene) -> dict[FaultPoint, Killed]:
    """One effect for each point; one worker is left for all of them."""
    tool = scene.offer(KIND, attempt_deadline_seconds=LEASE_SECONDS)
    scene.start_workers(len(POINTS) + 1)
    begun = {}
    for point in POINTS:
        scene.broker.arm(point)
        effect_id = scene.submit(tool, point)
        scene.broker.wait_fired(point)
        begun[point] = (effect_id, scene.value("SELECT clock_timestamp()"))
    return {
        point: Killed(
            scene.broker.settled(effect_id),
            killed_at,
            scene.attempts(effect_id),
            scene.events(effect_id),
        )
        for point, (effect_id, killed_at) in begun.items()
    }


@pytest.mark.parametrize("point", POINTS)
def test_a_peer_takes_over_within_the_ttl_and_two_seconds(
    killed: dict[FaultPoint, Killed], point: FaultPoint
) -> None:
    case = killed[point]
    in_time = case.killed_at + timedelta(seconds=HEARTBEAT_TTL_SECONDS + 2.0)
    open_attempts = [a["deadline_at"] for a in case.attempts if a["outcome"] != "committed"]
    # An attempt that may still be under way is not touched before its deadline.
    margin = timedelta(seconds=2.0)
    latest = max([in_time, *(deadline_at + margin for deadline_at in open_attempts)])
    after = [e["at"] for e in case.events if e["at"] > case.killed_at]
    assert after
    assert after[0] <= latest, f"{(after[0] - case.killed_at).total_seconds():.1f} s"


@pytest.mark.parametrize("point", POINTS)
def test_the_effect_happens_once(
    scene: Scene, killed: dict[FaultPoint, Killed], point: FaultPoint
) -> None:
    case = killed[point]
    assert case.effect["state"] == "succeeded"
    sent = 2 if point is FaultPoint.AFTER_TARGET_ANSWER else 1
    rows = scene.ledger(KIND)
    of_key = [r for r in rows.arrival_rows if point.value.encode() in r.body]
    assert len(of_key) == sent
    assert len([r for r in rows.effect_rows if r.content["order"] == point]) == 1


@pytest.mark.parametrize("point", POINTS)
def test_the_successor_is_another_executor(
    killed: dict[FaultPoint, Killed], point: FaultPoint
) -> None:
    case = killed[point]
    executors = [attempt["executor_id"] for attempt in case.attempts]
    lost = point in {FaultPoint.AFTER_ATTEMPT_COMMIT, FaultPoint.AFTER_TARGET_ANSWER}
    assert len(executors) == len(set(executors)) == (2 if lost else 1)


def test_the_runs_of_dead_executors_are_handed_back(
    scene: Scene, killed: dict[FaultPoint, Killed]
) -> None:
    scene.wait_for(
        "no run is pending on a dead executor",
        "SELECT count(*) = 0 FROM dbos.workflow_status AS w"
        " JOIN effect_broker.workers AS k USING (executor_id) WHERE w.status = 'PENDING'"
        " AND k.beat_at < clock_timestamp() - make_interval(secs => k.ttl_seconds)",
    )
    for case in killed.values():
        scene.wait_for(
            "the run was claimed again and has ended",
            "SELECT status = 'SUCCESS' FROM dbos.workflow_status WHERE workflow_uuid = %s",
            f"{case.effect['effect_id']}.1",
        )
