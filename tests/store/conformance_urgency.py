"""What every `EffectStore` keeps of an effect's urgency; a part of the suite in `conformance`."""

from __future__ import annotations

from datetime import timedelta

from effect_broker.protocol.ports import LoseAttempt, Snapshot, Urgency, Write
from effect_contracts.facts import EffectState, Outcome
from effect_contracts.life import LifeEvent
from store.conformance import World
from store.samples import advance, outcome, receipt, start

# Of the sample contracts.
RETENTION = timedelta(seconds=86400)
MARGIN = timedelta(seconds=0.5)


class UrgencyConformance:
    """The suite's part on `Snapshot.urgency`."""

    async def test_an_effect_that_was_not_sent_is_not_urgent(self, world: World) -> None:
        effect_id = await world.submit()
        assert (await world.load(effect_id)).urgency == Urgency()

    async def test_the_first_send_starts_the_life_of_the_key(self, world: World) -> None:
        effect_id = await world.submit()
        first = await world.dispatching(effect_id)
        snapshot = await world.load(effect_id)
        began = snapshot.attempts[0].fact.started_at
        until = snapshot.attempts[0].fact.deadline_at + MARGIN
        assert snapshot.urgency == Urgency(began + RETENTION, until, sender_lost=False)
        await world.record(effect_id, first, Outcome.AMBIGUOUS)
        assert (await world.load(effect_id)).urgency == Urgency(began + RETENTION)
        await world.dispatching(effect_id, 2)
        assert (await world.load(effect_id)).urgency.key_expires_at == began + RETENTION

    async def test_what_was_proved_not_sent_has_not_used_the_key(self, world: World) -> None:
        effect_id = await world.submit()
        first = await world.dispatching(effect_id)
        await world.record(effect_id, first, Outcome.NOT_SENT)
        assert (await world.load(effect_id)).urgency == Urgency()
        await world.dispatching(effect_id, 2)
        snapshot = await world.load(effect_id)
        began = snapshot.attempts[1].fact.started_at
        assert snapshot.urgency.key_expires_at == began + RETENTION

    async def test_a_contract_without_retention_has_no_expiry(self, world: World) -> None:
        for safety in ("unsafe", "reconcilable"):
            effect_id = await world.submit(f"order-{safety}", safety)
            await world.dispatching(effect_id)
            urgency = (await world.load(effect_id)).urgency
            assert urgency.key_expires_at is None
            assert urgency.open_until is not None

    async def test_a_lost_sender_is_kept_until_it_speaks(self, world: World) -> None:
        effect_id = await world.submit(safety="unsafe")
        attempt_id = await world.dispatching(effect_id)
        await world.plan(effect_id, _lose)
        assert (await world.load(effect_id)).urgency == Urgency(sender_lost=True)
        await world.record(effect_id, attempt_id, Outcome.AMBIGUOUS)
        assert (await world.load(effect_id)).urgency == Urgency()

    async def test_a_lost_sender_is_forgotten_once_absence_is_proved(self, world: World) -> None:
        effect_id = await world.submit(safety="reconcilable")
        await world.dispatching(effect_id)
        await world.plan(effect_id, _lose)
        await world.plan(
            effect_id,
            lambda s: (advance(LifeEvent.NO_COMMIT_PROVED, EffectState.RETRYABLE, s.now),),
        )
        assert (await world.load(effect_id)).urgency == Urgency()
        await world.dispatching(effect_id, 2)
        assert not (await world.load(effect_id)).urgency.sender_lost

    async def test_a_settled_effect_is_not_urgent_whatever_comes_later(self, world: World) -> None:
        effect_id = await world.submit()
        attempt_id = await world.dispatching(effect_id)
        failed = EffectState.FAILED_FINAL
        await world.write(
            effect_id, LoseAttempt(1), receipt(), advance(LifeEvent.FAILURE_PROVED, failed, None)
        )
        assert (await world.load(effect_id)).urgency == Urgency()
        await world.plan(
            effect_id,
            lambda s: (
                outcome(attempt_id, s.now, Outcome.AMBIGUOUS),
                advance(LifeEvent.LATE_FACT, failed, None),
            ),
        )
        assert (await world.load(effect_id)).urgency == Urgency()

    async def test_an_attempt_that_follows_a_loss_is_open_beside_it(self, world: World) -> None:
        effect_id = await world.submit()
        await world.dispatching(effect_id)
        began = (await world.load(effect_id)).attempts[0].fact.started_at

        def plan(snapshot: Snapshot) -> tuple[Write, ...]:
            granted = start(snapshot, 2)
            until = granted.deadline_at
            move = advance(LifeEvent.ATTEMPT_STARTED, EffectState.DISPATCHING, until)
            return (LoseAttempt(1), granted, move)

        await world.plan(effect_id, plan)
        snapshot = await world.load(effect_id)
        until = snapshot.attempts[1].fact.deadline_at + MARGIN
        assert snapshot.urgency == Urgency(began + RETENTION, until, sender_lost=True)


def _lose(snapshot: Snapshot) -> tuple[Write, ...]:
    unknown = EffectState.OUTCOME_UNKNOWN
    return (LoseAttempt(1), advance(LifeEvent.OUTCOME_LOST, unknown, snapshot.now))
