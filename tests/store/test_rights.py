"""Who may do what: each role is tried at its borders, in its own session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import TupleRow

from effect_broker.protocol.ports import EffectMissing, StoreUnavailable
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.pool import Pool, make_pool
from effect_broker.store.postgres import PostgresStore
from effect_broker.store.roles import DatabaseRole, create_login
from effect_broker.store.runs import PostgresWorkerStore
from effect_broker.store.tenants import Tenants
from postgres import Database
from store.conformance import Both, World
from store.samples import submission

SessionOf = Callable[[DatabaseRole], "Connection[TupleRow]"]

# Every function that acts with the owner's rights, and why its caller's own are not enough. None of
# them may show one tenant what is another's; a new one has to say why it is here.
CROSS_RIGHTS = {
    "add_caller": "an administrator lets a role in: the grants are the owner's to give",
    "authenticate": "a key is looked up before a tenant is known; found by its hash alone",
    "await_holds": "no role has a right to what is locked; nothing is read and nothing written",
    "begin_console_session": "no role reads or writes sessions; a key that is good now is needed",
    "console_session": "as authenticate, by the hash of the session's id",
    "end_console_session": "as console_session",
    "enqueue_run": "no role but the owner reaches the engine; for a run that the intent names",
    "follow_event_stream": "no role writes epochs; it says what the server says of itself",
    "hmac_key_ids_in_use": "key ids of all tenants, so that a ring that lacks one is seen; no key",
    "elect_effect": "as submit_effect, with the first attempt of the caller that asks",
    "join_effect": "a caller's own transaction; the tenant is that of the role that logged in",
    "ledger_numbers": "numbers over all tenants for /metrics, and nothing else of any of them",
    "remove_caller": "as add_caller",
    "share_holds": "as await_holds",
    "submit_effect": "the one way to make an intent; the tenant has to be the session's own",
    "submit_linked_effect": "as submit_effect, which it calls; the other effect is of that tenant",
    "subscription_numbers": "as ledger_numbers, of the subscriptions to events",
    "tenant_named": "the address of a webhook names a tenant; its id, where it is served",
}

# What pruning may remove, once an effect is settled and being pruned.
PRUNED = {"effect_attempts", "effect_events", "effect_evidence", "effect_payloads"}


@pytest.fixture
def session_of(shared_database: Database) -> Iterator[SessionOf]:
    """Sessions by role."""
    opened: list[Connection[TupleRow]] = []

    def connect(role: DatabaseRole) -> Connection[TupleRow]:
        opened.append(psycopg.connect(shared_database.url_for(role), autocommit=True))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


@contextmanager
def refused() -> Iterator[None]:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        yield


@pytest.fixture
async def two_tenants(
    admin_pool: Pool, api_store: PostgresApiStore, tenant_id: UUID
) -> tuple[UUID, UUID]:
    """Two tenants, each with one effect."""
    other = (await Tenants(admin_pool).create(f"t-{uuid4().hex[:12]}", "hmac-1")).tenant_id
    for tenant in (tenant_id, other):
        await api_store.submit(submission(tenant))
    return tenant_id, other


async def test_the_api_sees_its_tenant_and_nobody_without_one(
    session_of: SessionOf, two_tenants: tuple[UUID, UUID]
) -> None:
    mine, other = two_tenants
    api = session_of(DatabaseRole.API)
    tables = api.execute(
        "SELECT c.relname FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid"
        " WHERE c.relnamespace = 'effect_broker'::regnamespace AND c.relkind = 'r'"
        " AND a.attname = 'tenant_id' AND has_table_privilege(c.oid, 'SELECT')"
    ).fetchall()
    assert len(tables) > 15
    for (table,) in tables:
        query = f"SELECT DISTINCT tenant_id FROM effect_broker.{table}".encode()
        assert api.execute(query).fetchall() == []
        with api.transaction():
            api.execute("SELECT set_config('effect_broker.tenant_id', %s::text, true)", [str(mine)])
            seen = {row[0] for row in api.execute(query).fetchall()}
            assert seen <= {mine}
            assert other not in seen
    assert api.execute("SELECT count(*) FROM effect_broker.effect_intents").fetchone() == (0,)


async def test_the_tenant_of_a_transaction_ends_with_it(
    api_pool: Pool, api_store: PostgresApiStore, two_tenants: tuple[UUID, UUID]
) -> None:
    effect_id = submission(two_tenants[0]).effect_id
    await api_store.intent(two_tenants[0], effect_id)
    async with api_pool.connection() as connection:
        cursor = await connection.execute("SELECT count(*) AS n FROM effect_broker.effect_intents")
        assert await cursor.fetchone() == {"n": 0}


async def test_an_effect_of_another_tenant_is_missing(
    api_store: PostgresApiStore, two_tenants: tuple[UUID, UUID]
) -> None:
    mine, other = two_tenants
    with pytest.raises(EffectMissing):
        await api_store.effect(mine, submission(other).effect_id)


async def test_the_api_cannot_write_for_another_tenant(
    session_of: SessionOf, two_tenants: tuple[UUID, UUID]
) -> None:
    mine, other = two_tenants
    api = session_of(DatabaseRole.API)
    with api.transaction(force_rollback=True):
        api.execute("SELECT set_config('effect_broker.tenant_id', %s::text, true)", [str(mine)])
        changed = api.execute(
            "UPDATE effect_broker.effect_intents SET reason = 'x' WHERE tenant_id = %s", [other]
        )
        assert changed.rowcount == 0
        with refused(), api.transaction():
            api.execute(
                "INSERT INTO effect_broker.holds (hold_id, kind, tenant_id, reason, placed_by)"
                " VALUES (gen_random_uuid(), 'paused', %s, 'r', 'o')",
                [other],
            )
        with pytest.raises(psycopg.Error, match="another tenant"), api.transaction():
            api.execute(
                "SELECT effect_broker.submit_effect(%s, %s, 'k', 't', '', 'n', '1', '', 'unsafe',"
                " 'd', 'h', NULL, 'r', NULL, NULL, NULL, NULL, 'k', '', NULL, NULL)",
                [other, uuid4()],
            )
        with pytest.raises(psycopg.Error, match="no such run"):
            api.execute(
                "SELECT effect_broker.enqueue_run(%s, %s, 1, now())",
                [other, submission(other).effect_id],
            )


async def test_the_api_reaches_nothing_of_the_engine(
    session_of: SessionOf, superuser: Connection[TupleRow]
) -> None:
    api = session_of(DatabaseRole.API)
    tables = superuser.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'dbos'"
    ).fetchall()
    assert len(tables) > 10
    for (table,) in tables:
        with refused():
            api.execute(f"SELECT 1 FROM dbos.{table}".encode())
    with refused():
        api.execute("SELECT dbos.enqueue_workflow('evil', 'effects')")


def test_a_superusers_rights_do_not_leak_through_public(superuser: Connection[TupleRow]) -> None:
    open_to_all = superuser.execute(
        "SELECT p.oid::regprocedure::text FROM pg_proc p"
        " JOIN pg_namespace n ON n.oid = p.pronamespace"
        " WHERE n.nspname IN ('effect_broker', 'dbos') AND p.prorettype <> 'trigger'::regtype"
        " AND EXISTS (SELECT 1 FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a"
        "             WHERE a.grantee = 0)"
    ).fetchall()
    assert open_to_all == []


def test_functions_that_cross_rights_fix_their_search_path(
    superuser: Connection[TupleRow],
) -> None:
    rows = superuser.execute(
        "SELECT p.proname, p.proconfig, r.rolname FROM pg_proc p"
        " JOIN pg_namespace n ON n.oid = p.pronamespace JOIN pg_roles r ON r.oid = p.proowner"
        " WHERE n.nspname = 'effect_broker' AND p.prosecdef ORDER BY 1"
    ).fetchall()
    assert [row[0] for row in rows] == sorted(CROSS_RIGHTS)
    for _, settings, owner in rows:
        assert settings == ["search_path=pg_catalog, effect_broker, pg_temp"]
        assert owner == "effect_broker_owner"


@pytest.mark.parametrize("role", [r for r in DatabaseRole if r is not DatabaseRole.OWNER])
def test_no_role_can_change_the_schema(
    session_of: SessionOf, tenant_id: UUID, role: DatabaseRole
) -> None:
    session = session_of(role)
    statements: tuple[LiteralString, ...] = (
        "CREATE TABLE effect_broker.mine (x int)",
        "CREATE TABLE public.mine (x int)",
        "CREATE TABLE dbos.mine (x int)",
        "CREATE SCHEMA mine",
        "ALTER TABLE effect_broker.effect_intents ADD COLUMN x int",
        "ALTER TABLE effect_broker.effect_events DISABLE TRIGGER ALL",
        "ALTER TABLE effect_broker.effect_intents DISABLE ROW LEVEL SECURITY",
        "DROP TABLE effect_broker.effect_events",
        "DROP SCHEMA dbos CASCADE",
        "CREATE ROLE mine",
        "SET ROLE effect_broker_owner",
        "SET session_replication_role = replica",
    )
    for statement in statements:
        with refused():
            session.execute(statement)


@pytest.mark.parametrize("role", [r for r in DatabaseRole if r is not DatabaseRole.OWNER])
def test_no_session_that_may_only_log_in_stands_between_holds_and_attempts(
    session_of: SessionOf, superuser: Connection[TupleRow], tenant_id: UUID, role: DatabaseRole
) -> None:
    """Advisory locks are free for everybody, and a lock on one of ours would stop all tenants."""
    stranger = session_of(role)
    stranger.execute("BEGIN")
    for bucket in range(64):
        stranger.execute("SELECT pg_advisory_xact_lock(1701999971, %s)", [bucket])
    superuser.execute("SET lock_timeout = '200ms'")
    try:
        superuser.execute("SELECT effect_broker.share_holds(%s)", [tenant_id])
        superuser.execute("SELECT effect_broker.await_holds(NULL)")
    finally:
        superuser.execute("RESET lock_timeout")
    gates = superuser.execute(
        "SELECT c.oid::regclass::text FROM pg_class AS c WHERE c.relname LIKE 'hold\\_gate\\_%'"
        " AND c.relnamespace = 'effect_broker'::regnamespace"
    ).fetchall()
    assert len(gates) == 64
    for (gate,) in gates:
        for mode in ("ACCESS SHARE", "ROW SHARE", "EXCLUSIVE"):
            stranger.execute("SAVEPOINT before")
            with refused():
                stranger.execute(f"LOCK TABLE {gate} IN {mode} MODE".encode())
            stranger.execute("ROLLBACK TO before")


@pytest.mark.parametrize("role", [r for r in DatabaseRole if r is not DatabaseRole.OWNER])
def test_no_role_can_rewrite_history(
    session_of: SessionOf, tenant_id: UUID, role: DatabaseRole
) -> None:
    session = session_of(role)
    kept = {"effect_receipts", "effect_resolutions", "effect_approvals", "mutation_keys"}
    for table in sorted(kept | PRUNED - {"effect_attempts", "effect_payloads"}):
        with refused():
            session.execute(f"TRUNCATE effect_broker.{table}".encode())
        with refused():
            session.execute(f"UPDATE effect_broker.{table} SET effect_id = effect_id".encode())
        if role is not DatabaseRole.PRUNE or table in kept:
            with refused():
                session.execute(f"DELETE FROM effect_broker.{table}".encode())
    for statement in (
        "DELETE FROM effect_broker.effect_intents",
        "UPDATE effect_broker.effect_intents SET request_hash = ''",
        "INSERT INTO effect_broker.effect_intents (reason) VALUES ('x')",
    ):
        with refused():
            session.execute(statement)


async def test_pruning_removes_nothing_of_an_effect_that_is_not_being_pruned(
    session_of: SessionOf,
    superuser: Connection[TupleRow],
    api_store: PostgresApiStore,
    tenant_id: UUID,
) -> None:
    effect_id = (await api_store.submit(submission(tenant_id))).intent.effect_id
    prune = session_of(DatabaseRole.PRUNE)
    granted = superuser.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'effect_broker'::regnamespace"
        " AND relkind = 'r' AND has_table_privilege('effect_broker_prune', oid, 'DELETE')"
    ).fetchall()
    assert {table for (table,) in granted} == PRUNED
    for table in ("effect_events", "effect_payloads"):
        statement = f"DELETE FROM effect_broker.{table} WHERE effect_id = %s".encode()
        with pytest.raises(psycopg.Error, match="not being pruned"):
            prune.execute(statement, [effect_id])
    # Settled, marked as pruned by a hand, and with an alert that waits for a person.
    superuser.execute("SET session_replication_role = replica")
    superuser.execute(
        "UPDATE effect_broker.effect_intents SET state = 'cancelled', next_action_at = NULL,"
        " receipt_digest = sha256('x'), alert = 'duplicate_detected' WHERE effect_id = %s",
        [effect_id],
    )
    prune.execute(
        "UPDATE effect_broker.effect_intents SET retention_stage = 3 WHERE effect_id = %s",
        [effect_id],
    )
    for table in ("effect_events", "effect_payloads"):
        statement = f"DELETE FROM effect_broker.{table} WHERE effect_id = %s".encode()
        with pytest.raises(psycopg.Error, match="not being pruned"):
            prune.execute(statement, [effect_id])


async def test_the_api_grants_and_records_attempts_of_callers_alone(
    session_of: SessionOf,
    worker_store: PostgresWorkerStore,
    api_store: PostgresApiStore,
    tenant_id: UUID,
) -> None:
    effect_id = (await api_store.submit(submission(tenant_id))).intent.effect_id
    sent = await World(Both(api_store, worker_store), tenant_id, lambda _: []).dispatching(
        effect_id
    )
    api = session_of(DatabaseRole.API)
    with api.transaction(force_rollback=True):
        api.execute(
            "SELECT set_config('effect_broker.tenant_id', %s::text, true)", [str(tenant_id)]
        )
        with refused(), api.transaction():
            api.execute(
                "UPDATE effect_broker.effect_attempts SET outcome = 'committed', code = 'x',"
                " recorded_at = now(), bytes_may_have_left = true WHERE attempt_id = %s",
                [sent],
            )
        with pytest.raises(psycopg.Error, match="only the open lease"), api.transaction():
            api.execute(
                "UPDATE effect_broker.effect_attempts SET deadline_at = deadline_at"
                " + interval '1 day' WHERE attempt_id = %s",
                [sent],
            )
        api.execute(
            "UPDATE effect_broker.effect_attempts SET outcome = 'presumed_ambiguous',"
            " lost_at = now() WHERE attempt_id = %s",
            [sent],
        )
        grant = (
            "INSERT INTO effect_broker.effect_attempts (attempt_id, tenant_id, effect_id, ordinal,"
            " executor_id, started_at, deadline_at, target_identity) VALUES (gen_random_uuid(),"
            " %s, %s, 2, %s, now(), now() + interval '1 minute', 't')"
        )
        with refused(), api.transaction():
            api.execute(grant, [tenant_id, effect_id, "worker-1"])
        api.execute(grant, [tenant_id, effect_id, "caller:key-1"])


def test_only_workers_and_callers_make_attempts(session_of: SessionOf) -> None:
    for role in (DatabaseRole.ADMIN, DatabaseRole.PRUNE):
        session = session_of(role)
        with refused():
            session.execute("INSERT INTO effect_broker.effect_attempts (ordinal) VALUES (1)")
        with refused():
            session.execute("UPDATE effect_broker.effect_attempts SET recorded_at = now()")
    for role in (DatabaseRole.API, DatabaseRole.ADMIN, DatabaseRole.PRUNE):
        with refused():
            session_of(role).execute("INSERT INTO effect_broker.mutation_keys (ordinal) VALUES (1)")


def test_administration_sees_no_effect_and_workers_no_key(session_of: SessionOf) -> None:
    admin, worker, api = (
        session_of(role) for role in (DatabaseRole.ADMIN, DatabaseRole.WORKER, DatabaseRole.API)
    )
    for table in ("effect_intents", "effect_payloads", "effect_receipts", "effect_events"):
        with refused():
            admin.execute(f"SELECT 1 FROM effect_broker.{table}".encode())
    for session in (worker, api):
        with refused():
            session.execute("SELECT 1 FROM effect_broker.api_keys")
    with refused():
        worker.execute("SELECT effect_broker.authenticate('')")


def test_the_api_sessions_have_their_limits_whoever_opens_them(session_of: SessionOf) -> None:
    api = session_of(DatabaseRole.API)
    for name in ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"):
        row = api.execute("SELECT current_setting(%s)", [name]).fetchone()
        assert row is not None
        assert row[0] not in {"0", "0ms"}


async def test_a_pool_acts_as_its_role_whoever_logs_in(shared_database: Database) -> None:
    url = shared_database.superuser_url
    async with make_pool(
        url, DatabaseRole.API, application_name="one-url", ttl_seconds=2.0
    ) as pool:
        async with pool.connection() as connection:
            row = await (
                await connection.execute(
                    "SELECT current_user AS acts, current_setting('synchronous_commit') AS sync,"
                    " current_setting('statement_timeout') AS timeout"
                )
            ).fetchone()
            assert row == {"acts": "effect_broker_api", "sync": "on", "timeout": "1660ms"}
        with pytest.raises(StoreUnavailable, match="42501"):
            await Tenants(pool).keys()


async def test_an_operator_gives_a_login_of_his_own_a_role(
    shared_database: Database, api_store: PostgresApiStore, tenant_id: UUID
) -> None:
    name = f"ops_{uuid4().hex[:8]}"
    create_login(shared_database.superuser_url, name, DatabaseRole.WORKER, "s3cret")
    create_login(shared_database.superuser_url, name, DatabaseRole.WORKER, "s3cret")
    try:
        effect_id = (await api_store.submit(submission(tenant_id))).intent.effect_id
        url = shared_database.url_for(name, "s3cret")
        async with make_pool(url, None, application_name="own-login") as pool:
            snapshot = await PostgresStore(pool).load(tenant_id, effect_id)
        assert snapshot.intent.version == 1
    finally:
        with psycopg.connect(shared_database.superuser_url) as connection:
            connection.execute(f"DROP ROLE {name}".encode())
