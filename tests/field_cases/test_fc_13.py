"""FC-13: accepted is not done."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from field_cases.cases import Case, Document, Offer
from field_cases.desk import Desk

SAFETIES = ("idempotent", "reconcilable", "unsafe")
SCHEDULE = {"initial_seconds": 0.2, "factor": 1.5, "cap_seconds": 0.4, "horizon_seconds": 60.0}
IMPATIENT = {**SCHEDULE, "horizon_seconds": 2.0}


def status_is(word: str) -> Document:
    return {
        "statuses": [200],
        "body_schema": {"properties": {"status": {"const": word}}, "required": ["status"]},
    }


def polled(origin: str) -> Callable[[Document], None]:
    """The amendment of a contract whose target answers 202 and has to be asked."""

    def amend(document: Document) -> None:
        document["adapter"]["answers"]["accepted"] = {
            "statuses": [202],
            "reference": {"in": "body", "path": "operation_id"},
            "poll_url": f"{origin}/operations/{{operation}}",
            "succeeded": [status_is("succeeded")],
            "failed": [{**status_is("failed"), "code": "operation_failed"}],
            "running": [status_is("running")],
            "extraction": {"external_id": "resource_id"},
        }

    return amend


def takes_202_for_done(document: Document) -> None:
    document["adapter"]["answers"]["success"] = [
        {"statuses": [202], "body_schema": {"required": ["id"]}}
    ]


def given_up(offer: Offer, effect_id: str, *, effects: int) -> None:
    """After the settlement deadline a person is asked; nothing was sent again."""
    offer.judge(
        effect_id,
        state="manual_review",
        reason="probe_horizon_passed",
        requests=1,
        effects=effects,
    )


def offered(case: Case, safety: str, probe: Document = SCHEDULE) -> Offer:
    origin = case.broker.target.url
    return case.offer(safety, amend=polled(origin), probe=probe)


@pytest.mark.parametrize("safety", SAFETIES)
def test_fc_13_a_202_is_followed_to_its_end(case: Case, safety: str) -> None:
    done, failed = offered(case, safety), offered(case, safety)
    done.script("operation(succeeded,2)")
    failed.script("operation(failed,2)")
    done_id, failed_id = done.submit(), failed.submit()
    done.judge(done_id, state="succeeded", requests=1, effects=1)
    failed.judge(failed_id, state="failed_final", reason="rejected", requests=1, effects=0)
    for offer, effect_id in ((done, done_id), (failed, failed_id)):
        assert offer.codes(effect_id) == [("in_progress", "operation_accepted")]
        (attempt,) = offer.attempts(effect_id)
        reference = offer.unsealed(effect_id, "operation", str(attempt["attempt_id"]))
        assert reference.decode().startswith("op_")
        assert "reconciling" in offer.states(effect_id)
        verdicts = [e["verdict"] for e in offer.evidence(effect_id)]
        assert verdicts[:2] == ["unknown", "unknown"]
    assert done.receipt(done_id)["source"] == "probe"
    assert done.receipt(done_id)["external_id"] == done.effect_ids(done_id)[0]
    last = failed.evidence(failed_id)[-1]
    assert (last["verdict"], last["code"]) == ("rejected", "operation_failed")


def test_fc_13_an_operation_without_an_end_is_shown_to_a_person(case: Case) -> None:
    begun = []
    for safety in SAFETIES:
        offer = offered(case, safety, IMPATIENT)
        offer.script("operation(never)")
        begun.append((offer, offer.submit()))
    for offer, effect_id in begun:
        given_up(offer, effect_id, effects=0)
        assert {e["code"] for e in offer.evidence(effect_id)} == {"operation_running"}


def test_fc_13_an_operation_that_is_gone_leaves_the_outcome_unknown(case: Case, desk: Desk) -> None:
    offer = offered(case, "unsafe")
    offer.script("commit;operation(404,2)")
    effect_id = offer.submit()
    view = offer.judge(effect_id, state="outcome_unknown", requests=1, effects=1)
    assert view["reason"] == "outcome_unknown"
    assert view["waits_for_person"]
    codes = [e["code"] for e in offer.evidence(effect_id)]
    assert codes[:2] == ["operation_running"] * 2
    assert set(codes[2:]) == {"operation_gone"}
    (made,) = offer.effect_ids(effect_id)
    resolved = desk.resolve(effect_id, "committed", external_id=made)
    assert resolved.status_code == 200, resolved.text
    offer.judge(effect_id, state="succeeded", requests=1, effects=1)


def test_fc_13_an_operation_that_is_gone_is_sent_again_under_its_key(case: Case) -> None:
    """Once: this target repeats the 202 that it has stored, and nothing more can be learned."""
    offer = offered(case, "idempotent")
    offer.script("commit;operation(404,2)")
    effect_id = offer.submit()
    view = offer.judge(effect_id, state="outcome_unknown", requests=2, effects=1)
    assert view["waits_for_person"]
    assert offer.codes(effect_id) == [("in_progress", "operation_accepted")] * 2
    assert offer.evidence(effect_id)[-1]["code"] == "operation_gone"


def test_fc_13_an_operation_that_is_gone_is_looked_up_by_our_key(case: Case) -> None:
    offer = offered(case, "reconcilable")
    offer.script("commit;operation(404,1)")
    effect_id = offer.submit()
    offer.judge(effect_id, state="succeeded", requests=1, effects=1)
    receipt = offer.receipt(effect_id)
    assert (receipt["source"], receipt["external_id"]) == ("probe", offer.effect_ids(effect_id)[0])


def test_fc_13_accepted_is_done_only_where_the_contract_says_so(case: Case) -> None:
    offer = case.offer("unsafe", amend=takes_202_for_done)
    offer.script('commit;status(202,{"id":"queued_1"})')
    effect_id = offer.submit()
    offer.judge(effect_id, state="succeeded", requests=1, effects=1)
    silent = case.offer("unsafe")
    silent.script('commit;status(202,{"id":"queued_1"})')
    effect_id = silent.submit()
    silent.judge(effect_id, state="outcome_unknown", requests=1, effects=1)
