"""What the order of the unresolved effects needs: whose key ends when, and whose sender is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from effect_broker.protocol.ports import (
    Advance,
    AttemptRow,
    LoseAttempt,
    RecordOutcome,
    StartAttempt,
    Urgency,
    Write,
)
from effect_broker.protocol.urgency import NO_URGENCY, urgency_after
from effect_contracts.facts import EffectState, Outcome, Policy, SafetyClass
from effect_contracts.life import LifeEvent
from protocol.world import World, lost_answer

T0 = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = Policy(SafetyClass.IDEMPOTENT, key_retention_seconds=3600.0, clock_margin_seconds=1.0)
LOST = Urgency(sender_lost=True)
STATE = EffectState.DISPATCHING


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def start(number: int, seconds: float) -> StartAttempt:
    return StartAttempt(
        UUID(int=number), number, "worker-1", at(seconds), at(seconds + 10), "ledger"
    )


def outcome(number: int, what: Outcome, seconds: float) -> RecordOutcome:
    return RecordOutcome(
        UUID(int=number), what, "code", at(seconds), None, None, False, True, None, None, None
    )


def advance(event: LifeEvent, state: EffectState = STATE) -> Advance:
    return Advance(event, state, "reason", None, False, "worker:test", "kind", {})


def after(
    writes: Sequence[Write], before: Urgency = NO_URGENCY, attempts: Sequence[AttemptRow] = ()
) -> Urgency:
    return urgency_after(before, STATE, attempts, writes, POLICY)


async def rows(*outcomes: Outcome | None) -> tuple[AttemptRow, ...]:
    """Attempts 1, 2, 3, …, a hundred seconds apart."""
    world = World("idempotent")
    await world.submit()
    world.target.answers.append(lost_answer())
    await world.dispatch(1, 1)
    (first,) = world.snapshot.attempts
    return tuple(
        AttemptRow(
            **{
                **{name: getattr(first, name) for name in AttemptRow.__slots__},
                "attempt_id": UUID(int=number),
                "fact": replace(
                    first.fact,
                    ordinal=number,
                    outcome=what,
                    started_at=at(100 * number),
                    deadline_at=at(100 * number + 10),
                    recorded_at=None if what in {None, Outcome.PRESUMED_AMBIGUOUS}
                    else at(100 * number + 1),
                ),
            }
        )
        for number, what in enumerate(outcomes, start=1)
    )  # fmt: skip


async def test_an_attempt_that_begins_is_open_until_its_deadline_and_margin() -> None:
    assert after([]) == NO_URGENCY
    assert after([start(1, 0)]).open_until == at(11)
    both = after([start(2, 200)], attempts=await rows(Outcome.AMBIGUOUS))
    assert both.open_until == at(211)
    assert after([], attempts=await rows(Outcome.AMBIGUOUS)).open_until is None


async def test_the_key_lives_from_the_first_attempt_that_may_have_sent() -> None:
    known = await rows(Outcome.NOT_SENT, Outcome.AMBIGUOUS)
    assert after([], attempts=known).key_expires_at == at(200 + 3600)
    assert after([outcome(1, Outcome.NOT_SENT, 5)], attempts=(await rows(None))).open_until is None


@pytest.mark.parametrize("ordinal", [1, 2, 3])
async def test_a_sender_is_lost_with_its_own_attempt(ordinal: int) -> None:
    known = await rows(*[Outcome.RETRYABLE if n != ordinal else None for n in (1, 2, 3)])
    lost = after([LoseAttempt(ordinal)], attempts=known)
    assert lost.sender_lost is True
    assert lost.open_until is None
    # Its sender speaks after all.
    spoken = after([LoseAttempt(ordinal), outcome(ordinal, Outcome.AMBIGUOUS, 500)], attempts=known)
    assert spoken.sender_lost is False


async def test_another_senders_word_finds_nobody() -> None:
    known = await rows(Outcome.PRESUMED_AMBIGUOUS, None)
    told = after([outcome(2, Outcome.RETRYABLE, 205)], LOST, known)
    assert told.sender_lost is True
    itself = after([outcome(1, Outcome.RETRYABLE, 205)], LOST, known)
    assert itself.sender_lost is False


async def test_nobody_is_lost_of_whom_nobody_has_said_so() -> None:
    known = await rows(Outcome.PRESUMED_AMBIGUOUS, None)
    assert after([outcome(2, Outcome.RETRYABLE, 205)], NO_URGENCY, known).sender_lost is False
    assert after([advance(LifeEvent.OUTCOME_LOST)], NO_URGENCY, known).sender_lost is False


@pytest.mark.parametrize("event", list(LifeEvent))
async def test_only_the_proof_that_nothing_was_committed_ends_a_loss(event: LifeEvent) -> None:
    known = await rows(Outcome.PRESUMED_AMBIGUOUS)
    found = after([advance(event)], LOST, known)
    assert found.sender_lost is (event is not LifeEvent.NO_COMMIT_PROVED)


@pytest.mark.parametrize("state", list(EffectState))
async def test_what_is_final_has_no_urgency(state: EffectState) -> None:
    final = state in {EffectState.SUCCEEDED, EffectState.FAILED_FINAL, EffectState.CANCELLED,
                      EffectState.COMPENSATED}  # fmt: skip
    known = await rows(Outcome.PRESUMED_AMBIGUOUS)
    found = after([advance(LifeEvent.OUTCOME_LOST, state)], LOST, known)
    assert (found == NO_URGENCY) is final
    # The state before counts where nothing moves it.
    assert (urgency_after(LOST, state, known, [], POLICY) == NO_URGENCY) is final
