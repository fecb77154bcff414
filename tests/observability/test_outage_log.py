"""While the database is away a worker says so, and goes on saying it, without filling the disk."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections import Counter
from pathlib import Path

import pytest

from effect_broker.postgres.embedded import EmbeddedPostgres
from effect_broker.proof.broker import ProofBroker, wait_until
from hosting.scenes import Scene

AWAY_SECONDS = 12.0
# Eight loops and the engine's places, each at most once in five seconds.
LINES_MAX = 120


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
        loops = Counter((line["loop"], line["problem"]) for line in lines if "loop" in line)
        assert loops[("beat", "StoreUnavailable")] in {2, 3}
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
