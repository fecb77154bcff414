"""Judging where a busy machine may lose an attempt of its own, besides the one that a test takes.

Deadlines are short here, since a take-over waits for them. An idempotent effect whose attempt ran
out of time is sent again, which is right and not what the test is about.
"""

from __future__ import annotations

from typing import Any

from field_cases.cases import Offer


def judge_busy(
    offer: Offer, effect_id: str, *, state: str, requests: int, effects: int, lost: int = 1
) -> dict[str, Any]:
    """As `Offer.judge`; an idempotent effect may have been requested more often.

    Up to `lost` attempts may have sent, for all that anybody can know, although nothing arrived:
    those of processes that were killed or stopped.
    """
    offer.settled(effect_id)
    sent = [a for a in offer.attempts(effect_id) if a["bytes_may_have_left"] is not False]
    received = len(offer.requests(offer.case.scene.intent(effect_id)["downstream_key"]))
    more = received - requests
    assert more == 0 or (more > 0 and offer.safety == "idempotent"), (received, requests)
    unread = len(sent) - received
    assert unread <= lost + max(more, 0), (len(sent), received)
    return offer.judge(effect_id, state=state, requests=received, effects=effects, unread=unread)
