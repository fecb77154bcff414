"""FC-01: the reply is lost and the target has no safety net; a retry would do it twice."""

from __future__ import annotations

import pytest

from effect_broker.proof.broker import wait_until
from field_cases.cases import PATIENT_SECONDS, SETTLE_SECONDS, Case
from field_cases.conftest import WORKERS
from field_cases.desk import Desk

LOST = {
    "commit;FIN": ("closed_without_answer", PATIENT_SECONDS),
    "commit;hang(5)": ("deadline", 1.0),
}


@pytest.mark.timeout(300)  # it replaces all workers
def test_fc_01_a_lost_reply_stays_unknown_until_there_is_evidence(case: Case, desk: Desk) -> None:
    begun = []
    for plan, (code, deadline_seconds) in LOST.items():
        offer = case.offer("unsafe", attempt_deadline_seconds=deadline_seconds)
        offer.script(plan, "ok")
        begun.append((offer, offer.submit(), code))
    for offer, effect_id, code in begun:
        offer.judge(effect_id, state="outcome_unknown", requests=1, effects=1)
        assert offer.codes(effect_id) == [("ambiguous", code)]
        for _ in range(3):
            offer.replayed(effect_id)
        assert desk.reconcile(effect_id) is False
    restart_workers_and_let_the_reconcile_loop_pass(case)
    for offer, effect_id, _ in begun:
        offer.judge(effect_id, state="outcome_unknown", requests=1, effects=1)
        (made,) = offer.effect_ids(effect_id)
        resolved = desk.resolve(effect_id, "committed", external_id=made)
        assert resolved.status_code == 200, resolved.text
        offer.judge(effect_id, state="succeeded", requests=1, effects=1)
        receipt = offer.receipt(effect_id)
        assert (receipt["source"], receipt["external_id"]) == ("operator", made)
        offer.replayed(effect_id)
        offer.judge(effect_id, state="succeeded", requests=1, effects=1)


def restart_workers_and_let_the_reconcile_loop_pass(case: Case) -> None:
    """Return when the loop has looked at what is due: it alone starts an effect without a run."""
    client = case.broker.target.client
    canary = case.offer("idempotent", attempt_deadline_seconds=5.0)
    canary.script("hold(canary)")
    effect_id = canary.submit("canary")
    client.wait_held(1, timeout_seconds=SETTLE_SECONDS)
    case.scene.kill_workers()
    case.scene.rows(
        "DELETE FROM dbos.workflow_status WHERE workflow_uuid LIKE %s", f"{effect_id}.%"
    )
    client.release("canary")
    case.scene.ensure_workers(WORKERS)

    def succeeded() -> bool | None:
        return True if case.scene.intent(effect_id)["state"] == "succeeded" else None

    wait_until(succeeded, "the canary", SETTLE_SECONDS)
    assert case.scene.intent(effect_id)["generation"] > 1
