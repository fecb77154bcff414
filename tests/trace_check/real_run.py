"""A scripted run of a whole broker: real processes, real Postgres, real SIGKILLs, one export.

Every class is here, and every way of ending: succeeded, refused, cancelled, unknown, in review;
with workers that are killed in the middle, one that comes back as a zombie, look-ups before a
redispatch and the count after it. What comes out is what an operator would export.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from effect_broker.faultpoints import FaultAction, FaultPoint
from effect_broker.proof.broker import wait_until
from effect_broker.proof.contracts import charge
from effect_broker.store import demo_ledger
from effect_broker.store.export import export_to
from effect_broker.store.pool import make_pool
from effect_broker.store.roles import DatabaseRole
from effect_contracts.catalog import catalog_documents
from effect_contracts.document import ContractDocument
from hosting.scenes import LEASE_SECONDS, Scene, go_on

SETTLE_SECONDS = 120.0


def run(scene: Scene) -> None:
    """Let all of it happen, and wait until everything is at rest."""
    demo_ledger.create(scene.broker.superuser_url)
    scene.start_workers(4)
    _answers(scene)
    _killed(scene)
    _zombie(scene)
    _held(scene)
    _counted(scene)


def _answers(scene: Scene) -> None:
    """What a target may say at once."""
    target = scene.broker.target.client
    tool = scene.offer("answers")
    scene.broker.settled(scene.submit(tool, "plain"))
    target.script("status(422)", kind="answers")
    scene.broker.settled(scene.submit(tool, "refused"))
    target.script("status(429)", "status(503)", kind="answers")
    scene.broker.settled(scene.submit(tool, "busy"), SETTLE_SECONDS)
    once = scene.offer("once", "unsafe")
    target.script("commit;RST", kind="once")
    scene.broker.settled(scene.submit(once, "lost"))


def _killed(scene: Scene) -> None:
    """Workers that die where it hurts."""
    places = {
        "idempotent": (FaultPoint.AFTER_ATTEMPT_COMMIT, FaultPoint.AFTER_TARGET_ANSWER),
        "reconcilable": (FaultPoint.AFTER_TARGET_ANSWER, FaultPoint.BEFORE_SOCKET_WRITE),
        "unsafe": (FaultPoint.BEFORE_OUTCOME_COMMIT,),
    }
    begun: list[str] = []
    for safety, points in places.items():
        tool = scene.offer(f"killed_{safety}", safety, attempt_deadline_seconds=LEASE_SECONDS)
        for point in points:
            begun.append(_dies(scene, point, partial(scene.submit, tool, point.value)))
    begun.append(_dies(scene, FaultPoint.AFTER_PROBE_ANSWER, partial(_probed, scene)))
    document = _entries()
    scene.broker.apply(document)
    for point in (FaultPoint.INSIDE_MUTATION, FaultPoint.AFTER_OUTCOME_COMMIT):
        begun.append(_dies(scene, point, partial(_entry, scene, document.tool, point.value)))
    for effect_id in begun:
        scene.broker.settled(effect_id, SETTLE_SECONDS)


def _dies(scene: Scene, point: FaultPoint, submit: Any) -> str:
    scene.broker.arm(point)
    effect_id: str = submit()
    scene.broker.wait_fired(point)
    scene.ensure_workers(3)
    return effect_id


def _probed(scene: Scene) -> str:
    scene.broker.target.client.script("commit;RST", kind="killed_reconcilable", method="POST")
    return scene.submit("proof.killed_reconcilable", "looked-up")


def _zombie(scene: Scene) -> None:
    """An answer that comes after the end."""
    tool = scene.offer("zombie", attempt_deadline_seconds=LEASE_SECONDS)
    scene.ensure_workers(3)
    scene.broker.arm(FaultPoint.AFTER_TARGET_ANSWER, FaultAction.STOP)
    effect_id = scene.submit(tool, "late")
    pid = scene.stopped_at(FaultPoint.AFTER_TARGET_ANSWER)
    scene.broker.settled(effect_id, SETTLE_SECONDS)
    go_on(pid)
    wait_until(lambda: _kinds(scene, effect_id).count("late_fact") or None, "the late fact")


def _held(scene: Scene) -> None:
    """Effects that must not be sent: one is cancelled, one expires, one is let go on."""
    tool = scene.offer("held")
    scene.rows(
        "INSERT INTO effect_broker.holds (hold_id, kind, tenant_id, tool, reason, placed_by)"
        " VALUES (gen_random_uuid(), 'paused', %s, 'proof.held', 'by a test', 'operator')",
        scene.broker.tenant_id,
    )
    cancelled, released = scene.submit(tool, "cancelled"), scene.submit(tool, "released")
    expired = _expiring(scene, tool)
    for effect_id in (cancelled, released):
        assert scene.broker.settled(effect_id)["reason"] == "paused"
    scene.rows(
        "UPDATE effect_broker.effect_intents SET cancel_requested_at = clock_timestamp()"
        " WHERE effect_id = %s",
        cancelled,
    )
    assert scene.broker.settled(expired, SETTLE_SECONDS)["reason"] == "expired"
    scene.rows(
        "UPDATE effect_broker.holds"
        " SET lifted_at = clock_timestamp(), lifted_by = 'operator', lift_reason = 'by a test'"
    )
    for effect_id, state in ((cancelled, "cancelled"), (released, "succeeded")):
        wait_until(partial(_is, scene, effect_id, state), state, SETTLE_SECONDS)


def _expiring(scene: Scene, tool: str) -> str:
    body = {
        "operation_key": f"{tool}:expiring",
        "tool": tool,
        "arguments": charge("expiring"),
        "send_before": (datetime.now(UTC) + timedelta(seconds=3)).isoformat(),
    }
    answer = scene.broker.http.post("/v1/effects", json=body)
    answer.raise_for_status()
    return str(answer.json()["effect_id"])


def _counted(scene: Scene) -> None:
    """Wait for the counts that redispatched effects owe after their end."""
    _rest(scene)
    if scene.value("SELECT count(*) FROM effect_broker.effect_events WHERE kind = 'counted'") == 0:
        # A machine so busy that the look-up before the redispatch found no time, and asks a person.
        patient = scene.offer("counted", "reconcilable", attempt_deadline_seconds=4 * LEASE_SECONDS)
        effect_id = _dies(
            scene, FaultPoint.BEFORE_SOCKET_WRITE, partial(scene.submit, patient, "again")
        )
        scene.broker.settled(effect_id, SETTLE_SECONDS)
        _rest(scene)


def _rest(scene: Scene) -> None:
    wait_until(
        lambda: (
            scene.value("SELECT bool_and(next_action_at IS NULL) FROM effect_broker.effect_intents")
            or None
        ),
        "everything is at rest",
        SETTLE_SECONDS,
    )


def _is(scene: Scene, effect_id: str, state: str) -> bool | None:
    return scene.broker.effect(effect_id)["state"] == state or None


def _kinds(scene: Scene, effect_id: str) -> list[str]:
    return [event["kind"] for event in scene.events(effect_id)]


def _entries() -> ContractDocument:
    document = json.loads(catalog_documents()["demo-ledger-transactional"].canonical())
    document |= {"name": "proof-entry", "tool": "proof.entry", "attempt_deadline_seconds": 1.5}
    return ContractDocument.parse_yaml(json.dumps(document))


def _entry(scene: Scene, tool: str, memo: str) -> str:
    entry = {"debit": "a", "credit": "b", "amount": 100, "currency": "eur", "memo": memo}
    answer = scene.broker.submit(f"entry:{memo}", tool, entry)
    answer.raise_for_status()
    return str(answer.json()["effect_id"])


def exported(scene: Scene, path: Path) -> list[bytes]:
    """Export everything as the worker's role; return the lines."""

    async def write() -> None:
        url = scene.broker.url(DatabaseRole.WORKER)
        async with make_pool(url, None, application_name="test-export", size_max=1) as pool:
            await export_to(pool, path)

    asyncio.run(write())
    return path.read_bytes().splitlines(keepends=True)
