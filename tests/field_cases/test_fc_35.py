"""FC-35: the lease has run out, its worker lives, and its answer comes late."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from effect_broker.faultpoints import FaultAction, FaultPoint
from effect_broker.proof.broker import wait_until
from effect_broker.proof.stack import ManagedProcess
from field_cases.busy import judge_busy
from field_cases.cases import SETTLE_SECONDS, Case, Offer
from field_cases.odd_workers import paused, start_skewed
from hosting.scenes import SAFETIES, go_on
from observability.pages import page_of

# Long enough for an answer on a busy machine; the successor waits for it.
DEADLINE_SECONDS = 5.0
# Requests when the successor is done: a key is sent again, the others are not.
REQUESTS = {"idempotent": 2, "reconcilable": 1, "unsafe": 1}


def late_outcome(case: Case, effect_id: str) -> dict[str, Any] | None:
    """The first attempt, once its sender has recorded what it saw over the presumption."""
    first = case.scene.attempts(effect_id)[0]
    return first if first["recorded_at"] is not None and first["lost_at"] is not None else None


def stopped_with_the_answer(case: Case, safety: str) -> tuple[Offer, str, int]:
    """One effect, whose sender is stopped with the target's answer in hand.

    A sender that was too busy to send within its deadline has none; then another effect is made.
    """
    offer = case.offer(safety, attempt_deadline_seconds=DEADLINE_SECONDS)
    for order in ("1", "2", "3"):
        case.broker.arm(FaultPoint.AFTER_TARGET_ANSWER, FaultAction.STOP)
        effect_id = offer.submit(order)
        pid = case.scene.stopped_at(FaultPoint.AFTER_TARGET_ANSWER)
        if offer.effect_ids(effect_id):
            return offer, effect_id, pid
        go_on(pid)
    raise AssertionError("no sender has sent within its deadline")


def late_outcomes(workers: Sequence[ManagedProcess]) -> float:
    """How often these workers have counted that they told too late: the stale-write metric."""
    return sum(page_of(worker).value("fenced_total", kind="late_outcome") for worker in workers)


def judge_late(case: Case, offer: Offer, effect_id: str, version: int) -> None:
    """The late answer is kept with its id, and settles only what nobody could know."""
    first = wait_until(partial(late_outcome, case, effect_id), "the late answer", SETTLE_SECONDS)
    seen = (first["outcome"], first["external_id"])
    assert seen == ("committed", offer.effect_ids(effect_id)[0])
    requests = REQUESTS[offer.safety]
    effect = judge_busy(offer, effect_id, state="succeeded", requests=requests, effects=1)
    assert effect["version"] > version
    (late,) = [e for e in case.scene.events(effect_id) if json.loads(e["metadata"]).get("late")]
    assert late["kind"] == ("outcome_recorded" if offer.safety == "unsafe" else "late_fact")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seconds", [None, 3600, -3600])
def test_fc_35_a_late_answer_is_a_fact_and_not_a_state(case: Case, seconds: int | None) -> None:
    """The successor judges the lease by the database, whatever its own clock says."""
    case.scene.ensure_workers(len(SAFETIES))
    senders = list(case.scene.workers)
    counted = late_outcomes(senders)
    if seconds is None:
        (successor,) = case.scene.start_workers(1)
    else:
        successor = start_skewed(case, seconds)
    try:
        with paused(successor):
            # The idempotent one last: its second attempt must not meet what is armed for another.
            begun = [stopped_with_the_answer(case, safety) for safety in reversed(SAFETIES)]
        versions = []
        for offer, effect_id, _ in begun:
            state = "outcome_unknown" if offer.safety == "unsafe" else "succeeded"
            requests = REQUESTS[offer.safety]
            effect = judge_busy(offer, effect_id, state=state, requests=requests, effects=1)
            # What ran out is in doubt, never as if it had not been.
            assert not {"prepared", "retryable"} & set(offer.states(effect_id)[1:])
            versions.append(effect["version"])
    finally:
        for sender in senders:
            sender.resume()
    for (offer, effect_id, _), version in zip(begun, versions, strict=True):
        judge_late(case, offer, effect_id, version)
    told = counted + len(begun)
    wait_until(lambda: late_outcomes(senders) == told or None, "each late answer is counted")
    assert late_outcomes([successor]) == 0, "only its sender tells late"
    successor.kill()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seconds", [3600, -3600])
def test_fc_35_a_sender_whose_clock_is_off_outlives_no_lease(case: Case, seconds: int) -> None:
    others = list(case.scene.workers)
    sender = start_skewed(case, seconds)
    with paused(*others):
        offer, effect_id, _ = stopped_with_the_answer(case, "unsafe")
    effect = offer.judge(effect_id, state="outcome_unknown", requests=1, effects=1)
    sender.resume()
    judge_late(case, offer, effect_id, effect["version"])
    wait_until(lambda: late_outcomes([sender]) == 1 or None, "the late answer is counted")
    sender.kill()


def test_fc_35_a_lease_is_no_shorter_than_a_slow_target(case: Case) -> None:
    """A target that takes longer than a heartbeat's life: its worker beats, nobody takes over."""
    offers = [case.offer(safety, attempt_deadline_seconds=10.0) for safety in SAFETIES]
    begun = []
    for offer in offers:
        offer.script("slow(3)")
        begun.append((offer, offer.submit()))
    for offer, effect_id in begun:
        offer.judge(effect_id, state="succeeded", requests=1, effects=1)
        (attempt,) = offer.attempts(effect_id)
        assert attempt["lost_at"] is None


def test_fc_35_a_target_slower_than_the_deadline_is_unknown_and_sent_once(case: Case) -> None:
    offer = case.offer("unsafe", attempt_deadline_seconds=1.0)
    offer.script("slow(3)")
    effect_id = offer.submit()
    case.broker.target.client.wait_effects(1, kind=offer.kind, timeout_seconds=30)
    offer.judge(effect_id, state="outcome_unknown", requests=1, effects=1)
    assert offer.codes(effect_id) == [("ambiguous", "deadline")]
