"""FC-02: the connection is reset after the commit, and the target can be asked."""

from __future__ import annotations

from datetime import timedelta

from field_cases.cases import SETTLEMENT_BOUND_SECONDS, Case


def test_fc_02_a_reset_after_the_commit_is_settled_by_the_look_up(case: Case) -> None:
    offer = case.offer("reconcilable")
    offer.script("commit;RST")
    effect_id = offer.submit()
    offer.judge(effect_id, state="succeeded", requests=1, effects=1)
    assert offer.codes(effect_id) == [("ambiguous", "reset")]
    through = ["prepared", "dispatching", "outcome_unknown", "reconciling", "succeeded"]
    assert offer.states(effect_id) == through
    receipt = offer.receipt(effect_id)
    assert (receipt["source"], receipt["external_id"]) == ("probe", offer.effect_ids(effect_id)[0])


def test_fc_02_a_reset_before_the_commit_is_sent_again_after_the_bound_only(case: Case) -> None:
    offer = case.offer("reconcilable")
    offer.script("RST")
    effect_id = offer.submit()
    offer.judge(effect_id, state="succeeded", requests=2, effects=1)
    first, second = offer.attempts(effect_id)
    bound = timedelta(seconds=SETTLEMENT_BOUND_SECONDS)
    assert second["started_at"] > first["recorded_at"] + bound
    conclusive = [e for e in offer.evidence(effect_id) if e["verdict"] == "not_committed"]
    assert any(e["began_at"] > first["recorded_at"] + bound for e in conclusive)
    assert all(e["began_at"] < second["started_at"] for e in conclusive)
    assert offer.receipt(effect_id)["source"] == "response"
