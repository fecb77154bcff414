"""FC-11: a byte now and then keeps every time-out per read content."""

from __future__ import annotations

import pytest

from field_cases.cases import PATIENT_SECONDS, Case

DRIP = "commit;drip(1,0.4,80)"  # 32 s in all, never more than 0.4 s without a byte
CUT_SECONDS = 2.0
# From the cut to the stored outcome, on a busy machine; far less than the drip would take.
RECORDING_SECONDS = 20.0


@pytest.mark.parametrize(
    ("safety", "state", "requests"),
    [
        ("idempotent", "succeeded", 2),
        ("reconcilable", "succeeded", 1),
        ("unsafe", "outcome_unknown", 1),
    ],
)
def test_fc_11_the_whole_exchange_has_one_deadline(
    case: Case, safety: str, state: str, requests: int
) -> None:
    offer = case.offer(safety, attempt_deadline_seconds=CUT_SECONDS)
    offer.script(DRIP)
    effect_id = offer.submit()
    offer.judge(effect_id, state=state, requests=requests, effects=1)
    first, *rest = [a for a in offer.attempts(effect_id) if a["outcome"] != "not_sent"]
    # Recorded by the one that sent, and not presumed by a successor after the deadline.
    assert (first["outcome"], first["code"]) == ("ambiguous", "deadline")
    took = (first["recorded_at"] - first["started_at"]).total_seconds()
    assert took < CUT_SECONDS + RECORDING_SECONDS
    assert all(later["started_at"] >= first["recorded_at"] for later in rest)


def test_fc_11_an_answer_without_end_is_cut_by_its_size(case: Case) -> None:
    offer = case.offer("unsafe", attempt_deadline_seconds=PATIENT_SECONDS)
    offer.script("commit;oversize(2)")
    effect_id = offer.submit()
    offer.judge(effect_id, state="outcome_unknown", requests=1, effects=1)
    assert offer.codes(effect_id) == [("ambiguous", "response_too_large")]
