"""FC-18: the failure path throws the key away."""

from __future__ import annotations

import base64
import json
import os

import pytest

from effect_broker.faultpoints import FaultPoint
from effect_broker.proof.broker import KEY_ID
from field_cases.cases import Case
from field_cases.conftest import WORKERS

NEW_KEY_ID = "rotated"
# No retry before the worker that has just died could be replaced.
SLOW = {"backoff_initial_seconds": 3.0, "backoff_cap_seconds": 3.0}


@pytest.mark.timeout(300)  # it replaces all processes
def test_fc_18_the_key_outlives_failure_restart_and_rotation(case: Case) -> None:
    offer = case.offer("idempotent", retry=SLOW)
    offer.script("commit;status(500)")
    case.broker.arm(FaultPoint.AFTER_OUTCOME_COMMIT)
    effect_id = offer.submit()
    case.broker.wait_fired(FaultPoint.AFTER_OUTCOME_COMMIT)
    case.scene.kill_workers()
    key = case.scene.intent(effect_id)["downstream_key"]
    rotate(case)
    try:
        gone = case.broker.http.delete(f"/v1/effects/{effect_id}")
        assert gone.status_code == 405  # an intent cannot be deleted
        offer.replayed(effect_id)
        offer.judge(effect_id, state="succeeded", requests=2, effects=1)
        assert {row.downstream_key for row in offer.requests()} == {key}
        assert case.scene.intent(effect_id)["hmac_key_id"] == KEY_ID
        new = offer.submit("new")
        offer.judge(new, state="succeeded", requests=1, effects=1)
        assert case.scene.intent(new)["hmac_key_id"] == NEW_KEY_ID
        offer.replayed(effect_id)
    finally:
        case.scene.rows("UPDATE effect_broker.tenants SET hmac_key_id = %s", KEY_ID)


def rotate(case: Case) -> None:
    """Add an HMAC key, make it the active one and the tenant's, and start all processes anew."""
    file = case.broker.directory / "keyring.json"
    ring = json.loads(file.read_text())
    ring["hmac"]["keys"][NEW_KEY_ID] = base64.b64encode(os.urandom(32)).decode()
    ring["hmac"]["active"] = NEW_KEY_ID
    file.write_text(json.dumps(ring))
    case.scene.rows("UPDATE effect_broker.tenants SET hmac_key_id = %s", NEW_KEY_ID)
    before = case.broker.http
    case.broker.start_api()
    before.close()
    case.scene.ensure_workers(WORKERS)
