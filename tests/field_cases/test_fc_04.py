"""FC-04: a 5xx that had committed, and then "it exists already", which says not whose it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from effect_broker.proof.contracts import charge
from field_cases.cases import Case, Document, Offer

EXISTS = 'status(409,{"error":"exists","resource_id":"x1"})'


def names_the_existing(document: Document) -> None:
    """Let the contract know the refusal that names an object, and a probe by our key."""
    document["adapter"]["answers"]["already_exists"] = [
        {
            "statuses": [409],
            "body_schema": {"properties": {"error": {"const": "exists"}}, "required": ["error"]},
            "code": "already_exists",
        }
    ]


def with_probe(offer: Offer, query: str = "{?key}") -> Any:
    """The amendment of an idempotent contract that can also be asked for our key.

    With another query the look-up shows what others have made as well.
    """

    def amend(document: Document) -> None:
        names_the_existing(document)
        document["adapter"]["probe"] = {
            "url": f"{offer.origin}/objects/{offer.kind}{query}",
            "items": "data",
            "key_match": {"kind": "field", "path": "idempotency_key"},
            "agree": {"/amount": "amount", "/order": "order"},
            "absent": [{"statuses": [200], "content_type": "application/json", "empty_list": True}],
            "extraction": {"external_id": "id"},
        }
        document["probe"] = {"initial_seconds": 0.2, "cap_seconds": 0.4, "horizon_seconds": 2}

    return amend


def test_fc_04_a_5xx_is_no_proof_and_the_look_up_comes_before_a_retry(case: Case) -> None:
    offer = case.offer("reconcilable")
    offer.script("commit;status(503)", EXISTS)
    effect_id = offer.submit()
    offer.judge(effect_id, state="succeeded", requests=1, effects=1)
    assert offer.codes(effect_id) == [("ambiguous", "unmatched_status_503")]
    assert "retryable" not in offer.states(effect_id)


def test_fc_04_exists_already_after_doubt_is_no_refusal(case: Case) -> None:
    offer = case.offer("idempotent", mode="conflict_existing", amend=names_the_existing)
    offer.script("commit;status(503)")
    effect_id = offer.submit()
    offer.judge(
        effect_id,
        state="manual_review",
        reason="conflict_unattributed",
        requests=2,
        effects=1,
    )
    assert offer.codes(effect_id)[1] == ("rejected", "already_exists")
    # The target's word of whose object it is stands for the person who has to decide.
    assert offer.attempts(effect_id)[1]["status"] == 409


def test_fc_04_the_existing_object_is_adopted_if_key_and_payload_are_ours(case: Case) -> None:
    offer = case.offer("idempotent", mode="conflict_existing")
    offer.apply(amend=with_probe(offer), version="2")
    offer.script("commit;status(503)")
    effect_id = offer.submit()
    offer.judge(effect_id, state="succeeded", requests=2, effects=1)
    receipt = offer.receipt(effect_id)
    assert (receipt["source"], receipt["external_id"]) == ("probe", offer.effect_ids(effect_id)[0])


def test_fc_04_what_the_look_up_does_not_show_is_not_adopted(case: Case) -> None:
    offer = case.offer("reconcilable", probe={"initial_seconds": 0.2, "horizon_seconds": 3.0})
    offer.script("RST", EXISTS)
    effect_id = offer.submit()
    offer.judge(
        effect_id,
        state="manual_review",
        reason="conflict_unattributed",
        requests=2,
        effects=0,
    )


def test_fc_04_an_object_of_the_same_payload_under_another_key_is_not_adopted(case: Case) -> None:
    offer = case.offer("idempotent")
    offer.apply(amend=with_probe(offer, "?limit=10"), version="2")
    other = offer.submit("2", arguments=charge("1"))
    offer.judge(other, state="succeeded", requests=1, effects=1)
    (foreign,) = offer.effect_ids(other)
    offer.script("RST", EXISTS.replace("x1", foreign))
    effect_id = offer.submit("1")
    offer.judge(
        effect_id, state="manual_review", reason="conflict_unattributed", requests=2, effects=0
    )
    # The look-up was shown it, with the arguments of both, and saw that it is not ours.
    looks = [row for row in offer.ledger().arrival_rows if row.method == "GET"]
    assert looks
    assert not any(row.query.startswith("key=") for row in looks)
    assert {row["verdict"] for row in offer.evidence(effect_id)} == {"not_committed"}


@pytest.mark.parametrize("safety", ["idempotent", "reconcilable"])
def test_fc_04_an_object_of_another_payload_under_our_key_is_not_adopted(
    case: Case, safety: str
) -> None:
    offer = case.offer(safety)
    if safety == "idempotent":
        offer.apply(amend=with_probe(offer), version="2")
    offer.script(f"hold({offer.kind});RST", EXISTS)
    effect_id = offer.submit()
    client = offer.target.client
    client.wait_held()
    key = case.scene.intent(effect_id)["downstream_key"]
    made = {**charge("1"), "id": "x1", "status": "succeeded", "idempotency_key": key}
    shown = {"data": [made | {"amount": made["amount"] + 1}], "has_more": False}
    offer.script(f"status(200,{json.dumps(shown)})", method="GET", repeat_last=True)
    client.release(offer.kind)
    # Who looks before the second request never sends it; who sends again is told that it exists.
    requests = 2 if safety == "idempotent" else 1
    reason = "conflict_unattributed" if safety == "idempotent" else "ambiguous_probe"
    offer.judge(effect_id, state="manual_review", reason=reason, requests=requests, effects=0)
    (seen,) = offer.evidence(effect_id)
    assert (seen["verdict"], seen["code"], seen["external_ids"]) == (
        "mismatch",
        "fields_disagree",
        ["x1"],
    )


def test_fc_04_exists_already_as_the_first_answer_is_a_refusal(case: Case) -> None:
    offer = case.offer("reconcilable")
    offer.script(EXISTS)
    effect_id = offer.submit()
    offer.judge(effect_id, state="failed_final", reason="rejected", requests=1, effects=0)
