"""A worker that is killed in the middle of a delivery: the receiver gets it again, with its id."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from effect_broker.proof.broker import wait_until
from hosting.scenes import Scene
from store.event_receiver import Receiver, ReceiverProcess

KIND = "told"


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """A receiver on this machine may be reached, and a dead worker is noticed soon."""
    return {
        "EFFECT_BROKER_EVENT_NETWORKS": "127.0.0.0/8",
        "EFFECT_BROKER_HEARTBEAT_TTL_SECONDS": "1.0",
    }


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    process = ReceiverProcess(tmp_path)
    process.start()
    yield Receiver(process, "receiver")
    process.stop()


def test_a_killed_workers_delivery_comes_again_with_the_same_id_and_the_rest_in_order(
    scene: Scene, receiver: Receiver
) -> None:
    tool = scene.offer(KIND)
    scene.start_workers(2)
    broker = scene.broker
    scene.rows("UPDATE effect_broker.api_keys SET scopes = '{effects,admin}'")
    url = receiver.url.replace("127.0.0.1", "localhost")
    made = broker.http.post("/v1/subscriptions", json={"url": url})
    assert made.status_code == 201, made.text
    receiver.trust(made.json()["secret"])
    receiver.answer("hang")
    effect_id = scene.submit(tool, "told")
    wait_until(lambda: receiver.came() or None, "a delivery that hangs")
    holder = scene.value("SELECT lease_executor_id FROM effect_broker.event_subscriptions")
    pid = int(holder.split("-")[-2])
    next(worker for worker in scene.workers if worker.pid == pid).kill()
    receiver.answer()
    assert broker.settled(effect_id)["state"] == "succeeded"
    final = wait_until(
        lambda: [e for e in receiver.came("ok") if e["event"]["final"]] or None, "the last event"
    )
    came = [line["event"] for line in receiver.came()]
    told = scene.events(effect_id)
    assert came[0]["id"] == came[1]["id"]
    # Others may come twice as well, where the machine stood still; none overtakes another.
    first = list({event["id"]: event for event in came}.values())
    assert [event["sequence"] for event in first] == [event["sequence"] for event in told]
    assert final[0]["event"]["state"] == "succeeded"
    page = broker.http.get("/v1/events", params={"limit": 500}).json()
    assert [e["id"] for e in page["events"] if e["effect_id"] == effect_id] == [
        event["id"] for event in first
    ]
