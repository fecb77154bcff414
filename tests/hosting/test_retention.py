"""Pruning over a broker that has run: what waits stays whole, what is settled stays settled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import LiteralString

import pytest

from cli.commands import run_for_real
from effect_broker.faultpoints import FaultAction, FaultPoint
from effect_broker.keyring import ENV_KEY_RING_FILE, new_key_ring
from effect_broker.proof.contracts import charge
from effect_broker.store.pool import make_pool
from effect_broker.store.retention import Retention, Stage
from effect_broker.store.roles import DatabaseRole
from hosting.scenes import Scene, go_on

PAYLOADS = "SELECT count(*) FROM effect_broker.effect_payloads WHERE ciphertext IS NOT NULL"
NOW = ("--engine-after", "0s", "--payloads-after", "0s", "--rows-after", "0s")


def environment(scene: Scene) -> Mapping[str, str]:
    """That of the scene's processes, with the login that administers."""
    return {
        **scene.broker.stack.environment,
        "EFFECT_BROKER_MIGRATE_DATABASE_URL": scene.broker.superuser_url,
    }


def pruned(scene: Scene, *arguments: str) -> dict[str, dict[str, int]]:
    ended = run_for_real(environment(scene), "prune", *arguments, "--batch", "2", "--json")
    assert ended.code == 0, ended.err
    found: dict[str, dict[str, int]] = ended.json
    return found


def counts(scene: Scene, effect_id: str) -> dict[str, int]:
    queries: dict[str, LiteralString] = {
        "attempts": "SELECT count(*) FROM effect_broker.effect_attempts WHERE effect_id = %s",
        "events": "SELECT count(*) FROM effect_broker.effect_events WHERE effect_id = %s",
        "payloads": "SELECT count(*) FROM effect_broker.effect_payloads WHERE effect_id = %s",
        "evidence": "SELECT count(*) FROM effect_broker.effect_evidence WHERE effect_id = %s",
    }
    return {table: scene.value(query, effect_id) for table, query in queries.items()}


@pytest.fixture(scope="module")
def parked(scene: Scene) -> str:
    """An unsafe effect whose answer was lost: it waits for a person."""
    tool = scene.offer("kept", "unsafe", attempt_deadline_seconds=1.0)
    scene.ensure_workers(2)
    scene.broker.arm(FaultPoint.AFTER_TARGET_ANSWER)
    effect_id = scene.submit(tool, "lost")
    scene.broker.wait_fired(FaultPoint.AFTER_TARGET_ANSWER)
    assert scene.broker.settled(effect_id)["state"] == "outcome_unknown"
    return effect_id


def test_what_is_settled_is_removed_in_stages_and_its_key_is_still_a_replay(
    scene: Scene, parked: str
) -> None:
    scene.ensure_workers(2)
    tool = scene.offer("pruned")
    effect_ids = scene.submit_many(tool, 5)
    for effect in scene.settled(effect_ids):
        assert effect["state"] == "succeeded"
    before = counts(scene, parked)
    one = effect_ids[0]
    receipt = scene.broker.receipt(one)
    assert receipt is not None

    nothing = pruned(scene)
    assert {stage["effects"] for stage in nothing.values()} == {0}, "too young by the defaults"
    engine = pruned(scene, "--engine-after", "0s", "--payloads-after", "never",
                    "--rows-after", "never")["engine"]  # fmt: skip
    assert engine["effects"] == 5
    assert scene.run(one) is None
    assert scene.run(parked) is not None
    left = pruned(scene, *NOW)
    assert (left["payloads"]["effects"], left["rows"]["effects"]) == (5, 5)
    assert set(counts(scene, one).values()) == {0}
    assert counts(scene, parked) == before

    # The key stands: the same request is a replay, another one a conflict, nothing is sent.
    arrivals = scene.ledger("pruned").arrivals
    again = scene.broker.submit(f"{tool}:o0", tool, charge("o0"))
    assert (again.status_code, again.json()["state"]) == (200, "succeeded")
    other = scene.broker.submit(f"{tool}:o0", tool, charge("another"))
    assert (other.status_code, other.json()["code"]) == (409, "payload_conflict")
    assert scene.ledger("pruned").arrivals == arrivals
    kept = scene.broker.receipt(one)
    assert kept is not None
    assert (kept["receipt"], kept["digest"]) == (receipt["receipt"], receipt["digest"])
    assert kept["result"] is None
    assert {stage["effects"] for stage in pruned(scene, *NOW).values()} == {0}


def test_a_log_with_pruned_effects_is_still_verified(scene: Scene, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    exported = run_for_real(environment(scene), "events", "export")
    assert exported.code == 0, exported.err
    log.write_text(exported.out)
    verified = run_for_real(environment(scene), "events", "verify", str(log))
    assert verified.code == 0, verified.out + verified.err


def test_two_that_prune_at_once_and_a_late_answer_break_nothing(scene: Scene) -> None:
    scene.ensure_workers(2)
    tool = scene.offer("busy_prune", attempt_deadline_seconds=2.0)
    scene.broker.arm(FaultPoint.AFTER_TARGET_ANSWER, FaultAction.STOP)
    late = scene.submit(tool, "late")
    pid = scene.stopped_at(FaultPoint.AFTER_TARGET_ANSWER)
    assert scene.broker.settled(late)["state"] == "succeeded"
    effect_ids = scene.submit_many(tool, 6)
    scene.settled(effect_ids)

    async def prune() -> int:
        url = scene.broker.url(DatabaseRole.PRUNE)
        async with make_pool(url, None, application_name="test-prune", size_max=2) as pool:
            retention = Retention(pool)
            effects = 0
            for stage in Stage:
                done = await asyncio.gather(*(retention.prune(stage, 0, 100) for _ in range(2)))
                effects += sum(batch.effects for batch in done)
            return effects

    assert asyncio.run(prune()) == 3 * 7
    go_on(pid)
    scene.ensure_workers(2)
    later = scene.submit(tool, "later")
    assert scene.broker.settled(later)["state"] == "succeeded"
    effect = scene.broker.effect(late)
    assert (effect["state"], effect["alert"]) == ("succeeded", None)


def test_the_engines_schema_may_be_away(scene: Scene) -> None:
    scene.ensure_workers(1)
    tool = scene.offer("prune_without_engine")
    (effect_id,) = scene.submit_many(tool, 1)
    scene.settled([effect_id])
    scene.kill_workers()
    scene.rows("ALTER SCHEMA dbos RENAME TO dbos_away")
    try:
        assert pruned(scene, *NOW)["rows"]["effects"] >= 1
    finally:
        scene.rows("ALTER SCHEMA dbos_away RENAME TO dbos")


def test_payloads_are_sealed_anew_and_effects_keep_their_downstream_keys(
    scene: Scene, parked: str, tmp_path: Path
) -> None:
    ring_file = Path(scene.broker.stack.environment[ENV_KEY_RING_FILE])
    ring = json.loads(ring_file.read_text())
    fresh = json.loads(new_key_ring("fresh", development=True))
    old = ring["encryption"]["active"]
    ring["encryption"]["keys"].update(fresh["encryption"]["keys"])
    ring["encryption"]["active"] = "fresh"
    both = tmp_path / "both.json"
    both.write_text(json.dumps(ring))
    keys = "SELECT DISTINCT key_id FROM effect_broker.effect_payloads WHERE ciphertext IS NOT NULL"
    assert [row["key_id"] for row in scene.rows(keys)] == [old]
    before = scene.intent(parked)["downstream_key"]
    own = {**environment(scene), ENV_KEY_RING_FILE: str(both)}
    ended = run_for_real(own, "keys", "rotate", "--window", "3", "--json")
    assert ended.code == 0, ended.err
    assert ended.json["sealed_anew"] == scene.value(PAYLOADS) > 0
    assert [row["key_id"] for row in scene.rows(keys)] == ["fresh"]
    assert run_for_real(own, "keys", "rotate", "--json").json["sealed_anew"] == 0
    assert scene.intent(parked)["downstream_key"] == before
    # What was sealed anew opens: the effect is compared with its own arguments.
    other = run_for_real(own, "effects", "submit", "--tool", scene.intent(parked)["tool"],
                         "--key", scene.intent(parked)["operation_key"],
                         "--arguments", json.dumps(charge("another")))  # fmt: skip
    assert "first difference" in other.err
    assert "/arguments" in other.err


def test_a_ring_without_the_old_key_changes_nothing(scene: Scene, tmp_path: Path) -> None:
    lacking = tmp_path / "lacking.json"
    lacking.write_text(new_key_ring("another", development=True))
    own = {**environment(scene), ENV_KEY_RING_FILE: str(lacking)}
    before = scene.rows("SELECT * FROM effect_broker.effect_payloads ORDER BY effect_id, kind, ref")
    ended = run_for_real(own, "keys", "rotate")
    assert ended.code == 1
    assert "encryption key" in ended.err
    after = scene.rows("SELECT * FROM effect_broker.effect_payloads ORDER BY effect_id, kind, ref")
    assert after == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("--payloads-after", "1h"),
        ("--engine-after", "never", "--payloads-after", "30d"),
        ("--rows-after", "soon"),
    ],
)
def test_stages_that_do_not_follow_each_other_are_refused(
    scene: Scene, arguments: tuple[str, ...]
) -> None:
    ended = run_for_real(environment(scene), "prune", *arguments)
    assert ended.code == 2, (ended.out, ended.err)
