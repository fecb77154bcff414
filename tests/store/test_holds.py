"""Alerts, counts after the end, and holds that are lifted: what migration 0002 added."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import TupleRow

from effect_broker.protocol.ports import Requeue, StaleWrite, StoreUnavailable
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.runs import PostgresWorkerStore
from effect_contracts.facts import Alert, EffectState
from effect_contracts.life import LifeEvent
from postgres import Database
from store.conformance import Both, World
from store.samples import advance, receipt


@pytest.fixture
def shared_database(database: Database) -> Database:
    """Own, since these questions are asked of the whole database."""
    return database


@pytest.fixture
async def world(
    api_store: PostgresApiStore, worker_store: PostgresWorkerStore, tenant_id: UUID
) -> World:
    """A store over the test's own database."""
    return World(Both(api_store, worker_store), tenant_id, lambda _: [])


async def _settled(world: World, safety: str, **more: object) -> UUID:
    effect_id = await world.submit(safety=safety)
    await world.dispatching(effect_id)
    move = advance(LifeEvent.COMMIT_PROVED, EffectState.SUCCEEDED, None)
    await world.write(effect_id, receipt(), move)
    return effect_id


async def test_a_settled_reconcilable_effect_may_have_a_count_ahead(world: World) -> None:
    effect_id = await _settled(world, "reconcilable")
    await world.plan(
        effect_id, lambda s: (advance(LifeEvent.LATE_FACT, EffectState.SUCCEEDED, s.now),)
    )
    assert (await world.load(effect_id)).intent.next_action_at is not None


@pytest.mark.parametrize("safety", ["idempotent", "unsafe", "transactional"])
async def test_no_other_final_effect_has_anything_ahead(world: World, safety: str) -> None:
    effect_id = await _settled(world, safety)
    with pytest.raises(StaleWrite, match="final_is_at_most_counted"):
        await world.plan(
            effect_id, lambda s: (advance(LifeEvent.LATE_FACT, EffectState.SUCCEEDED, s.now),)
        )


async def test_an_alert_stays_until_another_one_replaces_it(
    world: World, api_store: PostgresApiStore
) -> None:
    effect_id = await _settled(world, "reconcilable")

    async def late(alert: Alert | None) -> Alert | None:
        move = advance(LifeEvent.LATE_FACT, EffectState.SUCCEEDED, None, alert=alert)
        await world.write(effect_id, move)
        return (await api_store.effect(world.tenant_id, effect_id)).alert

    assert await late(None) is None
    assert await late(Alert.LATE_CONTRADICTION) is Alert.LATE_CONTRADICTION
    assert await late(None) is Alert.LATE_CONTRADICTION
    assert await late(Alert.DUPLICATE_DETECTED) is Alert.DUPLICATE_DETECTED


async def test_an_effect_that_is_not_final_has_no_alert(world: World) -> None:
    effect_id = await world.submit()
    move = advance(
        LifeEvent.NOTHING_SENT,
        EffectState.PREPARED,
        None,
        parked=True,
        alert=Alert.LATE_CONTRADICTION,
    )
    with pytest.raises(StaleWrite, match="alert_on_a_final_effect"):
        await world.write(effect_id, move)


# Holds --------------------------------------------------------------------------------------------

_HOLD = (
    "INSERT INTO effect_broker.holds"
    " (hold_id, kind, tenant_id, {1}, reason, placed_by)"
    " SELECT gen_random_uuid(), '{0}', tenant_id, {1}, 'test', 'operator:test'"
    " FROM effect_broker.effect_intents"
)
_LIFTED = (
    "UPDATE effect_broker.holds SET lifted_at = now(), lifted_by = 'operator:test',"
    " lift_reason = 'test'"
)
_EVERYTHING = (
    "INSERT INTO effect_broker.holds (hold_id, kind, reason, placed_by)"
    " VALUES (gen_random_uuid(), 'paused', 'test', 'operator:test')"
)
HOLDS: dict[str, tuple[str, str]] = {
    "paused": (_HOLD.format("paused", "contract_name, contract_version"), _LIFTED),
    "paused, the tool": (_HOLD.format("paused", "tool"), _LIFTED),
    "paused, everything": (_EVERYTHING, _LIFTED),
    "frozen": (_HOLD.format("frozen", "contract_name, contract_version"), _LIFTED),
    "tenant_disabled": (
        "UPDATE effect_broker.tenants SET disabled_at = now()",
        "UPDATE effect_broker.tenants SET disabled_at = NULL",
    ),
    "database_restored": (
        "UPDATE effect_broker.database_identity SET halted_at = now()",
        "UPDATE effect_broker.database_identity SET halted_at = NULL",
    ),
}


@pytest.fixture
def sql(superuser: Connection[TupleRow]) -> Callable[[str], None]:
    """Run a statement of this module."""

    def run(statement: str) -> None:
        superuser.execute(statement.encode())

    return run


@pytest.mark.parametrize("waits", [False, True], ids=["parked", "waits for its expiry"])
@pytest.mark.parametrize("hold", HOLDS)
async def test_what_a_hold_stopped_goes_on_when_it_is_lifted(
    world: World,
    worker_store: PostgresWorkerStore,
    sql: Callable[[str], None],
    hold: str,
    waits: bool,
) -> None:
    effect_id = await world.submit()
    held, lifted = HOLDS[hold]
    sql(held)
    await world.plan(
        effect_id,
        lambda s: (
            advance(
                LifeEvent.NOTHING_SENT,
                EffectState.PREPARED,
                s.now.replace(year=s.now.year + 1) if waits else None,
                reason=hold.partition(",")[0],
                parked=not waits,
            ),
        ),
    )
    assert await worker_store.release_lifted(10) == 0
    assert await worker_store.due_effects(10) == []
    sql(lifted)
    assert await worker_store.release_lifted(10) == 1
    assert await worker_store.release_lifted(10) == 0  # it is due now; once is enough
    sql("DELETE FROM dbos.workflow_status")
    assert [d.effect_id for d in await worker_store.due_effects(10)] == [effect_id]


async def test_what_is_parked_for_another_reason_stays(
    world: World, worker_store: PostgresWorkerStore
) -> None:
    effect_id = await world.submit()
    parked = advance(
        LifeEvent.REVIEW_NEEDED, EffectState.MANUAL_REVIEW, None, reason="key_expired", parked=True
    )
    await world.write(effect_id, parked)
    assert await worker_store.release_lifted(10) == 0


async def test_a_row_that_is_being_changed_is_left_for_the_next_look(
    world: World, worker_store: PostgresWorkerStore, database: Database
) -> None:
    effect_id = await world.submit()
    parked = advance(
        LifeEvent.NOTHING_SENT, EffectState.PREPARED, None, reason="paused", parked=True
    )
    await world.write(effect_id, parked)
    with psycopg.connect(database.superuser_url) as other:
        other.execute("SELECT 1 FROM effect_broker.effect_intents FOR UPDATE")
        assert await worker_store.release_lifted(10) == 0
    assert await worker_store.release_lifted(10) == 1


# Requeue ------------------------------------------------------------------------------------------


async def test_a_run_that_the_engine_does_not_take_uses_up_no_generation(
    world: World, sql: Callable[[str], None]
) -> None:
    """Else ten such requeues would show a healthy effect to a person as one whose runs fail."""
    effect_id = await world.submit()
    sql("REVOKE INSERT ON dbos.workflow_status FROM effect_broker_owner")
    with pytest.raises(StoreUnavailable):
        await world.plan(effect_id, lambda s: (Requeue(1, s.now),))
    assert (await world.load(effect_id)).intent.generation == 1
    sql("GRANT INSERT ON dbos.workflow_status TO effect_broker_owner")
    await world.plan(effect_id, lambda s: (Requeue(1, s.now),))
    assert (await world.load(effect_id)).intent.generation == 2
