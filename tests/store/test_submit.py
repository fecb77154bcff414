"""Submit on Postgres: one statement, one intent, one run; also while the engine is away."""

from __future__ import annotations

import asyncio
import json
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import TupleRow

from effect_broker import hosting
from effect_broker.protocol.ports import StaleWrite
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.pool import make_pool
from effect_broker.store.postgres import PostgresStore
from effect_broker.store.roles import HEARTBEAT_TTL_SECONDS, DatabaseRole
from postgres import Database
from store.samples import submission


async def test_a_thousand_submits_of_one_key_at_once_make_one_intent(
    shared_database: Database, superuser: Connection[TupleRow], tenant_id: UUID
) -> None:
    url = shared_database.url_for(DatabaseRole.API)
    wanted = submission(tenant_id)
    async with make_pool(
        url, None, application_name="crowd", size_max=50, size_min=50, ttl_seconds=60
    ) as pool:
        await pool.wait()
        store = PostgresStore(pool)
        submitted = await asyncio.gather(*(store.submit(wanted) for _ in range(1000)))
    assert [s.created for s in submitted].count(True) == 1
    assert {s.intent.effect_id for s in submitted} == {wanted.effect_id}
    for query in (
        "SELECT count(*) FROM effect_broker.effect_intents WHERE tenant_id = %(t)s",
        "SELECT count(*) FROM effect_broker.effect_events WHERE tenant_id = %(t)s",
        "SELECT count(*) FROM dbos.workflow_status WHERE workflow_uuid LIKE %(w)s",
    ):
        row = superuser.execute(query, {"t": tenant_id, "w": f"{wanted.effect_id}.%"}).fetchone()
        assert row == (1,)


async def test_the_run_is_enqueued_under_the_names_of_the_host(
    superuser: Connection[TupleRow], api_store: PostgresApiStore, tenant_id: UUID
) -> None:
    wanted = submission(tenant_id)
    assert (await api_store.submit(wanted)).enqueued
    row = superuser.execute(
        "SELECT s.name, s.queue_name, s.application_version, s.application_name, s.status,"
        " s.serialization, i.inputs FROM dbos.workflow_status s"
        " JOIN dbos.workflow_input i USING (workflow_uuid) WHERE s.workflow_uuid = %s",
        [hosting.workflow_id(wanted.effect_id, 1)],
    ).fetchone()
    assert row is not None
    assert row[:6] == (
        hosting.WORKFLOW_NAME,
        hosting.QUEUE_NAME,
        hosting.APPLICATION_VERSION,
        hosting.APPLICATION_NAME,
        "ENQUEUED",
        "portable_json",
    )
    # Ids and ordinals only: nothing else of an effect enters the engine's tables.
    assert json.loads(row[6]) == {
        "positionalArgs": [str(tenant_id), str(wanted.effect_id), 1],
        "namedArgs": {},
    }


async def test_a_run_waits_in_its_tenants_part_of_the_queue_and_the_oldest_is_next(
    superuser: Connection[TupleRow], api_store: PostgresApiStore, tenant_id: UUID
) -> None:
    made = [(await api_store.submit(submission(tenant_id, f"k{n}"))).intent for n in range(3)]
    rows = superuser.execute(
        "SELECT workflow_uuid, queue_partition_key FROM dbos.workflow_status"
        " WHERE workflow_uuid = ANY (%s) ORDER BY priority, created_at",
        [[hosting.workflow_id(intent.effect_id, 1) for intent in made]],
    ).fetchall()
    assert [row[0] for row in rows] == [hosting.workflow_id(i.effect_id, 1) for i in made]
    assert {row[1] for row in rows} == {str(tenant_id)}


async def test_everything_of_a_submission_is_stored(
    superuser: Connection[TupleRow], api_store: PostgresApiStore, tenant_id: UUID
) -> None:
    wanted = submission(tenant_id, traceparent="00-trace", requested_by="caller:7")
    await api_store.submit(wanted)
    row = superuser.execute(
        "SELECT hmac_key_id, requested_by, trace_id, traceparent, preview, send_before,"
        " wire_digest FROM effect_broker.effect_intents WHERE effect_id = %s",
        [wanted.effect_id],
    ).fetchone()
    assert row == (
        "hmac-1", "caller:7", "trace-1", "00-trace", {"amount": 5}, None, wanted.wire_digest,
    )  # fmt: skip
    payloads = superuser.execute(
        "SELECT kind, ref, key_id, ciphertext FROM effect_broker.effect_payloads"
        " WHERE effect_id = %s ORDER BY kind",
        [wanted.effect_id],
    ).fetchall()
    assert payloads == [
        ("arguments", "", "k1", b"sealed arguments"), ("wire", "", "k1", b"sealed wire"),
    ]  # fmt: skip
    event = superuser.execute(
        "SELECT kind, event, from_state, to_state, actor, metadata"
        " FROM effect_broker.effect_events WHERE effect_id = %s",
        [wanted.effect_id],
    ).fetchone()
    assert event is not None
    assert event[:5] == ("submitted", "submitted", None, "prepared", "caller:7")
    assert json.loads(event[5]) == {
        "contract_digest": wanted.contract_digest.hex(),
        "request_hash": wanted.request_hash.hex(),
    }


async def test_an_effect_id_belongs_to_one_operation_key(
    api_store: PostgresApiStore, tenant_id: UUID
) -> None:
    first = submission(tenant_id)
    await api_store.submit(first)
    with pytest.raises(StaleWrite):
        await api_store.submit(submission(tenant_id, "other", effect_id=first.effect_id))


async def test_an_unknown_contract_or_tenant_stores_nothing(
    api_store: PostgresApiStore, tenant_id: UUID
) -> None:
    for wanted in (
        submission(tenant_id, contract_digest=bytes(32)),
        submission(uuid4()),
    ):
        with pytest.raises(StaleWrite, match="fkey"):
            await api_store.submit(wanted)


class TestWithoutTheEngine:
    """The engine's schema is dropped: on a database of the test's own."""

    @pytest.fixture
    def shared_database(self, database: Database) -> Database:
        """Own, since the schema is dropped."""
        return database

    @pytest.mark.parametrize(
        "accident",
        [
            "DROP SCHEMA dbos CASCADE",
            "DROP TABLE dbos.workflow_status CASCADE",
            "DROP TABLE dbos.workflow_input CASCADE",
            "REVOKE ALL ON SCHEMA dbos FROM effect_broker_owner",
            "REVOKE ALL ON dbos.workflow_status FROM effect_broker_owner",
        ],
    )
    async def test_submits_are_stored_and_not_enqueued(
        self,
        superuser: Connection[TupleRow],
        api_store: PostgresApiStore,
        tenant_id: UUID,
        accident: str,
    ) -> None:
        assert (await api_store.submit(submission(tenant_id, "before"))).enqueued
        superuser.execute(accident.encode())
        for key in ("during", "again"):
            submitted = await api_store.submit(submission(tenant_id, key))
            assert (submitted.created, submitted.enqueued) == (True, False)

    async def test_a_drop_that_goes_on_holds_up_no_submit_for_long(
        self, shared_database: Database, tenant_id: UUID
    ) -> None:
        # With the limits of the product, not those of the other tests.
        pool = make_pool(
            shared_database.url_for(DatabaseRole.API),
            None,
            application_name="test-api",
            ttl_seconds=HEARTBEAT_TTL_SECONDS - 0.1,
        )
        async with pool:
            store = PostgresApiStore(pool)
            await store.submit(submission(tenant_id, "before"))
            with psycopg.connect(shared_database.superuser_url) as dropping:
                dropping.execute("DROP SCHEMA dbos CASCADE")  # not committed
                submitted = await asyncio.wait_for(
                    store.submit(submission(tenant_id, "during")), 20
                )
                assert (submitted.created, submitted.enqueued) == (True, False)
