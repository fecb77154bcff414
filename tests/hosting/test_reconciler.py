"""The reconcile loop: by SQL alone in a process of its own, and in a worker that is alone."""

from __future__ import annotations

from functools import partial

from effect_broker import hosting
from effect_broker.proof.broker import wait_until
from hosting.scenes import Row, Scene, all_once

KIND = "lost_runs"


def queued(scene: Scene, effect_id: str, generation: int) -> Row | None:
    """The row of a run that waits in the queue."""
    run = scene.run(effect_id, generation)
    return run if run is not None and run["status"] == "ENQUEUED" else None


def lose_run(scene: Scene, effect_id: str) -> None:
    """Remove the engine's rows of an effect."""
    for statement in (
        "DELETE FROM dbos.workflow_status WHERE workflow_uuid LIKE %s",
        "DELETE FROM dbos.workflow_input WHERE workflow_uuid LIKE %s",
    ):
        scene.rows(statement, f"{effect_id}.%")


def test_a_reconciler_alone_starts_lost_runs_again_and_sends_nothing(scene: Scene) -> None:
    tool = scene.offer(KIND)
    reconciler = scene.broker.stack.reconciler()
    reconciler.wait_ready()
    lost, stranded, fine = (scene.submit(tool, order) for order in ("lost", "stranded", "fine"))
    lose_run(scene, lost)
    scene.rows(
        "UPDATE dbos.workflow_status SET status = 'PENDING', executor_id = 'gone'"
        " WHERE workflow_uuid = %s",
        f"{stranded}.1",
    )
    for effect_id in (lost, stranded):
        run = wait_until(partial(queued, scene, effect_id, 2), "the second generation")
        assert (run["name"], run["queue_name"]) == (hosting.WORKFLOW_NAME, hosting.QUEUE_NAME)
        assert run["application_name"] == hosting.APPLICATION_NAME
        assert run["application_version"] == hosting.APPLICATION_VERSION
    # A run that waits in the queue is left alone, however long there is no worker.
    assert queued(scene, fine, 1)
    assert scene.run(fine, 2) is None
    assert scene.ledger(KIND).arrivals == 0
    sessions = scene.rows(
        "SELECT DISTINCT application_name FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'effect-broker%%'"
    )
    names = {row["application_name"] for row in sessions}
    assert names == {"effect-broker-api", "effect-broker-reconciler"}, "it launches no engine"

    scene.start_workers(1)
    effects = scene.settled((lost, stranded, fine))
    assert {effect["state"] for effect in effects} == {"succeeded"}
    ledger = scene.ledger(KIND)
    assert ledger.arrivals == 3
    assert all_once(ledger, 3)
    assert reconciler.terminate() == 0


def test_a_worker_alone_starts_lost_runs_again(scene: Scene) -> None:
    scene.ensure_workers(1)
    tool = scene.offer("alone", retry={"retry_after_cap_seconds": 60})
    scene.broker.target.client.script('status(429, {}, {"retry-after": "6"})', kind="alone")
    effect_id = scene.submit(tool, "alone")
    scene.wait_for(
        "its run has ended with a wait",
        "SELECT status = 'SUCCESS' FROM dbos.workflow_status WHERE workflow_uuid = %s",
        f"{effect_id}.1",
    )
    lose_run(scene, effect_id)
    (effect,) = scene.settled([effect_id])
    assert effect["state"] == "succeeded"
    assert scene.intent(effect_id)["generation"] == 2
    assert (scene.ledger("alone").arrivals, scene.ledger("alone").effects) == (2, 1)
