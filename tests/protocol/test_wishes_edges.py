"""What a wish does not do: nothing twice, nothing that is due already, nothing after the end."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from uuid import uuid4

import pytest

from effect_adapters.base import Finding
from effect_broker.protocol import changes, wishes
from effect_broker.protocol.wishes import Granted
from effect_contracts.facts import EffectState, Hold, Verdict
from protocol.world import TENANT, World, lost_answer


async def reconcile(world: World) -> Granted:
    plan = partial(wishes.reconcile, receipt_id=uuid4(), actor="caller:test")
    return await world.memory.change(TENANT.tenant_id, world.effect_id, plan)


async def cancel(world: World) -> Granted | None:
    plan = partial(wishes.cancel, receipt_id=uuid4(), actor="caller:test")
    return await world.memory.change(TENANT.tenant_id, world.effect_id, plan)


async def waiting_for_a_look_up(world: World) -> None:
    await world.submit()
    world.target.answers.append(lost_answer())
    await world.dispatch(1, 1)
    world.target.findings.append(Finding(Verdict.UNKNOWN, "busy"))
    await world.run()
    due_at = world.snapshot.intent.next_action_at
    assert due_at is not None
    assert due_at > world.clock.now()


@pytest.mark.parametrize("seconds_later", [0.0, 0.5, 100.0])
async def test_a_wish_that_has_been_granted_is_not_granted_again_while_it_is_due(
    reconcilable: World, seconds_later: float
) -> None:
    await waiting_for_a_look_up(reconcilable)
    assert (await reconcile(reconcilable)).changed
    granted = reconcilable.snapshot.intent
    reconcilable.let_pass(seconds_later)
    assert await reconcile(reconcilable) == Granted(False, granted.state)
    assert reconcilable.snapshot.intent == granted


async def test_a_look_up_that_was_wished_for_is_due_at_once(reconcilable: World) -> None:
    await waiting_for_a_look_up(reconcilable)
    assert await reconcile(reconcilable) == Granted(True, reconcilable.snapshot.intent.state)
    assert reconcilable.snapshot.intent.next_action_at == reconcilable.clock.now()


async def test_a_wait_that_is_over_becomes_the_look_up_itself(reconcilable: World) -> None:
    """Due, but under the name of the wait: the wish gives it the name of what is next."""
    await waiting_for_a_look_up(reconcilable)
    due_at = reconcilable.snapshot.intent.next_action_at
    assert due_at is not None
    assert reconcilable.state[1] == "settling"
    reconcilable.let_pass((due_at - reconcilable.clock.now()).total_seconds() + 1)
    assert (await reconcile(reconcilable)).changed
    assert reconcilable.state == ("reconciling", "look_up")


async def test_a_wait_that_is_over_becomes_the_next_attempt(idempotent: World) -> None:
    await idempotent.submit()
    idempotent.target.answers.append(lost_answer())
    await idempotent.dispatch(1, 1)
    idempotent.let_pass(600)
    assert idempotent.state == ("outcome_unknown", "backoff")
    assert (await reconcile(idempotent)).changed
    assert idempotent.state == ("outcome_unknown", "same_key_again")
    assert idempotent.snapshot.intent.next_action_at == idempotent.clock.now()


@pytest.mark.parametrize("hold", [Hold.PAUSED, Hold.TENANT_DISABLED])
async def test_an_effect_whose_runs_failed_is_told_what_holds_it_now(
    idempotent: World, hold: Hold
) -> None:
    await idempotent.submit()
    for _ in range(changes.IDLE_GENERATIONS_MAX + 1):
        await idempotent.requeue_due()
        idempotent.clock.seconds += changes.IDLE_WAIT_CAP_SECONDS + 1
    assert idempotent.state == ("manual_review", "run_failing")
    idempotent.memory.holds.add(hold)
    assert (await reconcile(idempotent)).changed
    assert idempotent.state[1] == hold.value
    # Held it stays: the same wish again has nothing to tell.
    assert not (await reconcile(idempotent)).changed


async def test_what_ended_without_an_attempt_cannot_be_withdrawn(idempotent: World) -> None:
    await idempotent.submit(send_before=idempotent.clock.now() + timedelta(seconds=5))
    idempotent.let_pass(6)
    await idempotent.run_until_at_rest()
    assert idempotent.state == ("failed_final", "expired")
    assert not idempotent.snapshot.attempts
    before = idempotent.snapshot.intent
    assert await cancel(idempotent) is None
    assert idempotent.snapshot.intent == before


async def test_what_has_succeeded_cannot_be_withdrawn(idempotent: World) -> None:
    await idempotent.submit()
    await idempotent.run()
    assert await cancel(idempotent) is None
    assert idempotent.state == ("succeeded", "committed")


async def test_a_withdrawal_is_told_with_its_state(idempotent: World) -> None:
    await idempotent.submit()
    assert await cancel(idempotent) == Granted(True, EffectState.CANCELLED)
    before = idempotent.snapshot.intent
    assert await cancel(idempotent) == Granted(False, EffectState.CANCELLED)
    assert await reconcile(idempotent) == Granted(False, EffectState.CANCELLED)
    assert idempotent.snapshot.intent == before
