"""Rows that others have put into the engine's tables run nothing and stop nothing."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path
from uuid import uuid4

import pytest

from effect_broker import hosting
from effect_broker.proof.broker import wait_until
from hosting.scenes import Scene


class Creation:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


@pytest.fixture(scope="module", autouse=True)
def worker(scene: Scene) -> None:
    """One live worker."""
    scene.offer("foreign")
    scene.start_workers(1)


def insert_run(scene: Scene, *, name: str, inputs: str, serialization: str, queue: str) -> str:
    """Insert rows as somebody with rights on the engine's tables could; return the run's id."""
    run_id = f"{uuid4()}.1"
    now = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
    scene.rows(
        "INSERT INTO dbos.workflow_input (workflow_uuid, inputs, retention_timestamp)"
        f" VALUES (%s, %s, {now})",
        run_id,
        inputs,
    )
    scene.rows(
        "INSERT INTO dbos.workflow_status (workflow_uuid, status, name, queue_name, priority,"
        " application_version, application_name, created_at, updated_at, serialization,"
        " queue_partition_key)"
        f" VALUES (%s, 'ENQUEUED', %s, %s, 1, %s, %s, {now}, {now}, %s, %s)",
        run_id,
        name,
        queue,
        hosting.APPLICATION_VERSION,
        hosting.APPLICATION_NAME,
        serialization,
        scene.broker.tenant_id,
    )
    return run_id


def status(scene: Scene, run_id: str) -> str:
    """The status of a run."""
    found: str = scene.value(
        "SELECT status FROM dbos.workflow_status WHERE workflow_uuid = %s", run_id
    )
    return found


@pytest.mark.parametrize("queue", [hosting.QUEUE_NAME, "_dbos_internal_queue"])
def test_a_pickled_row_runs_nothing_and_stops_nothing(
    scene: Scene, tmp_path: Path, queue: str
) -> None:
    marker = tmp_path / "unpickled"
    payload = base64.b64encode(pickle.dumps({"args": (Creation(marker),), "kwargs": {}})).decode()
    run_id = insert_run(
        scene,
        name=hosting.WORKFLOW_NAME,
        inputs=payload,
        serialization="py_pickle",
        queue=queue,
    )
    wait_until(lambda: status(scene, run_id) == "ERROR" or None, "the pickle was refused")
    assert not marker.exists()
    (effect,) = scene.settled([scene.submit("proof.foreign", f"after-{queue}")])
    assert effect["state"] == "succeeded"


def test_only_our_own_orphans_are_handed_back(scene: Scene) -> None:
    foreign = insert_run(
        scene,
        name="somebody_elses",
        inputs='{"positionalArgs": [], "namedArgs": {}}',
        serialization="portable_json",
        queue=hosting.QUEUE_NAME,
    )
    wait_until(lambda: status(scene, foreign) == "PENDING" or None, "the row was claimed")
    (effect,) = scene.settled([scene.submit("proof.foreign", "orphan")])
    own = f"{effect['effect_id']}.1"
    wait_until(lambda: status(scene, own) == "SUCCESS" or None, "the run has ended")
    # Both are pending on this executor, for ever so long, and not in it. One statement: the loop
    # meets them together.
    scene.rows(
        "UPDATE dbos.workflow_status SET status = 'PENDING', started_at_epoch_ms = 1"
        " WHERE workflow_uuid = ANY(%s)",
        [foreign, own],
    )
    wait_until(lambda: status(scene, own) == "SUCCESS" or None, "the orphan has run")
    row = scene.rows("SELECT * FROM dbos.workflow_status WHERE workflow_uuid = %s", foreign)[0]
    assert (row["status"], row["started_at_epoch_ms"]) == ("PENDING", 1)
    assert scene.ledger("foreign").arrivals == scene.ledger("foreign").effects
