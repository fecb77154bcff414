"""`DROP SCHEMA dbos CASCADE` in mid-flight costs time, never a duplicate and never an effect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import psycopg.errors
import pytest

from effect_broker import hosting
from effect_broker.durable import migrate_dbos
from effect_broker.proof.broker import wait_until
from effect_broker.store.migrate import MigrationBlocked, migrate
from hosting.scenes import Scene, all_once

SLOTS = 3  # per worker
WORKERS = 2
# Longer than the schema is away on a slow machine: an attempt that is under way must not be lost.
DEADLINE_SECONDS = 45.0


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Few slots, so that some effects stay queued."""
    return {
        "EFFECT_BROKER_WORKER_CONCURRENCY": str(SLOTS),
        "EFFECT_BROKER_TENANT_CONCURRENCY": str(SLOTS),
    }


def drop_engine(scene: Scene) -> None:
    """Drop the engine's schema beside processes that use it all the time."""

    def dropped() -> bool | None:
        try:
            scene.rows("DROP SCHEMA dbos CASCADE")
        except psycopg.errors.DeadlockDetected:
            return None  # a poll of the queue was faster: an operator tries again as well
        return True

    wait_until(dropped, "the schema is dropped")


def run_migrate(scene: Scene) -> dict[str, Any]:
    """Run `effect-broker migrate` as it is documented."""
    environment = {**os.environ, "EFFECT_BROKER_MIGRATE_DATABASE_URL": scene.broker.superuser_url}
    done = subprocess.run(
        [sys.executable, "-m", "effect_broker", "migrate", "--json"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def blocked_migration(scene: Scene) -> str:
    """What a migration says that meets somebody else who makes the schema."""
    url = scene.broker.superuser_url
    with psycopg.connect(url, application_name="restoring-by-hand") as other:
        other.execute("CREATE SCHEMA dbos")
        with pytest.raises(MigrationBlocked) as blocked:
            migrate(url, migrate_dbos=migrate_dbos, lock_timeout_seconds=0.5)
        other.rollback()
    return str(blocked.value)


@pytest.fixture(scope="module")
def dropped(scene: Scene) -> dict[str, list[str]]:
    """Effects in every stage, the schema dropped and made anew, and effects from in between."""
    scene.start_workers(WORKERS)
    client = scene.broker.target.client
    waiting_tool = scene.offer("drop_waits", retry={"retry_after_cap_seconds": 60})
    client.script('status(429, {}, {"retry-after": "9"})', kind="drop_waits")
    waiting = [scene.submit(waiting_tool, "w")]
    scene.wait_for(
        "an effect waits",
        "SELECT state = 'retryable' FROM effect_broker.effect_intents WHERE effect_id = %s",
        waiting[0],
    )

    sending_tool = scene.offer("drop_sends", attempt_deadline_seconds=DEADLINE_SECONDS)
    # The slots are full before anything else is submitted: half of them before the commit at the
    # target, half behind it.
    slots = SLOTS * WORKERS
    client.script(*["hold(before)", "gate(behind)"] * (slots // 2), kind="drop_sends")
    sending = scene.submit_many(sending_tool, slots)
    client.wait_held(slots, timeout_seconds=30)
    queued = scene.submit_many(scene.offer("drop_queued"), 12)

    drop_engine(scene)
    meanwhile = scene.submit_many(scene.offer("drop_meanwhile"), 5)
    client.release()
    assert "restoring-by-hand" in blocked_migration(scene)
    report = run_migrate(scene)
    assert report["engine_created"] is True
    return {
        "drop_waits": waiting,
        "drop_sends": sending,
        "drop_queued": queued,
        "drop_meanwhile": meanwhile,
    }


@pytest.mark.parametrize("kind", ["drop_waits", "drop_sends", "drop_queued", "drop_meanwhile"])
def test_every_effect_settles_once(scene: Scene, dropped: dict[str, list[str]], kind: str) -> None:
    effects = scene.settled(dropped[kind])
    assert {effect["state"] for effect in effects} == {"succeeded"}
    ledger = scene.ledger(kind)
    assert all_once(ledger, len(effects))
    assert ledger.arrivals == len(effects) + (kind == "drop_waits")


def test_the_workers_were_not_restarted_and_serve_the_new_queue(
    scene: Scene, dropped: dict[str, list[str]]
) -> None:
    assert all(worker.alive for worker in scene.workers)
    assert len(scene.workers) == WORKERS
    assert scene.value("SELECT count(*) FROM dbos.queues WHERE name = %s", hosting.QUEUE_NAME) == 1
    (effect,) = scene.settled([scene.submit(scene.offer("drop_after"), "later")])
    assert effect["state"] == "succeeded"


def test_no_generation_was_spent_while_no_run_could_start(
    scene: Scene, dropped: dict[str, list[str]]
) -> None:
    scene.settled(dropped["drop_meanwhile"])
    generations = {scene.intent(effect_id)["generation"] for effect_id in dropped["drop_meanwhile"]}
    # The submit could not enqueue the first one, and the reconcile loop started the second.
    assert generations == {2}


def test_the_processes_say_what_happened(scene: Scene, dropped: dict[str, list[str]]) -> None:
    logs = "".join(Path(worker.log).read_text() for worker in scene.workers)
    assert "registered the queue again" in logs
