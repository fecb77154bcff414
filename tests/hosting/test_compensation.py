"""Compensation over running workers: the one is undone once the other has succeeded."""

from __future__ import annotations

from functools import partial
from typing import Any

from effect_broker.proof.broker import wait_until
from effect_broker.proof.contracts import charge
from hosting.scenes import Scene

SETTLE_SECONDS = 60.0


def _submitted(scene: Scene, tool: str, order: str, **members: Any) -> str:
    body = {
        "operation_key": f"{tool}:{order}", "tool": tool, "arguments": charge(order), **members,
    }  # fmt: skip
    answer = scene.broker.http.post("/v1/effects", json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["effect_id"])


def _is(scene: Scene, effect_id: str, state: str) -> dict[str, Any] | None:
    effect = scene.broker.effect(effect_id)
    return effect if effect["state"] == state else None


def test_what_was_done_is_undone_once_and_its_receipt_stays(scene: Scene) -> None:
    scene.ensure_workers(2)
    tool, undo_tool = scene.offer("done"), scene.offer("undone")
    done = _submitted(scene, tool, "1")
    assert scene.broker.settled(done)["state"] == "succeeded"
    receipt = scene.broker.receipt(done)
    undo = _submitted(scene, undo_tool, "1", compensates=done)
    effect = wait_until(partial(_is, scene, done, "compensated"), "it is undone", SETTLE_SECONDS)
    assert effect["compensated_by"] == {"effect_id": undo, "state": "succeeded"}
    assert (effect["final"], effect["next_action_at"]) == (True, None)
    assert scene.broker.receipt(done) == receipt
    assert [event["kind"] for event in scene.events(done)][-1] == "compensated"
    assert (scene.ledger("done").arrivals, scene.ledger("undone").arrivals) == (1, 1)
    again = scene.broker.http.post(
        "/v1/effects",
        json={"operation_key": f"{tool}:1", "tool": tool, "arguments": charge("1")},
    )
    assert (again.status_code, again.json()["state"]) == (200, "compensated")
    assert scene.ledger("done").arrivals == 1


def test_a_compensation_that_fails_is_visible_and_undoes_nothing(scene: Scene) -> None:
    scene.ensure_workers(2)
    tool, undo_tool = scene.offer("stays"), scene.offer("fails")
    done = _submitted(scene, tool, "1")
    assert scene.broker.settled(done)["state"] == "succeeded"
    scene.broker.target.client.script("status(402)", kind="fails", method="POST", repeat_last=True)
    undo = _submitted(scene, undo_tool, "1", compensates=done)
    assert scene.broker.settled(undo)["state"] == "failed_final"
    wait_until(
        lambda: (
            scene.value(
                "SELECT settled_at IS NOT NULL FROM effect_broker.effect_links"
                " WHERE effect_id = %s",
                undo,
            )
            or None
        ),
        "the workers have taken note",
        SETTLE_SECONDS,
    )
    effect = scene.broker.effect(done)
    assert effect["state"] == "succeeded"
    assert effect["compensated_by"] == {"effect_id": undo, "state": "failed_final"}
