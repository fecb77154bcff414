"""A target that hangs holds its own tenant's share of the slots, and nobody else's."""

from __future__ import annotations

import time

import pytest

from effect_broker.proof.contracts import charge
from hosting.scenes import Scene

WORKERS = 2
SLOTS = 8
SHARE = 2  # a quarter
HANGING = 20
# Far shorter than an attempt that hangs, far longer than one effect takes on a busy machine.
DEADLINE_SECONDS = 120.0
PROMPT_SECONDS = 30.0


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Few slots, so that a few effects fill them."""
    return {"EFFECT_BROKER_WORKER_CONCURRENCY": str(SLOTS)}


def test_a_tenant_whose_target_hangs_leaves_slots_to_the_others(scene: Scene) -> None:
    slow = scene.offer("silent", attempt_deadline_seconds=DEADLINE_SECONDS)
    quick = scene.offer("quick")
    scene.broker.target.client.script("hold", kind="silent", repeat_last=True)
    scene.start_workers(WORKERS)
    scene.submit_many(slow, HANGING)
    in_flight = scene.broker.target.client.wait_held(WORKERS * SHARE)
    # More than enough polls for a worker to take what it is not meant to.
    time.sleep(1.0)
    body = {"operation_key": "single", "tool": quick, "arguments": charge("single")}
    key = scene.broker.add_tenant("the-other")
    with scene.broker.client(str(scene.broker.http.base_url), key) as other:
        began = time.monotonic()
        answer = other.post("/v1/effects", json=body, params={"wait": PROMPT_SECONDS})
        took = time.monotonic() - began
    assert answer.json()["state"] == "succeeded", (answer.text, in_flight)
    assert took < PROMPT_SECONDS
    assert scene.ledger("silent").arrivals == WORKERS * SHARE
    scene.broker.target.client.release()
    scene.wait_for(
        "the rest of the backlog was begun",
        "SELECT count(*) FILTER (WHERE latest_ordinal > 0) > %s FROM effect_broker.effect_intents"
        " WHERE tool = %s",
        WORKERS * SHARE,
        slow,
    )
