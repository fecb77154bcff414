"""From SIGKILL to settled: the worker dies when the target has committed and nobody knows it."""

from __future__ import annotations

from pathlib import Path

from bench.parts import Ground
from bench.stage import Stage
from effect_broker.faultpoints import FaultAction, FaultPoint
from effect_broker.proof.broker import wait_until
from effect_broker.proof.contracts import charge, tuned

KILLS = 50
_KIND = "killed"
_POINT = FaultPoint.AFTER_TARGET_ANSWER


def _killed_at(stage: Stage) -> tuple[int, float]:
    """Return who has met the armed point, and when, as seconds since the epoch.

    It renames a file right before it kills itself; the kernel notes the moment.
    """

    def met() -> Path | None:
        return next(stage.broker.stack.faults.glob(f"{_POINT}.{FaultAction.KILL}.fired.*"), None)

    path = wait_until(met, "a worker was killed")
    pid, moment = int(path.suffix[1:]), path.stat().st_ctime
    path.unlink()
    return pid, moment


def kills(ground: Ground) -> list[float]:
    """Return the seconds that each took, by the clock that machine and database share.

    Raises:
        AssertionError: the target has not counted two requests and one effect for each.
    """
    count = ground.count(KILLS, 3)
    took = []
    with Stage(ground, "bench_killed") as stage:
        broker = stage.broker
        broker.target.client.set_mode(_KIND, "dedupe")
        tool = stage.apply(tuned("demo-charge-idempotent", broker.target.url, _KIND))
        stage.start_workers(2)
        for number in range(count):
            broker.arm(_POINT)
            answer = broker.submit(f"killed:{number}", tool, charge(f"killed:{number}"))
            effect_id = answer.json()["effect_id"]
            pid, moment = _killed_at(stage)
            next(worker for worker in stage.workers if worker.pid == pid).wait_ended()
            stage.workers.append(broker.stack.worker())  # as any supervisor would
            shown = broker.settled(effect_id)
            assert shown["state"] == "succeeded", shown
            recorded = stage.value(
                "SELECT extract(epoch FROM recorded_at)::float8 FROM effect_broker.effect_receipts"
                " WHERE effect_id = %s",
                effect_id,
            )
            took.append(float(recorded) - moment)
            stage.workers = [worker for worker in stage.workers if worker.alive]
            stage.workers[-1].wait_ready()
        seen = broker.target.client.ledger(kind=_KIND, rows=False)
        assert (seen.arrivals, seen.effects) == (2 * count, count), seen
    return took
