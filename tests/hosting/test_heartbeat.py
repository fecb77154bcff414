"""A worker that cannot beat for its TTL stops dispatching, and goes on once it can."""

from __future__ import annotations

import threading

import psycopg

from effect_broker.config import HEARTBEAT_TTL_SECONDS
from effect_broker.proof.broker import wait_until
from hosting.scenes import Scene

# How long a worker that must not send is watched.
WATCH_SECONDS = 1.5


def test_a_worker_that_cannot_beat_stops_dispatching_and_goes_on_afterwards(scene: Scene) -> None:
    tool = scene.offer("beats")
    scene.start_workers(2)
    scene.settled([scene.submit(tool, "before")])
    with psycopg.connect(scene.broker.superuser_url) as locking:
        locking.execute("LOCK TABLE effect_broker.workers IN ACCESS EXCLUSIVE MODE")

        def silent() -> bool | None:
            row = locking.execute(
                "SELECT bool_and(beat_at < clock_timestamp() - make_interval(secs => %s))"
                " FROM effect_broker.workers",
                [HEARTBEAT_TTL_SECONDS],
            ).fetchone()
            assert row is not None
            return row[0] or None

        wait_until(silent, "no worker has beaten for its TTL")
        effect_ids = scene.submit_many(tool, 4, "silent")
        for effect_id in effect_ids:
            scene.wait_for(
                "a worker holds the run",
                "SELECT status = 'PENDING' FROM dbos.workflow_status WHERE workflow_uuid = %s",
                f"{effect_id}.1",
            )
        threading.Event().wait(WATCH_SECONDS)
        assert scene.ledger("beats").arrivals == 1
        assert [scene.attempts(effect_id) for effect_id in effect_ids] == [[]] * 4
        # The runs are held, and not ended and begun anew all the time.
        runs = [scene.run(effect_id) for effect_id in effect_ids]
        assert [run and run["status"] for run in runs] == ["PENDING"] * 4
    effects = scene.settled(effect_ids)
    assert {effect["state"] for effect in effects} == {"succeeded"}
    ledger = scene.ledger("beats")
    assert (ledger.arrivals, ledger.effects) == (5, 5)
    assert all(worker.alive for worker in scene.workers)
