"""Backup and restore with the real programs: what comes back from a dump sends nothing."""

from __future__ import annotations

import json
import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql

from cli.commands import Ended, run_for_real
from effect_broker.postgres.binaries import find_binaries
from effect_broker.proof.broker import wait_until
from hosting.scenes import Scene
from tools import could_not_run

LOST = 3  # effects that are sent after the backup and before the disaster
SETTLE_SECONDS = 60.0


def _program(name: str) -> str:
    found = find_binaries().found
    if found is None or not (found.directory / name).exists():
        could_not_run(f"{name} of PostgreSQL is not here")
    return str(found.directory / name)


def _run(*command: str) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def _as_operator(scene: Scene, *arguments: str) -> Ended:
    environment = {
        **scene.broker.stack.environment,
        "EFFECT_BROKER_MIGRATE_DATABASE_URL": scene.broker.superuser_url,
    }
    return run_for_real(environment, *arguments)


def _lose_the_database(scene: Scene) -> None:
    parts = urlsplit(scene.broker.superuser_url)
    name = sql.Identifier(parts.path.removeprefix("/"))
    elsewhere = urlunsplit(parts._replace(path="/postgres"))
    with psycopg.connect(elsewhere, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))
        connection.execute(sql.SQL("CREATE DATABASE {}").format(name))


def _is(scene: Scene, effect_id: str, **members: Any) -> dict[str, Any] | None:
    effect = scene.broker.effect(effect_id)
    return effect if members.items() <= effect.items() else None


@pytest.mark.timeout(300)
def test_the_drill_of_a_lost_database(scene: Scene, tmp_path: Path) -> None:
    tool = scene.offer("drilled", "unsafe")
    effect_ids = scene.submit_many(tool, LOST)
    backup = str(tmp_path / "backup.dump")
    _run(_program("pg_dump"), "--format=custom", "--schema=effect_broker", f"--file={backup}",
         scene.broker.superuser_url)  # fmt: skip
    scene.start_workers(2)
    for effect in scene.settled(effect_ids):
        assert effect["state"] == "succeeded"
    assert scene.ledger("drilled").arrivals == LOST

    scene.kill_workers()
    _lose_the_database(scene)
    # A schema of the name is in the dump, and the server knows the roles.
    restored = subprocess.run(
        [_program("pg_restore"), "--exit-on-error", "--dbname", scene.broker.superuser_url, backup],
        capture_output=True, text=True, check=False, env=dict(os.environ),
    )  # fmt: skip
    assert restored.returncode == 0, restored.stderr
    migrated = _as_operator(scene, "migrate")
    assert migrated.code == 0, migrated.err

    # The restored ledger knows nothing of the sends, and does not repeat them.
    scene.start_workers(2)
    held = {"state": "prepared", "reason": "database_restored", "waits_for_person": True}
    for effect_id in effect_ids:
        wait_until(partial(_is, scene, effect_id, **held), "it is held", SETTLE_SECONDS)
    assert scene.ledger("drilled").arrivals == LOST
    diagnosis = _as_operator(scene, "doctor", "--json")
    assert "restored" in {
        found["check"]
        for found in json.loads(diagnosis.out)["findings"]
        if found["level"] == "fail"
    }, diagnosis.out
    log = tmp_path / "log.jsonl"
    assert _as_operator(scene, "events", "export", "--out", str(log)).code == 0
    verified = _as_operator(scene, "events", "verify", str(log))
    assert verified.code == 0, verified.out + verified.err

    # A person has looked at the target: what is there is withdrawn here, then all may go on.
    for effect_id in effect_ids:
        assert _as_operator(scene, "effects", "cancel", effect_id).code == 0
    resumed = _as_operator(
        scene, "database", "resume", "--reason", "drill",
        "--lost-from", "2026-01-01T00:00:00Z", "--lost-to", "2026-01-01T01:00:00Z",
    )  # fmt: skip
    assert resumed.code == 0, resumed.err
    new = scene.submit(tool, "new")
    assert scene.broker.settled(new)["state"] == "succeeded"
    assert scene.ledger("drilled").arrivals == LOST + 1

    # Files that came from a snapshot look like nothing has happened; a person says so.
    assert "only idempotent" in _as_operator(scene, "database", "halt").out
    assert "already" in _as_operator(scene, "database", "halt").out
    later = scene.submit(tool, "later")
    wait_until(partial(_is, scene, later, **held), "it is held", SETTLE_SECONDS)
