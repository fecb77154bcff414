"""After a restore or a failover only idempotent effects go on, until a person has spoken."""

from __future__ import annotations

import psycopg
import pytest

from cli.commands import run_for_real
from effect_broker.proof.broker import wait_until
from effect_broker.proof.contracts import charge, tuned
from hosting.scenes import Scene


def _halted(scene: Scene) -> bool | None:
    with psycopg.connect(scene.broker.superuser_url) as connection:
        row = connection.execute("SELECT halted_at FROM effect_broker.database_identity").fetchone()
    return True if row is not None and row[0] is not None else None


@pytest.mark.timeout(180)
def test_dispatch_halts_for_every_class_but_idempotent_until_the_interval_is_recorded(
    scene: Scene,
) -> None:
    broker = scene.broker
    scene.start_workers(1)
    for kind, mode in (("restored_i", "dedupe"), ("restored_u", "neither")):
        broker.target.client.set_mode(kind, mode)  # type: ignore[arg-type]
    broker.apply(
        tuned("demo-charge-idempotent", broker.target.url, "restored_i"),
        tuned("demo-charge-unsafe", broker.target.url, "restored_u"),
    )
    with psycopg.connect(broker.superuser_url) as connection:
        # What the ledger remembers is another server than the one it is on now.
        connection.execute("UPDATE effect_broker.database_identity SET timeline = timeline + 7")
    wait_until(lambda: _halted(scene), "the halt")
    sent = broker.submit("restored:i", "proof.restored_i", charge("1"), wait=30).json()
    held = broker.submit("restored:u", "proof.restored_u", charge("1"), wait=30).json()
    assert sent["state"] == "succeeded"
    assert (held["state"], held["reason"]) == ("prepared", "database_restored")
    assert held["waits_for_person"]
    assert broker.target.client.ledger(kind="restored_u").arrivals == 0
    words = ["database", "resume", "--reason", "restored from the backup of noon"]
    moments = ["--lost-from", "2026-01-01T12:00:00+00:00", "--lost-to", "2026-01-01T12:05:00Z"]
    said = run_for_real(
        {"EFFECT_BROKER_MIGRATE_DATABASE_URL": broker.superuser_url}, *words, *moments
    )
    assert said.code == 0, said.err
    settled = wait_until(
        lambda: ((e := broker.effect(held["effect_id"]))["final"] and e) or None,
        "the effect settled",
    )
    assert settled["state"] == "succeeded"
    assert broker.target.client.ledger(kind="restored_u").effects == 1
    with psycopg.connect(broker.superuser_url) as connection:
        recorded = connection.execute(
            "SELECT reason FROM effect_broker.database_restores"
        ).fetchall()
    assert recorded == [("restored from the backup of noon",)]
