"""FC-10: word about an effect arrives late, and says something else.

Operators speak over HTTP here. The facts of the inbox for webhooks end in the plan of the protocol
that is used here.
"""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest

from effect_broker.protocol.ports import EffectMissing
from effect_contracts.facts import EvidenceSource, Verdict
from field_cases.cases import PATIENT_SECONDS, Case
from field_cases.desk import Desk

DEADLINE_SECONDS = PATIENT_SECONDS


REASONS = {
    "rejected": "rejected",
    "not_committed": "proved_not_committed",
    "failed": "failed_by_operator",
}


def latest_event(case: Case, effect_id: str) -> tuple[str, str, dict[str, Any]]:
    """Kind, event and metadata of the last event."""
    event = case.scene.events(effect_id)[-1]
    return event["kind"], event["event"], json.loads(event["metadata"])


def test_fc_10_a_late_failure_does_not_overturn_a_success(case: Case) -> None:
    offer = case.offer("idempotent")
    offer.script("commit;FIN")
    effect_id = offer.submit()
    offer.judge(effect_id, state="succeeded", requests=2, effects=1)
    version = case.scene.intent(effect_id)["version"]
    case.add_evidence(effect_id, Verdict.REJECTED, covers_through=1)
    effect = offer.judge(effect_id, state="succeeded", requests=2, effects=1)
    # It speaks of the first attempt, whose answer was lost; the second one has the receipt.
    assert effect["alert"] is None
    kind, event, metadata = latest_event(case, effect_id)
    assert (kind, event, metadata["verdict"]) == ("late_fact", "late_fact", "rejected")
    assert case.scene.intent(effect_id)["version"] == version + 1


def test_fc_10_evidence_of_the_commit_ends_the_doubt_once(case: Case) -> None:
    offer = case.offer("unsafe")
    offer.script("commit;FIN")
    effect_id = offer.submit()
    offer.judge(effect_id, state="outcome_unknown", requests=1, effects=1)
    (made,) = offer.effect_ids(effect_id)
    for _ in range(3):  # deliveries repeat themselves
        case.add_evidence(
            effect_id, Verdict.COMMITTED, source=EvidenceSource.WEBHOOK, external_ids=[made]
        )
        offer.judge(effect_id, state="succeeded", requests=1, effects=1)
    assert offer.receipt(effect_id)["source"] == "webhook"
    assert offer.receipt(effect_id)["external_id"] == made
    _, _, metadata = latest_event(case, effect_id)
    assert metadata["contradicts"] is False


@pytest.mark.parametrize("proof", ["rejected", "not_committed", "failed"])
def test_fc_10_a_late_commit_rewrites_no_failure_and_is_an_alert(
    case: Case, desk: Desk, proof: str
) -> None:
    offer = case.offer("unsafe")
    offer.script("commit;status(400)" if proof == "rejected" else "commit;FIN")
    effect_id = offer.submit()
    if proof != "rejected":  # the target's own word; the others are the operator's
        offer.judge(effect_id, state="outcome_unknown", requests=1, effects=1)
        resolved = desk.resolve(effect_id, proof)
        assert resolved.status_code == 200, resolved.text
    failed = offer.judge(effect_id, state="failed_final", requests=1, effects=1)
    assert failed["reason"] == REASONS[proof]
    (made,) = offer.effect_ids(effect_id)
    case.add_evidence(
        effect_id, Verdict.COMMITTED, source=EvidenceSource.WEBHOOK, external_ids=[made]
    )
    effect = offer.judge(effect_id, state="failed_final", requests=1, effects=1)
    assert effect["alert"] == "late_contradiction"
    _, event, metadata = latest_event(case, effect_id)
    assert event == "late_fact"
    assert metadata["contradicts"] is True


def test_fc_10_evidence_for_an_unknown_effect_leaves_no_row(case: Case) -> None:
    stranger = str(uuid4())
    with pytest.raises(EffectMissing):
        case.add_evidence(stranger, Verdict.COMMITTED, external_ids=["ch_1"])
    rows = case.scene.rows(
        "SELECT 1 FROM effect_broker.effect_evidence WHERE effect_id = %s", stranger
    )
    assert not rows
