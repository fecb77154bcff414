"""FC-30: the search index lags behind the write, so that "nothing found" proves nothing yet."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from effect_contracts.errors import ContractInvalid
from field_cases.amendments import look_up_too
from field_cases.cases import LEASE_SECONDS, Case, Offer

BOUND_SECONDS = 2.0
LAG_SECONDS = 1.0
QUICK_PROBES = {"initial_seconds": 0.3, "factor": 1.5, "cap_seconds": 1.0, "horizon_seconds": 60.0}


def offer_lagging(case: Case, lag_seconds: float, bound_seconds: float, **more: Any) -> Offer:
    """A target whose look-up shows new objects after a lag."""
    members: dict[str, Any] = {
        "settlement_bound_seconds": bound_seconds,
        "probe": QUICK_PROBES,
        **more,
    }
    return case.offer("reconcilable", settings={"search_lag_seconds": lag_seconds}, **members)


def early_absence(offer: Offer, effect_id: str) -> int:
    """How many look-ups have found nothing."""
    return sum(row["verdict"] == "not_committed" for row in offer.evidence(effect_id))


def test_fc_30_an_empty_look_up_before_the_bound_is_no_proof(case: Case) -> None:
    offer = offer_lagging(case, 3.0, 5.0)
    offer.script("commit;FIN")
    effect_id = offer.submit()
    offer.judge(effect_id, state="succeeded", requests=1, effects=1)
    # It was asked before it could be seen, and that answer was not believed.
    assert early_absence(offer, effect_id) >= 1
    assert offer.receipt(effect_id)["source"] == "probe"


def test_fc_30_after_the_bound_absence_counts_and_it_is_sent_again_once(case: Case) -> None:
    offer = offer_lagging(case, LAG_SECONDS, BOUND_SECONDS)
    offer.script("FIN")
    effect_id = offer.submit()
    offer.judge(effect_id, state="succeeded", requests=2, effects=1)
    first, second = offer.attempts(effect_id)
    assert second["started_at"] - first["recorded_at"] > timedelta(seconds=BOUND_SECONDS)
    proof = [row for row in offer.evidence(effect_id) if row["verdict"] == "not_committed"][-1]
    assert proof["began_at"] - first["recorded_at"] > timedelta(seconds=BOUND_SECONDS)


def test_fc_30_the_bound_counts_from_the_latest_attempt(case: Case) -> None:
    offer = offer_lagging(case, LAG_SECONDS, BOUND_SECONDS, attempt_deadline_seconds=LEASE_SECONDS)
    # The second is held until its deadline, long after the bound of the first: that one is over.
    offer.script("FIN", "commit;hang(3)", "ok")
    effect_id = offer.submit()
    offer.judge(effect_id, state="succeeded", requests=2, effects=1)
    first, second = offer.attempts(effect_id)
    assert [first["outcome"], second["outcome"]] == ["ambiguous", "ambiguous"]
    # Seen by the look-up; a negative answer in between has not counted for the second.
    last = offer.evidence(effect_id)[-1]
    assert (last["verdict"], last["covers_through"]) == ("committed", 2)


def test_fc_30_two_lost_attempts_wait_for_two_bounds(case: Case) -> None:
    offer = offer_lagging(case, 0.0, BOUND_SECONDS)
    offer.script("FIN", "FIN", "ok")
    effect_id = offer.submit()
    offer.judge(effect_id, state="succeeded", requests=3, effects=1)
    first, second, third = offer.attempts(effect_id)
    for earlier, later in ((first, second), (second, third)):
        assert later["started_at"] - earlier["recorded_at"] > timedelta(seconds=BOUND_SECONDS)


def test_fc_30_without_a_bound_absence_is_never_conclusive(case: Case) -> None:
    with pytest.raises(ContractInvalid, match="without such a bound"):
        case.offer("reconcilable", settlement_bound_seconds=None)
    # A key that may be looked up too, in a contract that declares no bound for that.
    offer = case.offer(
        "idempotent",
        amend=look_up_too,
        retry={"attempts_max": 1},
        probe={**QUICK_PROBES, "horizon_seconds": 2.0},
    )
    offer.script("FIN")
    effect_id = offer.submit()
    offer.judge(effect_id, state="manual_review", reason="retries_exhausted", requests=1, effects=0)
    assert early_absence(offer, effect_id) >= 2


def test_fc_30_a_look_up_that_lies_about_its_bound_is_found_out(case: Case) -> None:
    offer = offer_lagging(case, 6.0, 1.0)
    offer.script("commit;FIN")
    effect_id = offer.submit()
    # By the contract the first was never done, so it is done again: the residual risk.
    offer.judge(effect_id, state="succeeded", requests=2, effects=2)
    case.scene.wait_for(
        "the second object is counted",
        "SELECT true FROM effect_broker.effect_events"
        " WHERE effect_id = %s AND kind = 'duplicate_detected'",
        effect_id,
    )
    effect = offer.judge(effect_id, state="succeeded", requests=2, effects=2)
    assert effect["final"]
    # Nobody is sent again on the word of this look-up.
    offer.script("FIN")
    after = offer.submit("after")
    offer.judge(after, state="prepared", reason="frozen", requests=0, effects=0)
