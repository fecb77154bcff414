"""Which new effect takes an armed drill: one, once, of its own tenant, and never to its harm."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import TupleRow

from effect_broker import hosting
from effect_broker.drills import POINTS, TAKEOVER_SECONDS_MAX, DrillOrder, DrillRecord, DrillStatus
from effect_broker.faultpoints import FaultPoint
from effect_broker.protocol.ports import StaleWrite, StoreUnavailable
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.drills import PostgresDrills
from effect_broker.store.pool import Pool
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.runs import PostgresWorkerStore
from effect_broker.store.tenants import Tenants
from effect_contracts.errors import NotFound, TransitionRefused, UnknownTool
from effect_contracts.trace.kinds import DRILL_TAKEOVER_SECONDS_MAX
from postgres import Database
from store.samples import contract, submission

TOOL = contract("idempotent").tool
ACTOR = "operator:test"


@pytest.fixture
def drills(api_pool: Pool) -> PostgresDrills:
    """As the operator's side."""
    return PostgresDrills(api_pool)


@pytest.fixture
def telling(worker_pool: Pool) -> PostgresDrills:
    """As the worker's side."""
    return PostgresDrills(worker_pool)


def order(
    tool: str | None = TOOL,
    operation_key: str | None = None,
    expires_seconds: int = 600,
    takeover_seconds: int = 30,
) -> DrillOrder:
    return DrillOrder(
        uuid4(), operation_key, None if operation_key else tool, FaultPoint.AFTER_TARGET_ANSWER,
        "a test", expires_seconds, takeover_seconds,
    )  # fmt: skip


async def test_one_of_ten_concurrent_submits_takes_a_drill(
    drills: PostgresDrills, api_store: PostgresApiStore, tenant_id: UUID
) -> None:
    armed = await drills.arm(tenant_id, order(), ACTOR)
    keys = [f"order-{n}" for n in range(10)]
    await asyncio.gather(*(api_store.submit(submission(tenant_id, key)) for key in keys))
    taken = [key for key in keys if await _drill_id(api_store, tenant_id, key)]
    assert len(taken) == 1
    record = await drills.drill(tenant_id, armed.drill_id)
    assert record.effect is not None
    assert record.effect.operation_key == taken[0]
    assert record.status is DrillStatus.MATCHED


async def test_ten_concurrent_submits_of_one_key_take_its_drill_once(
    drills: PostgresDrills, api_store: PostgresApiStore, tenant_id: UUID
) -> None:
    armed = await drills.arm(tenant_id, order(operation_key="order-1"), ACTOR)
    made = submission(tenant_id, "order-1")
    submitted = await asyncio.gather(*(api_store.submit(made) for _ in range(10)))
    assert [one.created for one in submitted].count(True) == 1
    assert await _drill_id(api_store, tenant_id, "order-1") == armed.drill_id


async def test_a_drill_for_a_key_takes_no_other_key(
    drills: PostgresDrills, api_store: PostgresApiStore, tenant_id: UUID
) -> None:
    armed = await drills.arm(tenant_id, order(operation_key="order-2"), ACTOR)
    await api_store.submit(submission(tenant_id, "order-1"))
    assert await _drill_id(api_store, tenant_id, "order-1") is None
    await api_store.submit(submission(tenant_id, "order-2"))
    assert await _drill_id(api_store, tenant_id, "order-2") == armed.drill_id


async def test_a_drill_for_a_tool_takes_no_other_tool(
    drills: PostgresDrills, api_store: PostgresApiStore, tenant_id: UUID
) -> None:
    await drills.arm(tenant_id, order(), ACTOR)
    await api_store.submit(submission(tenant_id, "order-1", "unsafe"))
    assert await _drill_id(api_store, tenant_id, "order-1") is None


async def test_two_drills_of_a_tool_take_two_effects(
    drills: PostgresDrills, api_store: PostgresApiStore, tenant_id: UUID
) -> None:
    armed = [(await drills.arm(tenant_id, order(), ACTOR)).drill_id for _ in range(2)]
    for n in range(3):
        await api_store.submit(submission(tenant_id, f"order-{n}"))
    seen = [await _drill_id(api_store, tenant_id, f"order-{n}") for n in range(3)]
    assert seen == [*armed, None]


async def test_a_replay_takes_no_drill_and_does_not_hold_one(
    drills: PostgresDrills,
    api_store: PostgresApiStore,
    tenant_id: UUID,
    superuser: Connection[TupleRow],
) -> None:
    made = submission(tenant_id, "order-1")
    await api_store.submit(made)
    armed = await drills.arm(tenant_id, order(), ACTOR)
    assert not (await api_store.submit(made)).created
    assert (await drills.drill(tenant_id, armed.drill_id)).status is DrillStatus.ARMED
    for key, found in (("order-1", None), ("order-2", armed.drill_id)):
        row = superuser.execute(
            "SELECT drill_id FROM effect_broker.drill_for(%s, %s, %s, NULL, now())",
            [tenant_id, key, TOOL],
        ).fetchone()
        assert row == (found,)


async def test_a_submit_never_waits_for_a_strangers(
    drills: PostgresDrills,
    api_store: PostgresApiStore,
    tenant_id: UUID,
    superuser: Connection[TupleRow],
) -> None:
    armed = await drills.arm(tenant_id, order(), ACTOR)
    with superuser.transaction():
        superuser.execute(
            "SELECT 1 FROM effect_broker.drills WHERE drill_id = %s FOR UPDATE", [armed.drill_id]
        )
        await api_store.submit(submission(tenant_id, "order-1"))  # at once, or StoreBusy
    assert await _drill_id(api_store, tenant_id, "order-1") is None
    await api_store.submit(submission(tenant_id, "order-2"))
    assert await _drill_id(api_store, tenant_id, "order-2") == armed.drill_id


async def test_an_expired_drill_takes_nothing(
    drills: PostgresDrills,
    api_store: PostgresApiStore,
    tenant_id: UUID,
    superuser: Connection[TupleRow],
) -> None:
    armed = await drills.arm(tenant_id, order(expires_seconds=1), ACTOR)
    await drills.arm(tenant_id, order(tool=contract("unsafe").tool), ACTOR)  # which waits on
    superuser.execute("SELECT pg_sleep_until(%s)", [armed.expires_at])
    record = await drills.drill(tenant_id, armed.drill_id)
    assert record.status is DrillStatus.EXPIRED
    await api_store.submit(submission(tenant_id, "order-1"))
    assert await _drill_id(api_store, tenant_id, "order-1") is None


async def test_a_cancelled_drill_takes_nothing_and_a_matched_one_is_not_cancelled(
    drills: PostgresDrills, api_store: PostgresApiStore, tenant_id: UUID
) -> None:
    first = await drills.arm(tenant_id, order(), ACTOR)
    for _ in range(2):
        cancelled = await drills.cancel(tenant_id, first.drill_id, ACTOR)
        assert (cancelled.status, cancelled.cancelled_by) == (DrillStatus.CANCELLED, ACTOR)
    await api_store.submit(submission(tenant_id, "order-1"))
    assert await _drill_id(api_store, tenant_id, "order-1") is None
    second = await drills.arm(tenant_id, order(), ACTOR)
    await api_store.submit(submission(tenant_id, "order-2"))
    with pytest.raises(TransitionRefused):
        await drills.cancel(tenant_id, second.drill_id, ACTOR)


async def test_another_tenants_effect_never_takes_it_and_its_operator_never_sees_it(
    drills: PostgresDrills, api_store: PostgresApiStore, admin_pool: Pool, tenant_id: UUID
) -> None:
    other = (await Tenants(admin_pool).create(f"t-{uuid4().hex[:12]}", "hmac-1")).tenant_id
    armed = await drills.arm(tenant_id, order(), ACTOR)
    by_key = await drills.arm(tenant_id, order(operation_key="order-1"), ACTOR)
    await api_store.submit(submission(other, "order-1"))
    assert await _drill_id(api_store, other, "order-1") is None
    for drill_id in (armed.drill_id, by_key.drill_id):
        assert (await drills.drill(tenant_id, drill_id)).status is DrillStatus.ARMED
        with pytest.raises(NotFound):
            await drills.drill(other, drill_id)
        with pytest.raises(NotFound):
            await drills.cancel(other, drill_id, ACTOR)
    assert await drills.listing(other, 10) == []


async def test_an_effect_is_not_put_off_for_a_worker_that_is_dead(
    drills: PostgresDrills,
    telling: PostgresDrills,
    api_store: PostgresApiStore,
    worker_store: PostgresWorkerStore,
    tenant_id: UUID,
) -> None:
    executor_id = f"drill-{uuid4()}"
    armed = await drills.arm(tenant_id, order(), ACTOR)
    await worker_store.beat(executor_id, 60.0)
    await telling.announce(tenant_id, armed.drill_id, executor_id)
    await worker_store.stop_executor(executor_id)
    await api_store.submit(submission(tenant_id, "order-1"))
    assert await _drill_id(api_store, tenant_id, "order-1") is None
    again = f"drill-{uuid4()}"
    await worker_store.beat(again, 60.0)
    await telling.announce(tenant_id, armed.drill_id, again)
    await api_store.submit(submission(tenant_id, "order-2"))
    assert await _drill_id(api_store, tenant_id, "order-2") == armed.drill_id


async def test_an_effect_is_not_put_off_beyond_the_moment_its_caller_names(
    drills: PostgresDrills, api_store: PostgresApiStore, tenant_id: UUID
) -> None:
    armed = await drills.arm(tenant_id, order(takeover_seconds=60), ACTOR)
    soon, later = (datetime.now(UTC) + timedelta(seconds=s) for s in (90, 300))
    await api_store.submit(submission(tenant_id, "order-1", send_before=soon))
    assert await _drill_id(api_store, tenant_id, "order-1") is None
    await api_store.submit(submission(tenant_id, "order-2", send_before=later))
    assert await _drill_id(api_store, tenant_id, "order-2") == armed.drill_id


async def test_a_drilled_effect_waits_for_the_drills_worker_and_no_longer(
    drills: PostgresDrills,
    api_store: PostgresApiStore,
    tenant_id: UUID,
    superuser: Connection[TupleRow],
) -> None:
    armed = await drills.arm(tenant_id, order(takeover_seconds=45), ACTOR)
    made = submission(tenant_id, "order-1")
    submitted = await api_store.submit(made)
    assert submitted.enqueued
    intent = submitted.intent
    assert intent.next_action_at == intent.created_at + timedelta(seconds=45)
    row = superuser.execute(
        "SELECT queue_name, queue_partition_key, name, application_version, application_name"
        " FROM dbos.workflow_status WHERE workflow_uuid = %s",
        [hosting.workflow_id(made.effect_id, 1)],
    ).fetchone()
    assert row == (
        hosting.drill_queue_name(armed.drill_id), str(tenant_id), hosting.WORKFLOW_NAME,
        hosting.APPLICATION_VERSION, hosting.APPLICATION_NAME,
    )  # fmt: skip


async def test_the_runs_of_a_drill_come_back_when_its_worker_is_dead_or_too_late(
    drills: PostgresDrills,
    telling: PostgresDrills,
    api_store: PostgresApiStore,
    worker_store: PostgresWorkerStore,
    tenant_id: UUID,
    superuser: Connection[TupleRow],
) -> None:
    executor_id = f"drill-{uuid4()}"
    late = await drills.arm(tenant_id, order(takeover_seconds=1), ACTOR)
    unattended = submission(tenant_id, "order-1")
    taken_over_at = (await api_store.submit(unattended)).intent.next_action_at
    lost = await drills.arm(tenant_id, order(takeover_seconds=600), ACTOR)
    await worker_store.beat(executor_id, 60.0)
    await telling.announce(tenant_id, lost.drill_id, executor_id)
    attended = submission(tenant_id, "order-2")
    await api_store.submit(attended)

    async def back() -> set[tuple[str, str]]:
        runs = await worker_store.abandoned_drilled_runs()
        mine = {hosting.drill_queue_name(d.drill_id) for d in (late, lost)}
        return {(run.run_id, run.queue_name) for run in runs if run.queue_name in mine}

    first = (hosting.workflow_id(unattended.effect_id, 1), hosting.drill_queue_name(late.drill_id))
    second = (hosting.workflow_id(attended.effect_id, 1), hosting.drill_queue_name(lost.drill_id))
    superuser.execute("SELECT pg_sleep_until(%s)", [taken_over_at])
    assert await back() == {first}
    superuser.execute(
        "UPDATE dbos.workflow_status SET status = 'PENDING', executor_id = %s"
        " WHERE workflow_uuid = %s", [executor_id, second[0]],
    )  # fmt: skip
    assert await back() == {first}
    superuser.execute(
        "UPDATE effect_broker.workers SET beat_at = now() - interval '2 min'"
        " WHERE executor_id = %s", [executor_id],
    )  # fmt: skip
    assert await back() == {first, second}


async def test_what_cannot_match_is_refused(
    drills: PostgresDrills, api_store: PostgresApiStore, tenant_id: UUID
) -> None:
    with pytest.raises(UnknownTool):
        await drills.arm(tenant_id, order(tool="nobody.serves.it"), ACTOR)
    await api_store.submit(submission(tenant_id, "order-1"))
    with pytest.raises(TransitionRefused):
        await drills.arm(tenant_id, order(operation_key="order-1"), ACTOR)


async def test_a_death_is_recorded_once_and_only_of_the_drills_worker(
    drills: PostgresDrills, telling: PostgresDrills, api_store: PostgresApiStore, tenant_id: UUID
) -> None:
    armed = await drills.arm(tenant_id, order(), ACTOR)
    target = (tenant_id, armed.drill_id)
    await telling.record_death(*target, "worker-1")
    await telling.announce(*target, "worker-1")
    await telling.record_death(*target, "worker-1")
    assert (await drills.drill(*target)).died_at is None  # nothing had matched
    with pytest.raises(StoreUnavailable):  # the API's role says nothing of workers
        await drills.record_death(*target, "worker-1")


async def test_what_is_written_of_a_drill_stays(
    drills: PostgresDrills,
    api_store: PostgresApiStore,
    tenant_id: UUID,
    superuser: Connection[TupleRow],
) -> None:
    armed = await drills.arm(tenant_id, order(), ACTOR)
    await api_store.submit(submission(tenant_id, "order-1"))
    for change in ("reason = 'x'", "matched_at = now(), effect_id = NULL", "armed_by = 'x'"):
        with pytest.raises(psycopg.DatabaseError, match="never rewritten"):
            superuser.execute(
                f"UPDATE effect_broker.drills SET {change} WHERE drill_id = %s".encode(),
                [armed.drill_id],
            )
    with pytest.raises(psycopg.DatabaseError):
        superuser.execute("DELETE FROM effect_broker.drills WHERE drill_id = %s", [armed.drill_id])


async def test_the_api_cannot_say_that_a_drill_has_matched_or_arm_for_another_tenant(
    shared_database: Database, drills: PostgresDrills, admin_pool: Pool, tenant_id: UUID
) -> None:
    armed = await drills.arm(tenant_id, order(), ACTOR)
    url = shared_database.url_for(DatabaseRole.API)
    with psycopg.connect(url, autocommit=True) as api:
        api.execute(
            "SELECT set_config('effect_broker.tenant_id', %s::text, false)", [str(tenant_id)]
        )
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            api.execute(
                "UPDATE effect_broker.drills SET matched_at = now() WHERE drill_id = %s",
                [armed.drill_id],
            )
        other = (await Tenants(admin_pool).create(f"t-{uuid4().hex[:12]}", "hmac-1")).tenant_id
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            api.execute(
                "INSERT INTO effect_broker.drills (drill_id, tenant_id, tool, fault_point,"
                " takeover_seconds, armed_by, reason, expires_at) VALUES"
                " (gen_random_uuid(), %s, 't', 'after_reserve', 1, 'x', 'x', now() + '1 min')",
                [other],
            )


async def test_the_look_of_a_submit_is_at_an_index_that_holds_armed_drills_alone(
    superuser: Connection[TupleRow], tenant_id: UUID
) -> None:
    with superuser.transaction(force_rollback=True):
        superuser.execute(
            "INSERT INTO effect_broker.drills (drill_id, tenant_id, tool, fault_point,"
            " takeover_seconds, armed_by, reason, expires_at, cancelled_by, cancelled_at)"
            " SELECT gen_random_uuid(), %s, 't', 'after_reserve', 1, 'x', 'x',"
            " now() + interval '1 hour', 'x', now() FROM generate_series(1, 5000)",
            [tenant_id],
        )
        superuser.execute("ANALYZE effect_broker.drills")
        rows = superuser.execute(
            "EXPLAIN SELECT 1 FROM effect_broker.drills AS d WHERE d.tenant_id = %s"
            " AND d.expires_at > now() AND d.effect_id IS NULL AND d.cancelled_at IS NULL",
            [tenant_id],
        ).fetchall()
    plan = " ".join(row[0] for row in rows)
    assert "armed_drills" in plan, plan


def test_every_fault_point_and_takeover_that_is_allowed_can_be_stored(
    superuser: Connection[TupleRow],
) -> None:
    row = superuser.execute(
        "SELECT string_agg(pg_get_constraintdef(oid), ' ') FROM pg_constraint"
        " WHERE conrelid = 'effect_broker.drills'::regclass AND contype = 'c'"
    ).fetchone()
    assert row is not None
    assert f"(takeover_seconds <= {TAKEOVER_SECONDS_MAX})" in row[0]
    assert TAKEOVER_SECONDS_MAX == DRILL_TAKEOVER_SECONDS_MAX
    assert all(re.fullmatch("[a-z_]{1,64}", point) for point in POINTS)


async def test_a_drill_matches_once_for_all_time(
    drills: PostgresDrills, api_store: PostgresApiStore, tenant_id: UUID
) -> None:
    await drills.arm(tenant_id, order(), ACTOR)
    await api_store.submit(submission(tenant_id, "order-1"))
    (record,) = await drills.listing(tenant_id, 10)
    assert isinstance(record, DrillRecord)
    with pytest.raises(StaleWrite):
        # A hand in the database that tries to use it again.
        await _rematch(drills, tenant_id, record.drill_id)


async def _rematch(drills: PostgresDrills, tenant_id: UUID, drill_id: UUID) -> None:
    async with drills.connection() as (connection, _), connection.transaction():
        await connection.execute(
            "SELECT set_config('effect_broker.tenant_id', %s::text, true)", [str(tenant_id)]
        )
        await connection.execute(
            "UPDATE effect_broker.drills SET cancelled_by = 'x', cancelled_at = now()"
            " WHERE drill_id = %s",
            [drill_id],
        )


async def _drill_id(store: PostgresApiStore, tenant_id: UUID, key: str) -> UUID | None:
    """The drill in the first event of the effect of a key."""
    effect_id = submission(tenant_id, key).effect_id
    found = re.search(
        '"drill_id":"([^"]*)"', (await store.events(tenant_id, effect_id))[0].metadata
    )
    return None if found is None else UUID(found[1])
