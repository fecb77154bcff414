"""While the database is away a worker says so, and goes on saying it, without filling the disk."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections import Counter
from pathlib import Path

import pytest

from effect_broker.logs import SELDOM_SECONDS
from effect_broker.postgres.embedded import EmbeddedPostgres
from effect_broker.proof.broker import ProofBroker, wait_until
from hosting.scenes import Scene
from postgres import Database

AWAY_SECONDS = 12.0
# Eight loops and the engine's places, each at most once in five seconds.
LINES_MAX = 120
# Beats fail once a second then.
FAILING_SECONDS = 8.0


@pytest.mark.timeout(240)
def test_an_outage_is_told_seldom_by_us_and_by_the_engine(own_postgres: EmbeddedPostgres) -> None:
    directory = Path(tempfile.mkdtemp(prefix="effect-broker-outage-"))
    environment = {"EFFECT_BROKER_LOG_FORMAT": "json"}
    broker = ProofBroker(directory, own_postgres.url, environment=environment)
    with broker, Scene(broker) as scene:
        broker.prepare()
        broker.start_api()
        (worker,) = scene.start_workers(1)
        begin = len(worker.log.read_text())
        own_postgres.stop()
        threading.Event().wait(AWAY_SECONDS)
        said = worker.log.read_text()[begin:]
        own_postgres.start()
        lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        assert len(lines) == len(said.splitlines()), "every line is an object"
        events = Counter(line["event"] for line in lines)
        assert {"loop_failed", "log_of_dbos"} <= events.keys()
        assert len(lines) <= LINES_MAX, events
        # It has lived through it.
        tool = scene.offer("after")
        effect_id = wait_until(
            lambda: (
                broker.submit("after", tool, {"order": "1", "amount": 1, "currency": "eur"})
                .json()
                .get("effect_id")
            ),
            "a submit after the outage",
        )
        assert broker.settled(effect_id)["state"] == "succeeded"
    shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.timeout(240)
def test_a_loop_that_fails_at_each_turn_is_told_once_in_a_while(database: Database) -> None:
    directory = Path(tempfile.mkdtemp(prefix="effect-broker-outage-"))
    environment = {"EFFECT_BROKER_LOG_FORMAT": "json"}
    broker = ProofBroker(directory, database.superuser_url, environment=environment, migrated=True)
    with broker, Scene(broker) as scene:
        (worker,) = scene.start_workers(1)
        begin = len(worker.log.read_text())
        scene.rows("REVOKE ALL ON effect_broker.workers FROM effect_broker_worker")
        threading.Event().wait(FAILING_SECONDS)
        said = worker.log.read_text()[begin:]
        scene.rows(
            "GRANT SELECT, INSERT, UPDATE, DELETE ON effect_broker.workers TO effect_broker_worker"
        )
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    beats = [line for line in lines if line.get("loop") == "beat"]
    assert 1 <= len(beats) <= 1 + FAILING_SECONDS // SELDOM_SECONDS
    assert beats[-1].get("left_out", 0) >= 2 or len(beats) == 1
    shutil.rmtree(directory, ignore_errors=True)
