"""FC-20: the target says that it knows the key, with other parameters."""

from __future__ import annotations

import pytest

from field_cases.cases import Case, Document

CONFLICT = 'status(400,{"error":"idempotency_error"})'
HANG = "commit;hang(20)"
# Long enough for an answer that comes, on a busy machine too.
SHORT_SECONDS = 2.0


def writes_the_body_differently(document: Document) -> None:
    """The same arguments in another body, as a new release of a library might write them."""
    document["adapter"]["body"] = {
        "kind": "json",
        "content": {
            "amount": {"$arg": "/amount"},
            "currency": {"$arg": "/currency"},
            "order": {"$concat": [{"$arg": "/order"}, " "]},
        },
    }


def test_fc_20_a_key_conflict_stops_everything(case: Case) -> None:
    offer = case.offer("idempotent")
    offer.script(CONFLICT)
    effect_id = offer.submit()
    offer.judge(
        effect_id, state="manual_review", reason="target_key_conflict", requests=1, effects=0
    )
    offer.replayed(effect_id)
    assert offer.codes(effect_id) == [("key_conflict", "idempotency_error")]


def test_fc_20_a_key_conflict_after_doubt_is_no_refusal(case: Case) -> None:
    offer = case.offer("idempotent", attempt_deadline_seconds=SHORT_SECONDS)
    offer.script(HANG, CONFLICT)
    effect_id = offer.submit()
    offer.judge(
        effect_id, state="manual_review", reason="target_key_conflict", requests=2, effects=1
    )
    assert offer.ledger().keys == [case.scene.intent(effect_id)["downstream_key"]]


@pytest.mark.parametrize("drift", ["bad_request", "conflict"])
def test_fc_20_the_bytes_of_a_retry_are_the_stored_ones_whatever_was_deployed_since(
    case: Case, drift: str
) -> None:
    offer = case.offer(
        "idempotent",
        settings={"drift": drift},
        attempt_deadline_seconds=SHORT_SECONDS,
        retry={"backoff_initial_seconds": 2.0, "backoff_cap_seconds": 2.0},
    )
    offer.script(HANG)
    effect_id = offer.submit()
    offer.reached(effect_id, "outcome_unknown")
    offer.apply(amend=writes_the_body_differently, version="2")
    # A target that refuses the key with another body sees none.
    offer.judge(effect_id, state="succeeded", requests=2, effects=1)
    new = offer.submit("new")
    offer.judge(new, state="succeeded", requests=1, effects=1)
    (fresh,) = offer.requests(case.scene.intent(new)["downstream_key"])
    assert b'"new "' in fresh.body
    offer.replayed(effect_id)
