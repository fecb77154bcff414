"""FC-33: the process is killed between the effect and its record, and starts again."""

from __future__ import annotations

import pytest

from effect_broker.faultpoints import FaultPoint
from field_cases.busy import judge_busy
from field_cases.cases import Case
from hosting.scenes import SAFETIES

# Long enough for an answer on a busy machine; the successor waits for it.
DEADLINE_SECONDS = 3.0
ONCE = ("succeeded", 1, 1)
UNKNOWN_UNSENT = ("outcome_unknown", 0, 0)
UNKNOWN_SENT = ("outcome_unknown", 1, 1)
# Point, then for each class the state, the requests and the effects in the end. A key is asked
# again, a look-up finds what is there, and nothing at all is done where neither can be.
POINTS = {
    FaultPoint.BEFORE_ATTEMPT_COMMIT: {"idempotent": ONCE, "reconcilable": ONCE, "unsafe": ONCE},
    FaultPoint.AFTER_ATTEMPT_COMMIT: {
        "idempotent": ONCE,
        "reconcilable": ONCE,
        "unsafe": UNKNOWN_UNSENT,
    },
    FaultPoint.BEFORE_SOCKET_WRITE: {
        "idempotent": ONCE,
        "reconcilable": ONCE,
        "unsafe": UNKNOWN_UNSENT,
    },
    FaultPoint.AFTER_TARGET_ANSWER: {
        "idempotent": ("succeeded", 2, 1),
        "reconcilable": ONCE,
        "unsafe": UNKNOWN_SENT,
    },
    FaultPoint.BEFORE_OUTCOME_COMMIT: {
        "idempotent": ("succeeded", 2, 1),
        "reconcilable": ONCE,
        "unsafe": UNKNOWN_SENT,
    },
    FaultPoint.AFTER_OUTCOME_COMMIT: {"idempotent": ONCE, "reconcilable": ONCE, "unsafe": ONCE},
}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("point", POINTS)
def test_fc_33_a_worker_killed_anywhere_around_the_effect_does_it_at_most_once(
    case: Case, point: FaultPoint
) -> None:
    case.scene.ensure_workers(len(SAFETIES))
    killed = []
    # The idempotent one last: its second attempt must not meet what is armed for another.
    for safety in reversed(SAFETIES):
        offer = case.offer(safety, attempt_deadline_seconds=DEADLINE_SECONDS)
        case.broker.arm(point)
        effect_id = offer.submit()
        case.broker.wait_fired(point)
        killed.append((safety, offer, effect_id))
    case.scene.ensure_workers(2)  # the restart
    for safety, offer, effect_id in killed:
        state, requests, effects = POINTS[point][safety]
        judge_busy(offer, effect_id, state=state, requests=requests, effects=effects)
        offer.replayed(effect_id)


def test_fc_33_a_step_that_can_never_finish_sends_its_mail_once(case: Case) -> None:
    """Its worker dies after sending, and the next one would die there too."""
    offer = case.offer("unsafe", attempt_deadline_seconds=DEADLINE_SECONDS)
    case.broker.arm(FaultPoint.AFTER_TARGET_ANSWER)
    effect_id = offer.submit()
    case.broker.wait_fired(FaultPoint.AFTER_TARGET_ANSWER)
    case.broker.arm(FaultPoint.AFTER_TARGET_ANSWER)
    try:
        case.scene.ensure_workers(2)
        offer.judge(effect_id, state="outcome_unknown", requests=1, effects=1)
    finally:
        # Nobody has come there again, so it is still armed.
        (case.broker.stack.faults / f"{FaultPoint.AFTER_TARGET_ANSWER}.kill").unlink()
    offer.replayed(effect_id)
