"""Runs that come too early, and runs that get nowhere."""

from __future__ import annotations

from functools import partial

import pytest

from effect_broker.proof.broker import wait_until
from effect_broker.protocol.changes import IDLE_GENERATIONS_MAX
from hosting.scenes import Row, Scene


@pytest.fixture(scope="module", autouse=True)
def worker(scene: Scene) -> None:
    """One live worker."""
    scene.start_workers(1)


def ended(scene: Scene, effect_id: str, generation: int) -> Row | None:
    """The engine's row of a run, once the run has ended."""
    run = scene.run(effect_id, generation)
    return run if run is not None and run["status"] == "SUCCESS" else None


def test_a_run_that_comes_early_ends_without_a_trace(scene: Scene) -> None:
    tool = scene.offer("early", retry={"retry_after_cap_seconds": 600})
    scene.broker.target.client.script('status(429, {}, {"retry-after": "600"})', kind="early")
    effect_id = scene.submit(tool, "early")
    wait_until(partial(ended, scene, effect_id, 1), "the run has ended with a long wait")
    before = scene.intent(effect_id)
    assert before["state"] == "retryable"
    # The engine's clock is wrong, or it repeats itself: the same run once more, from its start.
    scene.rows("DELETE FROM dbos.operation_outputs WHERE workflow_uuid = %s", f"{effect_id}.1")
    scene.rows(
        "UPDATE dbos.workflow_status SET status = 'ENQUEUED', executor_id = NULL,"
        " started_at_epoch_ms = NULL WHERE workflow_uuid = %s",
        f"{effect_id}.1",
    )
    wait_until(partial(ended, scene, effect_id, 1), "the early run has ended")
    assert scene.intent(effect_id) == before
    assert scene.run(effect_id, 2) is None
    assert scene.ledger("early").arrivals == 1


def test_a_run_that_an_older_release_has_begun_is_followed_by_another(scene: Scene) -> None:
    """That one had the engine record the beginning of a run as a step of its own."""
    tool = scene.offer("begun")
    scene.kill_workers()
    effect_id = scene.submit(tool, "begun")
    scene.rows(
        "INSERT INTO dbos.operation_outputs (workflow_uuid, function_id, function_name, output,"
        " serialization, application_name) SELECT %s, 1, 'reserve', %s, w.serialization,"
        " w.application_name FROM dbos.workflow_status AS w WHERE w.workflow_uuid = %s",
        f"{effect_id}.1",
        '{"next": "dispatch", "version": 1, "state": "prepared", "reason": "first_attempt",'
        ' "now": null, "ordinal": 1, "at": null, "alert": null}',
        f"{effect_id}.1",
    )
    scene.start_workers(1)
    assert scene.broker.settled(effect_id)["state"] == "succeeded"
    assert scene.ledger("begun").arrivals == 1
    run = scene.run(effect_id, 1)
    assert run is not None
    assert run["status"] == "ERROR"


def test_runs_that_keep_failing_back_off_and_are_shown_to_a_person(scene: Scene) -> None:
    tool = scene.offer("broken")
    scene.kill_workers()
    effect_id = scene.submit(tool, "broken")
    scene.rows(
        "UPDATE effect_broker.effect_payloads SET ciphertext = set_byte(ciphertext, 40,"
        " 255 - get_byte(ciphertext, 40)) WHERE effect_id = %s AND kind = 'wire'",
        effect_id,
    )
    scene.start_workers(1)
    waits = []
    last = IDLE_GENERATIONS_MAX + 1
    for generation in range(1, last + 1):
        run = wait_until(
            partial(scene.run, effect_id, generation),
            f"generation {generation}",
        )
        # Later generations wait for up to a quarter of an hour. Time goes by inside the database.
        if run["delay_until_epoch_ms"] is not None:
            waits.append(run["delay_until_epoch_ms"] - run["created_at"])
            scene.rows(
                "UPDATE dbos.workflow_status SET delay_until_epoch_ms = 1 WHERE workflow_uuid = %s",
                run["workflow_uuid"],
            )
        wait_until(
            partial(ended, scene, effect_id, generation),
            f"generation {generation} has ended",
        )
        scene.rows(
            "UPDATE effect_broker.effect_intents SET next_action_at = clock_timestamp()"
            " WHERE effect_id = %s AND generation = %s AND NOT parked",
            effect_id,
            generation,
        )
    effect = scene.broker.settled(effect_id)
    assert (effect["state"], effect["reason"]) == ("manual_review", "run_failing")
    seconds = [round(wait / 1000) for wait in waits]
    assert seconds == sorted(seconds)
    assert seconds[-1] >= 10
    assert scene.intent(effect_id)["generation"] == last
    assert scene.attempts(effect_id) == []
    assert scene.ledger("broken").arrivals == 0
    assert scene.events(effect_id)[-1]["kind"] == "parked"
