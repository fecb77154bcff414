"""A rolling restart under load: SIGTERM leaves no unknown outcome and no lost attempt."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from hosting.scenes import Scene, all_once

EFFECTS = 60
KIND = "rolling"


def test_a_rolling_restart_under_load_leaves_nothing_unknown(scene: Scene) -> None:
    # Unsafe: nothing could be repaired behind the back of this test.
    tool = scene.offer(KIND, "unsafe", attempt_deadline_seconds=30.0)
    client = scene.broker.target.client
    client.script("slow(0.8)", kind=KIND, repeat_last=True)
    old = scene.start_workers(2)
    with ThreadPoolExecutor(1) as caller:
        submitted = caller.submit(scene.submit_many, tool, EFFECTS)
        for number, worker in enumerate(old, start=1):
            # Some of the load has arrived, and some is under way at this worker.
            client.wait_arrivals(number * EFFECTS // 4, kind=KIND, timeout_seconds=60)
            (replacement,) = scene.start_workers(1)
            worker.ask_to_end()
            assert worker.wait_ended() == 0
            assert replacement.alive
        effect_ids = submitted.result()

    effects = scene.settled(effect_ids)
    assert {effect["state"] for effect in effects} == {"succeeded"}
    ledger = scene.ledger(KIND)
    assert ledger.arrivals == EFFECTS
    assert all_once(ledger, EFFECTS)
    lost = scene.value(
        "SELECT count(*) FROM effect_broker.effect_attempts WHERE lost_at IS NOT NULL"
    )
    unknown = scene.value(
        "SELECT count(*) FROM effect_broker.effect_events WHERE to_state = 'outcome_unknown'"
    )
    assert (lost, unknown) == (0, 0)
    stopped = scene.rows(
        "SELECT draining_at, stopped_at FROM effect_broker.workers WHERE stopped_at IS NOT NULL"
    )
    assert len(stopped) == 2
    assert all(row["draining_at"] <= row["stopped_at"] for row in stopped)


def test_a_drained_worker_hands_back_what_it_had_not_sent(scene: Scene) -> None:
    """Waits inside a run are cut by the drain, and the next worker goes on with them."""
    scene.ensure_workers(1)
    tool = scene.offer("rests", attempt_deadline_seconds=30.0)
    scene.broker.target.client.script('status(429, {}, {"retry-after": "4"})', kind="rests")
    effect_id = scene.submit(tool, "short-wait")
    scene.wait_for(
        "it waits inside its run",
        "SELECT state = 'retryable' FROM effect_broker.effect_intents WHERE effect_id = %s",
        effect_id,
    )
    for worker in scene.workers:
        worker.ask_to_end()
    assert [worker.wait_ended() for worker in scene.workers] == [0] * len(scene.workers)
    assert scene.broker.effect(effect_id)["state"] == "retryable"
    scene.ensure_workers(1)
    (effect,) = scene.settled([effect_id])
    assert effect["state"] == "succeeded"
    assert scene.ledger("rests").effects == 1
