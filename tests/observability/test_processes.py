"""Real processes: what a worker, a reconciler and an API say of the same effects."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from effect_broker.faultpoints import FaultPoint
from effect_broker.proof.broker import ProofBroker, wait_until
from hosting.scenes import LEASE_SECONDS, Scene
from observability.pages import LISTENS, Page, api, page_of
from postgres import Database, RunningServer, clone, drop_database


@pytest.fixture(scope="module")
def module_database(running_server: RunningServer, template_name: str) -> Iterator[Database]:
    """One database for the tests of this module."""
    cloned = clone(running_server, template_name)
    yield cloned
    drop_database(running_server, cloned.name)


@pytest.fixture(scope="module")
def scene(module_database: Database) -> Iterator[Scene]:
    """A broker whose processes serve their numbers on ports of their own."""
    directory = Path(tempfile.mkdtemp(prefix="effect-broker-observability-"))
    environment = {"EFFECT_BROKER_METRICS_PORT": "0"}
    broker = ProofBroker(
        directory, module_database.superuser_url, environment=environment, migrated=True
    )
    with broker, Scene(broker) as made:
        broker.prepare()
        broker.start_api()
        yield made
    shutil.rmtree(directory, ignore_errors=True)


def test_what_workers_do_is_counted_where_it_happens_and_sums_up(scene: Scene) -> None:
    tool = scene.offer("counted", attempt_deadline_seconds=LEASE_SECONDS)
    scene.broker.arm(FaultPoint.AFTER_TARGET_ANSWER)
    (lost,) = scene.start_workers(1)
    effect_id = scene.submit(tool, "o1")
    scene.broker.wait_fired(FaultPoint.AFTER_TARGET_ANSWER)
    assert lost.wait_ended() != 0
    (worker,) = scene.start_workers(1)
    assert scene.broker.settled(effect_id)["state"] == "succeeded"

    def reaped() -> Page | None:
        page = page_of(worker)
        return page if page.value("lease_expirations_total", kind="run") else None

    page = wait_until(reaped, "the dead worker's run was handed back")
    assert page.value("effects_total", tool=tool, event="succeeded") == 1
    assert page.value("attempts_total", tool=tool, safety="idempotent") == 1  # the second one
    assert page.value("attempt_outcomes_total", tool=tool, outcome="presumed_ambiguous") == 1
    assert page.value("attempt_outcomes_total", tool=tool, outcome="committed") == 1
    assert page.value("lease_expirations_total", kind="attempt") == 1
    assert page.value("key_remaining_seconds_count", tool=tool) == 1
    assert page.value("retries_after_key_expiry_total") == 0
    assert page.value("dispatch_seconds_count", tool=tool) == 1
    assert page.value("reconciliation_seconds_count", tool=tool) == 1
    assert page.value("settlement_seconds_sum", tool=tool) > 0
    assert page.value("may_dispatch") == 1
    assert page.values("ledger_up") == [], "a worker does not speak for the ledger"


def test_look_ups_are_counted_with_what_they_showed(scene: Scene) -> None:
    scene.ensure_workers(1)
    tool = scene.offer("probed", "reconcilable")
    scene.broker.target.client.script("commit;RST", kind="probed")
    effect_id = scene.submit(tool, "o1")
    assert scene.broker.settled(effect_id)["state"] == "succeeded"
    page = page_of(scene.workers[0])
    assert page.value("evidence_total", tool=tool, source="probe", verdict="committed") == 1
    assert page.value("probe_seconds_count", tool=tool) >= 1
    assert page.value("reservation_seconds_count", tool=tool) == 1


def test_the_api_tells_of_the_ledger_beside_its_own_numbers(scene: Scene) -> None:
    scene.ensure_workers(1)
    tool = scene.offer("unsafe", "unsafe")
    scene.broker.target.client.script("commit;RST", kind="unsafe")
    effect_id = scene.submit(tool, "o1")
    assert scene.broker.settled(effect_id)["state"] == "outcome_unknown"

    def seen() -> Page | None:
        page = page_of(api(scene))
        return page if page.value("ledger_in_doubt_effects", tool=tool) else None

    page = wait_until(seen, "the effect in doubt")
    assert page.value("ledger_in_doubt_effects", tool=tool, safety="unsafe") == 1
    assert page.value("ledger_workers", state="live") >= 1
    assert page.value("ledger_heartbeat_age_seconds") < 60
    assert page.value("effects_total", tool=tool, event="submitted") == 1


def test_a_reconciler_counts_the_runs_that_it_starts(scene: Scene) -> None:
    scene.kill_workers()
    process = scene.broker.stack.reconciler()
    process.wait_ready()
    scene.rows("DELETE FROM dbos.workflow_status")
    tool = scene.offer("left")
    effect_id = scene.submit(tool, "o1")
    scene.rows("DELETE FROM dbos.workflow_status WHERE workflow_uuid LIKE %s", f"{effect_id}.%")

    def started() -> float | None:
        return page_of(process).value("requeues_total") or None

    assert wait_until(started, "a run was started") >= 1
    assert page_of(process).values("build_info", process="reconciler") == [1]


def test_a_port_that_is_taken_is_a_sentence(scene: Scene) -> None:
    found = LISTENS.search(api(scene).log.read_text())
    assert found is not None
    settings: dict[str, Any] = {"EFFECT_BROKER_METRICS_PORT": found[1]}
    process = scene.broker.stack.worker(settings)
    assert process.wait_ended(60) != 0
    said = process.log.read_text()
    assert "EFFECT_BROKER_METRICS_PORT: cannot listen on 127.0.0.1" in said
    assert "Traceback" not in said
