"""Waiting follows the effect's own next action: when to look, and when to stop."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from effect_broker.cli.effect_wait import (
    EXIT_NOT_KNOWN,
    EXIT_SUCCEEDED,
    follow,
    next_look_seconds,
    next_step,
)
from effect_broker.protocol.ports import Intent, StoreUnavailable
from effect_broker.reading import EffectDetail
from effect_contracts.facts import EffectState, SafetyClass

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def detail(
    state: EffectState = EffectState.OUTCOME_UNKNOWN,
    due_seconds: float | None = 60.0,
    reason: str = "settling",
) -> EffectDetail:
    at = None if due_seconds is None else NOW + timedelta(seconds=due_seconds)
    intent = Intent(
        effect_id=uuid4(),
        tenant_id=uuid4(),
        operation_key="order-1",
        tool="charge",
        request_hash=b"h" * 32,
        contract_name="charge",
        contract_version="1",
        contract_digest=b"d" * 32,
        safety=SafetyClass.RECONCILABLE,
        downstream_key="dk",
        state=state,
        version=2,
        reason=reason,
        generation=1,
        progress_generation=1,
        next_action_at=at,
        target_identity=None,
        wire_digest=None,
        created_at=NOW,
        updated_at=NOW,
    )
    return EffectDetail(intent, False, "caller", None, {}, None, NOW)


class Scripted:
    """Reads that show one thing after the other, and the last one for ever."""

    def __init__(self, *shown: EffectDetail | Exception) -> None:
        self.shown = list(shown)
        self.looks = 0

    async def effect(self, tenant_id: UUID, effect_id: UUID) -> EffectDetail:
        self.looks += 1
        seen = self.shown.pop(0) if len(self.shown) > 1 else self.shown[0]
        if isinstance(seen, Exception):
            raise seen
        return seen


def test_the_next_look_never_lies_past_the_due_moment() -> None:
    for due in (0.1, 1.0, 7.0, 1000.0):
        for pause in (0.05, 1.0, 30.0):
            assert next_look_seconds(detail(due_seconds=due), pause) <= max(due, 0.05)


def test_a_far_action_is_looked_at_seldom_and_an_open_attempt_often() -> None:
    assert next_look_seconds(detail(due_seconds=3600.0), 30.0) == 30.0
    sending = detail(EffectState.DISPATCHING, due_seconds=3600.0)
    assert next_look_seconds(sending, 30.0) == 1.0


def test_an_overdue_action_is_still_looked_for() -> None:
    assert 0 < next_look_seconds(detail(due_seconds=-100.0), 30.0) <= 1.0
    assert "100 s ago" in next_step(detail(due_seconds=-100.0))


async def test_a_wait_says_once_that_nobody_acts() -> None:
    overdue = detail(due_seconds=-100.0)
    done = detail(EffectState.SUCCEEDED, None, "committed")
    said: list[str] = []
    ending = await follow(Scripted(overdue, overdue, overdue, done), uuid4(), uuid4(), None,
                          said.append)  # fmt: skip
    assert ending.exit_code == EXIT_SUCCEEDED
    assert sum("doctor" in line for line in said) == 1


async def test_a_wait_outlives_an_outage_of_the_database() -> None:
    done = detail(EffectState.SUCCEEDED, None, "committed")
    reads = Scripted(detail(due_seconds=0.05), StoreUnavailable("gone"), done)
    said: list[str] = []
    ending = await follow(reads, uuid4(), uuid4(), None, said.append)
    assert ending.exit_code == EXIT_SUCCEEDED
    assert any("does not answer" in line for line in said)


async def test_a_database_that_never_answered_is_no_wait() -> None:
    with pytest.raises(StoreUnavailable):
        await follow(Scripted(StoreUnavailable("gone")), uuid4(), uuid4(), None, print)


async def test_a_parked_effect_ends_the_wait_with_what_to_do() -> None:
    parked = replace(detail(EffectState.MANUAL_REVIEW, None, "key_expired"), parked=True)
    ending = await follow(Scripted(parked), uuid4(), uuid4(), None, print)
    assert ending.exit_code == EXIT_NOT_KNOWN
    assert "Waits for a person" in ending.explanation
    assert "record what you find" in ending.explanation


async def test_a_limit_ends_the_wait_and_nothing_else() -> None:
    waiting = detail(due_seconds=3600.0)
    ending = await follow(Scripted(waiting), uuid4(), uuid4(), 0.2, lambda text: None)
    assert ending.exit_code == EXIT_NOT_KNOWN
    assert "next action in 60 min" in ending.explanation
