"""A worker whose key ring lacks a key says which, once, and does not begin with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from effect_broker.keyring import ENV_KEY_RING_FILE, new_key_ring
from effect_broker.proof.broker import KEY_ID, wait_until
from effect_broker.proof.stack import ManagedProcess, ProcessNotReady
from hosting.scenes import READY_SECONDS, Scene

SENTENCE = f"the key ring holds no encryption key {KEY_ID!r}"
EFFECTS = 3


@pytest.fixture
def other_ring(directory: Path) -> dict[str, str]:
    """A ring without the key that the API uses."""
    path = directory / "other-ring.json"
    path.write_text(new_key_ring("another", development=True))
    return {ENV_KEY_RING_FILE: str(path)}


def _attempted(scene: Scene, worker: ManagedProcess) -> bool | None:
    """Whether every effect was taken up more than once, all in vain."""
    rows = scene.rows("SELECT generation, latest_ordinal FROM effect_broker.effect_intents")
    assert worker.alive
    assert {row["latest_ordinal"] for row in rows} == {0}
    return min(row["generation"] for row in rows) >= 3 or None


def test_a_lacking_key_is_named_once_and_the_right_ring_goes_on(
    scene: Scene, other_ring: dict[str, str]
) -> None:
    tool = scene.offer("locked")
    effect_ids = scene.submit_many(tool, EFFECTS)
    refused = scene.broker.stack.worker(other_ring)
    with pytest.raises(ProcessNotReady, match=f"under which open effects are stored: {KEY_ID}"):
        refused.wait_ready(READY_SECONDS)

    # It may have started before, or be told that the key is lost.
    worker = scene.broker.stack.worker({**other_ring, "EFFECT_BROKER_LOST_KEY_IDS": f"x, {KEY_ID}"})
    worker.wait_ready(READY_SECONDS)
    wait_until(lambda: _attempted(scene, worker), "runs came to nothing")
    worker.kill()
    log = worker.log.read_text()
    assert log.count(SENTENCE) == 1
    assert 'File "' not in log

    scene.start_workers(1)
    states = {effect["state"] for effect in scene.settled(effect_ids)}
    assert states == {"succeeded"}
    assert scene.ledger("locked").arrivals == EFFECTS
