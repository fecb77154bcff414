"""A schema that is ahead of the processes: they go on, and new ones of the same release start.

A later release's migration adds columns, tables and indexes, and takes nothing away; here one is
applied in the middle of a load, under sessions that have their statements prepared.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import LiteralString

import psycopg

from hosting.scenes import SAFETIES, Scene, all_once
from hosting.test_outages import insist

EFFECTS = 12

# What a later migration may do to every table that this release reads and writes.
_TABLES: LiteralString = """
SELECT c.oid::regclass::text FROM pg_class AS c
WHERE c.relnamespace = 'effect_broker'::regnamespace AND c.relkind = 'r'
  AND c.relname <> 'alembic_version'
"""


def migrate_ahead(url: str) -> None:
    """Do what the migration of a later release would; after a deadlock again, as `migrate` does."""
    for _ in range(10):
        with suppress(psycopg.errors.DeadlockDetected):
            return _migrate_once(url)
    return _migrate_once(url)


def _migrate_once(url: str) -> None:
    with psycopg.connect(url) as connection:
        for (table,) in connection.execute(_TABLES).fetchall():
            connection.execute(
                f"ALTER TABLE {table} ADD COLUMN of_a_later_release text DEFAULT 'x'".encode()
            )
        connection.execute("CREATE TABLE effect_broker.of_a_later_release (n integer)")
        connection.execute(
            "CREATE INDEX ON effect_broker.effect_intents (of_a_later_release)"
            " WHERE of_a_later_release IS NOT NULL"
        )
        connection.execute("UPDATE effect_broker.alembic_version SET version_num = '9999'")


def test_processes_of_this_release_go_on_over_the_schema_of_a_later_one(scene: Scene) -> None:
    scene.start_workers(2)
    tools = {safety: scene.offer(f"rolling_{safety}", safety) for safety in SAFETIES}
    for tool in tools.values():  # every statement is prepared before the schema moves
        scene.settled(scene.submit_many(tool, 2, "before"))

    ahead = threading.Event()

    def load(safety: str) -> list[str]:
        effect_ids = []
        for n in range(EFFECTS):
            if n == EFFECTS // 3:
                ahead.wait(60)
            effect_ids.append(insist(scene, tools[safety], f"o{n}"))
        return effect_ids

    with ThreadPoolExecutor(len(tools)) as pool:
        loads = [pool.submit(load, safety) for safety in tools]
        migrate_ahead(scene.broker.superuser_url)
        ahead.set()
        effect_ids = [effect_id for one in loads for effect_id in one.result(120)]
    for effect in scene.settled(effect_ids):
        assert effect["state"] == "succeeded", effect
    for safety in tools:
        assert all_once(scene.ledger(f"rolling_{safety}"), EFFECTS + 2)

    # The old release may still be started, by a deployment that is half rolled out.
    scene.kill_workers()
    scene.start_workers(1)
    ready = scene.broker.http.get("/readyz").json()
    assert ready["status"] == "ok", ready
    later = scene.submit(tools["unsafe"], "later")
    assert scene.broker.settled(later)["state"] == "succeeded"
    api = scene.broker.start_api()
    assert api.alive
