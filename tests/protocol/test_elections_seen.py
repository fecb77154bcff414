"""Whoever tells of what it does not hold is shown the effect as it stands at its own target."""

from __future__ import annotations

from uuid import uuid4

from effect_adapters.base import Answer
from effect_broker.protocol.election import Telling
from effect_contracts.facts import Outcome
from protocol.test_elections import elected


async def test_a_stranger_sees_the_effect_wait_and_no_other_target() -> None:
    desk, mine = await elected()
    await desk.tell(mine, Answer(Outcome.RETRYABLE, "busy"))
    waits = desk.snapshot.intent
    assert waits.reason == "backoff"
    told = await desk.tell(uuid4())
    assert told.telling is Telling.NOBODY
    assert (told.view.reason, told.view.at) == ("backoff", waits.next_action_at)
