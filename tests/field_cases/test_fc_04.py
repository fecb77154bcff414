"""FC-04: a 5xx that had committed, and then "it exists already", which says not whose it is."""

from __future__ import annotations

from typing import Any

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


def with_probe(offer: Offer) -> Any:
    """The amendment of an idempotent contract that can also be asked for our key."""

    def amend(document: Document) -> None:
        names_the_existing(document)
        url = f"{offer.origin}/objects/{offer.kind}{{?key}}"
        document["adapter"]["probe"] = {
            "url": url,
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


def test_fc_04_an_existing_object_that_is_not_ours_is_not_adopted(case: Case) -> None:
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


def test_fc_04_exists_already_as_the_first_answer_is_a_refusal(case: Case) -> None:
    offer = case.offer("reconcilable")
    offer.script(EXISTS)
    effect_id = offer.submit()
    offer.judge(effect_id, state="failed_final", reason="rejected", requests=1, effects=0)
