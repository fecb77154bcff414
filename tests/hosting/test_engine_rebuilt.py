"""A worker that starts while `migrate` makes the engine's schema anew waits, and serves then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from effect_broker.durable import migrate_dbos
from effect_broker.proof.broker import wait_until
from effect_broker.proof.stack import ManagedProcess
from effect_broker.store.migrate import migrate
from effect_broker.store.roles import DatabaseRole
from hosting.scenes import READY_SECONDS, Scene

WAITS = "the engine's schema (dbos) is missing or not whole"


def run_migrate(scene: Scene) -> None:
    migrate(scene.broker.superuser_url, migrate_dbos=migrate_dbos)


@dataclass(frozen=True)
class Broken:
    """One way in which the schema is not whole.

    Attributes:
        begun: what a rebuild has done so far, as SQL.
        finished: completes it.
    """

    begun: tuple[str, ...]
    finished: Callable[[Scene], None] = run_migrate

    def begin(self, scene: Scene) -> None:
        for statement in self.begun:
            scene.rows(statement)


def undone(statement: str) -> Callable[[Scene], None]:
    def finish(scene: Scene) -> None:
        scene.rows(statement)

    return finish


BROKEN = {
    "no schema": Broken(("DROP SCHEMA dbos CASCADE",)),
    "no tables": Broken(("DROP SCHEMA dbos CASCADE", "CREATE SCHEMA dbos")),
    "no table": Broken(
        ("ALTER TABLE dbos.queues RENAME TO queues_elsewhere",),
        undone("ALTER TABLE dbos.queues_elsewhere RENAME TO queues"),
    ),
    "no column": Broken(
        ("ALTER TABLE dbos.queues RENAME COLUMN name TO name_elsewhere",),
        undone("ALTER TABLE dbos.queues RENAME COLUMN name_elsewhere TO name"),
    ),
    "an older version": Broken(
        ("UPDATE dbos.dbos_migrations SET version = version - 1",),
        undone("UPDATE dbos.dbos_migrations SET version = version + 1"),
    ),
    "no rights": Broken(
        (f"REVOKE ALL ON ALL TABLES IN SCHEMA dbos FROM {DatabaseRole.WORKER.value}",)
    ),
}


def said(worker: ManagedProcess) -> bool | None:
    """True once the worker has said that it waits; it must not have ended."""
    text = Path(worker.log).read_text()
    assert worker.alive, text
    return WAITS in text or None


@pytest.mark.parametrize("name", BROKEN)
def test_a_worker_that_starts_meanwhile_waits_and_then_serves(scene: Scene, name: str) -> None:
    scene.kill_workers()
    broken = BROKEN[name]
    broken.begin(scene)
    worker = scene.broker.stack.worker()
    scene.workers.append(worker)
    try:
        wait_until(lambda: said(worker), "the worker says that it waits", READY_SECONDS)
        assert not worker.ready
    finally:
        broken.finished(scene)
    worker.wait_ready(READY_SECONDS)
    kind = f"rebuilt_{name.replace(' ', '_')}"
    (effect,) = scene.settled([scene.submit(scene.offer(kind), "once")])
    assert effect["state"] == "succeeded"
    assert scene.ledger(kind).arrivals == 1


def test_a_worker_that_waits_ends_when_it_is_told_to(scene: Scene) -> None:
    scene.kill_workers()
    scene.rows("DROP SCHEMA dbos CASCADE")
    worker = scene.broker.stack.worker()
    try:
        wait_until(lambda: said(worker), "the worker says that it waits", READY_SECONDS)
        assert worker.terminate() == 0
    finally:
        run_migrate(scene)
