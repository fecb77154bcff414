"""The database crashes, and later refuses writes, in the middle of a load."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from effect_broker.postgres.embedded import EmbeddedPostgres
from effect_broker.proof.broker import ProofBroker, wait_until
from effect_broker.proof.contracts import charge
from hosting.scenes import SAFETIES, Scene, all_once

EFFECTS = 24
READ_ONLY_SECONDS = 3.5  # longer than the heartbeat's TTL


@pytest.fixture
def outage(own_postgres: EmbeddedPostgres, directory: Path) -> Iterator[Scene]:
    """A broker on a durable server of its own."""
    broker = ProofBroker(directory, own_postgres.url)
    with broker, Scene(broker) as made:
        broker.prepare()
        broker.start_api()
        made.start_workers(2)
        yield made


def insist(scene: Scene, tool: str, order: str) -> str:
    """Submit as a caller does who wants to be sure: again with the same key until it is said."""

    def answered() -> str | None:
        try:
            answer = scene.broker.submit(f"{tool}:{order}", tool, charge(order))
        except httpx.TransportError:
            return None
        assert answer.status_code in {200, 202, 503}, answer.text
        return None if answer.status_code == 503 else str(answer.json()["effect_id"])

    return wait_until(answered, f"{order} is accepted")


def patiently_settled(scene: Scene, effect_id: str) -> dict[str, Any]:
    """The settled effect, asked for again while the API says that it cannot know."""

    def answered() -> dict[str, Any] | None:
        try:
            return scene.broker.settled(effect_id)
        except httpx.HTTPStatusError as problem:
            if problem.response.status_code != 503:
                raise
            return None

    return wait_until(answered, f"{effect_id} is settled")


def load(scene: Scene, caller: ThreadPoolExecutor, round_name: str) -> list[Future[list[str]]]:
    """Begin to submit effects of every class, with answers that take a while."""
    running = []
    for safety in SAFETIES:
        kind = f"{safety}_{round_name}"
        tool = scene.offer(kind, safety, attempt_deadline_seconds=30.0)
        scene.broker.target.client.script("slow(0.4)", kind=kind, repeat_last=True)

        def submit_all(tool: str = tool) -> list[str]:
            return [insist(scene, tool, f"{round_name}-{n}") for n in range(EFFECTS // 3)]

        running.append(caller.submit(submit_all))
    for safety in SAFETIES:
        scene.broker.target.client.wait_arrivals(2, kind=f"{safety}_{round_name}")
    return running


def expect_each_once(scene: Scene, running: list[Future[list[str]]], round_name: str) -> None:
    """All that was accepted succeeds, sent once."""
    for safety, submitted in zip(SAFETIES, running, strict=True):
        effects = [patiently_settled(scene, effect_id) for effect_id in submitted.result()]
        assert {effect["state"] for effect in effects} == {"succeeded"}
        ledger = scene.ledger(f"{safety}_{round_name}")
        # Every worker lived through it and had its answer, so nothing was in doubt.
        assert ledger.arrivals == len(effects)
        assert all_once(ledger, len(effects))


@pytest.mark.timeout(180)
def test_a_crash_and_a_read_only_window_cost_time_and_nothing_else(
    outage: Scene, own_postgres: EmbeddedPostgres
) -> None:
    with ThreadPoolExecutor(len(SAFETIES)) as caller:
        running = load(outage, caller, "crash")
        own_postgres.restart("immediate")
        expect_each_once(outage, running, "crash")

        running = load(outage, caller, "read_only")
        with psycopg.connect(own_postgres.url, autocommit=True) as superuser:
            superuser.execute("SET default_transaction_read_only = off")
            superuser.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            superuser.execute("SELECT pg_reload_conf()")
            threading.Event().wait(READ_ONLY_SECONDS)
            superuser.execute("ALTER SYSTEM RESET default_transaction_read_only")
            superuser.execute("SELECT pg_reload_conf()")
        expect_each_once(outage, running, "read_only")
    assert all(worker.alive for worker in outage.workers)
