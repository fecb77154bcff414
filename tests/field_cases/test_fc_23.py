"""FC-23: the target has forgotten the key; the same request would now do it again."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import Any

import pytest

from effect_broker.faultpoints import FaultAction, FaultPoint
from effect_contracts.errors import ContractInvalid
from field_cases.amendments import look_up_too
from field_cases.busy import judge_busy
from field_cases.cases import Case, Offer
from field_cases.odd_workers import paused, start_skewed
from hosting.scenes import go_on

RETENTION_SECONDS = 5.0
DEADLINE_SECONDS = 2.0
MARGIN_SECONDS = 0.1
TRANSIT_SECONDS = 0.1
# Two whole attempts, their wait and the transit: 4.4 s, which fits into the retention.
SHORT: dict[str, Any] = {
    "attempt_deadline_seconds": DEADLINE_SECONDS,
    "clock_margin_seconds": MARGIN_SECONDS,
    "transit_seconds": TRANSIT_SECONDS,
    "retry": {"attempts_max": 2},
}


def offer_forgetful(case: Case, retention_seconds: float = RETENTION_SECONDS, **more: Any) -> Offer:
    """A target that forgets a key when the contract says that it does."""
    return case.offer(
        "idempotent",
        settings={"ttl_seconds": retention_seconds},
        key_retention_seconds=retention_seconds,
        **{**SHORT, **more},
    )


def done_and_unanswered(case: Case, *offers: Offer) -> list[str]:
    """Submit one effect of each; return when the target has done all of them and says nothing."""
    for offer in offers:
        offer.script("gate(never)")
    effect_ids = [offer.submit() for offer in offers]
    for offer in offers:
        case.broker.target.client.wait_effects(1, kind=offer.kind, timeout_seconds=30)
    return effect_ids


def wait_until_database_says(case: Case, moment: datetime) -> None:
    """Wait on the clock that counts."""
    case.scene.wait_for("the moment", "SELECT clock_timestamp() > %s", moment)


def expires_at(offer: Offer, effect_id: str, retention_seconds: float) -> datetime:
    """When the target forgets the key, counted from the first attempt's start."""
    started: datetime = offer.attempts(effect_id)[0]["started_at"]
    return started + timedelta(seconds=retention_seconds)


def test_fc_23_an_expired_key_is_never_sent_again(case: Case) -> None:
    plain, looking = offer_forgetful(case), offer_forgetful(case, amend=look_up_too)
    effect_id, looked_up = done_and_unanswered(case, plain, looking)
    case.scene.kill_workers()
    case.broker.target.client.release("never")
    wait_until_database_says(case, expires_at(looking, looked_up, RETENTION_SECONDS))
    case.scene.ensure_workers(2)
    # A second request would be a second charge now: the target has forgotten the key.
    plain.judge(effect_id, state="manual_review", reason="key_expired", requests=1, effects=1)
    # What can be asked is asked, and not sent again either.
    looking.judge(looked_up, state="succeeded", requests=1, effects=1)
    assert looking.receipt(looked_up)["source"] == "probe"
    # Another submit changes nothing, and starts nothing.
    plain.replayed(effect_id)
    plain.judge(effect_id, state="manual_review", requests=1, effects=1)


@pytest.mark.parametrize("seconds", [-1, 1])
def test_fc_23_a_worker_whose_clock_is_off_judges_a_key_by_the_database(
    case: Case, seconds: int
) -> None:
    forgetful = offer_forgetful(case)
    patient = offer_forgetful(case, retention_seconds=600.0, retry={"attempts_max": 8})
    first = list(case.scene.workers)
    successor = start_skewed(case, seconds)
    with ExitStack() as stopped:
        with paused(successor):  # so that the others send first
            dying, living = done_and_unanswered(case, forgetful, patient)
            stopped.enter_context(paused(*first))
            # By the database a whole attempt has just ceased to fit; by a clock that is behind
            # it still would.
            whole = DEADLINE_SECONDS + MARGIN_SECONDS + TRANSIT_SECONDS
            no_longer = expires_at(forgetful, dying, RETENTION_SECONDS - whole + 0.05)
            wait_until_database_says(case, no_longer)
        forgetful.judge(dying, state="manual_review", reason="key_expired", requests=1, effects=1)
        judge_busy(patient, living, state="succeeded", requests=2, effects=1)
    successor.kill()
    case.broker.target.client.release("never")
    judge_busy(patient, living, state="succeeded", requests=2, effects=1)


def test_fc_23_a_claim_that_outlives_the_key_is_not_sent(case: Case) -> None:
    """The second attempt is granted while the key lives, and its worker is stopped until after."""
    offer = offer_forgetful(case)
    case.scene.kill_workers()
    second = f"{FaultPoint.BEFORE_SOCKET_WRITE}:{FaultAction.STOP}@2"
    (worker,) = case.scene.start_workers(1, EFFECT_BROKER_FAULT=second)
    offer.script("commit;FIN")
    effect_id = offer.submit()
    case.scene.wait_for(
        "the second claim",
        "SELECT count(*) = 2 FROM effect_broker.effect_attempts WHERE effect_id = %s",
        effect_id,
    )
    wait_until_database_says(case, expires_at(offer, effect_id, RETENTION_SECONDS))
    go_on(worker.pid)
    case.scene.ensure_workers(2)
    offer.judge(effect_id, state="manual_review", requests=1, effects=1)
    assert offer.attempts(effect_id)[1]["bytes_may_have_left"] is False


def test_fc_23_a_retention_that_nobody_states_or_that_is_too_short_makes_no_contract(
    case: Case,
) -> None:
    with pytest.raises(ContractInvalid, match="states for how many seconds"):
        case.offer("idempotent", key_retention_seconds=None)
    with pytest.raises(ContractInvalid, match="forgets the key after"):
        offer_forgetful(case, retention_seconds=4.0)
