"""FC-11: a byte now and then keeps every time-out per read content."""

from __future__ import annotations

import pytest

from field_cases.cases import PATIENT_SECONDS, Case

DRIP = "commit;drip(1,0.4,80)"  # never more than 0.4 s without a byte
DRIP_SECONDS = 32.0
CUT_SECONDS = 2.0
# Within which the target sees that it was cut. The clock is its own, so that what the broker does
# afterwards, and how long it takes, does not count; a quarter of what it takes without a cut.
SEEN_SECONDS = DRIP_SECONDS / 4


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
    dripped = offer.requests()[0]
    assert dripped.left_monotonic is not None
    assert dripped.left_monotonic - dripped.received_monotonic < SEEN_SECONDS
    assert all(later["started_at"] >= first["recorded_at"] for later in rest)


def test_fc_11_an_answer_without_end_is_cut_by_its_size(case: Case) -> None:
    offer = case.offer("unsafe", attempt_deadline_seconds=PATIENT_SECONDS)
    offer.script("commit;oversize(2)")
    effect_id = offer.submit()
    offer.judge(effect_id, state="outcome_unknown", requests=1, effects=1)
    assert offer.codes(effect_id) == [("ambiguous", "response_too_large")]
