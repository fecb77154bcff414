"""What a caller may ask of an effect under way: to look now, and to withdraw. Neither sends."""

from __future__ import annotations

from functools import partial
from uuid import uuid4

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


async def in_doubt(world: World) -> None:
    await world.submit()
    world.target.answers.append(lost_answer())
    await world.dispatch(1, 1)


async def test_an_unsafe_effect_in_doubt_is_not_moved_by_a_wish(unsafe: World) -> None:
    await in_doubt(unsafe)
    before = unsafe.snapshot.intent
    for _ in range(3):
        assert not (await reconcile(unsafe)).changed
    assert unsafe.snapshot.intent == before
    assert len(unsafe.target.sent) == 1


async def test_a_look_up_comes_now_instead_of_by_its_schedule(reconcilable: World) -> None:
    await in_doubt(reconcilable)
    reconcilable.target.findings.append(Finding(Verdict.UNKNOWN, "busy"))
    await reconcilable.run()
    due_at = reconcilable.snapshot.intent.next_action_at
    assert due_at is not None
    assert due_at > reconcilable.clock.now()
    reconcilable.target.entries.append(reconcilable.entry())
    assert (await reconcile(reconcilable)).changed
    before = reconcilable.clock.now()
    await reconcilable.run()
    assert reconcilable.state == ("succeeded", "committed")
    assert reconcilable.clock.now() < due_at
    assert before < due_at
    assert len(reconcilable.target.sent) == 1


async def test_after_the_horizon_a_person_can_have_it_looked_at_once_more(
    reconcilable: World,
) -> None:
    await in_doubt(reconcilable)
    for _ in range(2000):
        reconcilable.target.findings.append(Finding(Verdict.UNKNOWN, "busy"))
    await reconcilable.run_until_at_rest(steps_max=1000)
    assert reconcilable.state == ("manual_review", "probe_horizon_passed")
    looked = len(reconcilable.target.looked)
    reconcilable.target.findings.clear()
    reconcilable.target.entries.append(reconcilable.entry())
    assert (await reconcile(reconcilable)).changed
    await reconcilable.run_until_at_rest()
    assert reconcilable.state == ("succeeded", "committed")
    assert len(reconcilable.target.looked) == looked + 1


async def test_a_wish_brings_no_look_up_while_something_may_be_on_the_wire(
    reconcilable: World,
) -> None:
    await reconcilable.submit()

    async def wish() -> None:
        assert not (await reconcile(reconcilable)).changed

    reconcilable.target.while_sending = wish
    await reconcilable.dispatch(1, 1)
    assert reconcilable.target.looked == []


async def test_an_effect_whose_runs_failed_goes_on_when_it_is_asked_to(idempotent: World) -> None:
    """The key ring was wrong, and somebody has put it right."""
    await idempotent.submit()
    for _ in range(changes.IDLE_GENERATIONS_MAX + 1):
        await idempotent.requeue_due()
        idempotent.clock.seconds += changes.IDLE_WAIT_CAP_SECONDS + 1
    assert idempotent.state == ("manual_review", "run_failing")
    assert (await reconcile(idempotent)).changed
    await idempotent.run_until_at_rest()
    assert idempotent.state == ("succeeded", "committed")
    assert len(idempotent.target.sent) == 1


async def test_a_hold_is_not_lifted_by_a_wish(idempotent: World) -> None:
    idempotent.memory.holds.add(Hold.PAUSED)
    await idempotent.submit()
    await idempotent.run()
    assert not (await reconcile(idempotent)).changed
    assert idempotent.memory.parked(idempotent.effect_id)


async def test_nothing_is_asked_of_a_final_effect(idempotent: World) -> None:
    await idempotent.submit()
    await idempotent.run()
    before = idempotent.snapshot.intent
    assert not (await reconcile(idempotent)).changed
    assert idempotent.snapshot.intent == before


async def test_an_effect_is_withdrawn_before_its_first_attempt(idempotent: World) -> None:
    await idempotent.submit()
    assert await cancel(idempotent) == Granted(True, EffectState.CANCELLED)
    assert idempotent.state == ("cancelled", "cancelled")
    assert idempotent.receipt is not None
    await idempotent.run()
    assert idempotent.target.sent == []
    assert await cancel(idempotent) == Granted(False, EffectState.CANCELLED)


async def test_nothing_is_taken_back_after_an_attempt(idempotent: World) -> None:
    await in_doubt(idempotent)
    before = idempotent.snapshot.intent
    assert await cancel(idempotent) is None
    assert idempotent.snapshot.intent == before


async def test_a_held_effect_can_be_withdrawn(idempotent: World) -> None:
    idempotent.memory.holds.add(Hold.TENANT_DISABLED)
    await idempotent.submit()
    await idempotent.run()
    assert await cancel(idempotent) == Granted(True, EffectState.CANCELLED)
