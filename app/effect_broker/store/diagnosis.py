"""What `doctor` asks of a database: facts only, the judgement is the caller's.

Three looks, each over a connection of its own: the server as it treats a session that brings no
settings, the session that the broker's own settings make, and the fleet as the worker's role sees
it. Nothing is written. A fourth look tells whether a pooler that shares sessions stands between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import DictRow, dict_row

from effect_broker import hosting
from effect_broker.store.errors import ENGINE_MISSING, store_errors
from effect_broker.store.pool import CONNECT_SECONDS, Pool, session_conninfo
from effect_broker.store.roles import HEARTBEAT_TTL_SECONDS, DatabaseRole

_APPLICATION_NAME: Final = "effect-broker-doctor"
# How many recent operation keys of each tenant are looked at, and of how many tenants.
KEYS_PER_TENANT: Final = 200
_TENANTS_MAX: Final = 50
_PAYLOADS_LOOKED_AT: Final = 1000
# The effects that are due first, at the start of a worker: some milliseconds.
_EFFECTS_LOOKED_AT: Final = 10_000

_SERVER: Final = """
SELECT current_setting('server_version_num')::integer AS version,
       pg_is_in_recovery() AS in_recovery,
       current_setting('transaction_read_only')::boolean AS read_only,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes,
       current_setting('synchronous_standby_names') AS synchronous_standby_names,
       (SELECT count(*)::integer FROM pg_stat_replication
        WHERE state IS NULL OR state IN ('streaming', 'catchup')) AS standbys,
       current_setting('max_connections')::integer AS connections_max,
       current_setting('superuser_reserved_connections')::integer
           + coalesce(current_setting('reserved_connections', true)::integer, 0)
           AS connections_reserved,
       (SELECT count(*)::integer FROM pg_stat_activity
        WHERE backend_type = 'client backend' AND application_name = 'effect-broker-api')
           AS api_sessions,
       (SELECT count(*)::integer FROM pg_stat_activity
        WHERE backend_type = 'client backend' AND application_name NOT LIKE 'effect-broker%')
           AS foreign_sessions
"""
_SESSION: Final = """
SELECT session_user::text AS login,
       (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = session_user) AS login_superuser,
       (SELECT r.rolsuper OR r.rolbypassrls FROM pg_roles r WHERE r.rolname = current_user)
           AS passes_row_security,
       current_setting('synchronous_commit') AS synchronous_commit,
       extract(epoch FROM current_setting('lock_timeout')::interval)::float8
           AS lock_timeout_seconds,
       extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval)::float8
           AS idle_timeout_seconds,
       coalesce((SELECT has_schema_privilege(current_user, n.oid, 'USAGE')
                 FROM pg_namespace n WHERE n.nspname = 'dbos'), false) AS enters_engine,
       (SELECT coalesce(array_agg(c.relname::text ORDER BY c.relname), '{}')
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'effect_broker' AND c.relkind IN ('r', 'p')
          AND EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = c.oid
                      AND a.attname = 'tenant_id' AND NOT a.attisdropped)
          AND NOT (c.relrowsecurity AND c.relforcerowsecurity)) AS unguarded_tables
"""

_SCHEMA: Final = "SELECT version_num FROM effect_broker.alembic_version"
_ENGINE: Final = "SELECT version::integer AS version FROM dbos.dbos_migrations"
_QUEUE: Final = "SELECT EXISTS (SELECT 1 FROM dbos.queues WHERE name = %(queue)s) AS registered"
_WORKERS: Final = """
SELECT count(*) FILTER (WHERE beats AND draining_at IS NULL)::integer AS live,
       count(*) FILTER (WHERE beats AND draining_at IS NOT NULL)::integer AS draining,
       coalesce(array_agg(executor_id) FILTER (WHERE beats), '{}') AS beating
FROM (SELECT executor_id, draining_at,
             stopped_at IS NULL
             AND beat_at > clock_timestamp() - make_interval(secs => ttl_seconds) AS beats
      FROM effect_broker.workers) AS w
"""
_HOLDERS: Final = """
SELECT executor_id, count(*)::integer AS runs FROM dbos.workflow_status
WHERE status = 'PENDING' AND executor_id IS NOT NULL AND queue_name = %(queue)s
GROUP BY executor_id
"""
_OVERDUE: Final = """
SELECT count(*)::integer AS effects,
       coalesce(extract(epoch FROM clock_timestamp() - min(next_action_at)), 0)::float8
           AS longest_seconds
FROM effect_broker.effect_intents
WHERE next_action_at < clock_timestamp() - make_interval(secs => %(overdue_seconds)s)
"""
_WAITING: Final = """
SELECT count(*)::integer AS effects FROM (
    SELECT 1 FROM effect_broker.effect_intents WHERE next_action_at IS NOT NULL LIMIT 100000) AS w
"""
_PARKED: Final = """
SELECT reason, count(*)::integer AS effects FROM effect_broker.effect_intents
WHERE state NOT IN ('succeeded', 'failed_final', 'cancelled', 'compensated') AND parked
GROUP BY reason ORDER BY count(*) DESC, reason
"""
# Those whose last turn is furthest away first.
_BUSY: Final = """
SELECT contract_name, count(*)::integer AS effects,
       extract(epoch FROM max(next_action_at) - clock_timestamp())::float8 AS last_turn_seconds
FROM effect_broker.effect_intents WHERE reason = 'target_busy'
GROUP BY contract_name ORDER BY max(next_action_at) DESC LIMIT 5
"""
_ALERTS: Final = """
SELECT alert, count(*)::integer AS effects FROM effect_broker.effect_intents
WHERE alert IS NOT NULL GROUP BY alert ORDER BY alert
"""
_HALTED: Final = """
SELECT halted_at IS NOT NULL AS halted FROM effect_broker.database_identity WHERE singleton
"""
_HOLDS: Final = """
SELECT concat_ws(' ', h.kind,
                 coalesce(h.tool, h.contract_name || ' ' || h.contract_version, 'everything'),
                 coalesce('of ' || t.name, 'of every tenant')) AS hold
FROM effect_broker.holds AS h LEFT JOIN effect_broker.tenants AS t USING (tenant_id)
WHERE h.lifted_at IS NULL ORDER BY h.placed_at LIMIT 20
"""
# The keys that new effects and those under way are derived with.
_HMAC_KEYS: Final = """
SELECT hmac_key_id FROM effect_broker.tenants WHERE disabled_at IS NULL
UNION
SELECT hmac_key_id FROM effect_broker.effect_intents
WHERE state NOT IN ('succeeded', 'failed_final', 'cancelled', 'compensated')
"""
# Payloads of effects under way, without which they cannot go on, and of the oldest rows, which
# are what a rotation would have missed. Not all of them: there may be millions.
_PAYLOAD_KEYS: Final = """
SELECT key_id FROM (
    SELECT p.key_id FROM effect_broker.effect_intents i
    JOIN effect_broker.effect_payloads p USING (effect_id)
    WHERE i.state NOT IN ('succeeded', 'failed_final', 'cancelled', 'compensated')
      AND p.ciphertext IS NOT NULL LIMIT %(payloads)s) AS open_ones
UNION
SELECT key_id FROM (
    SELECT key_id FROM effect_broker.effect_payloads
    WHERE ciphertext IS NOT NULL LIMIT %(payloads)s) AS oldest
"""
# What a worker has to open soon. Effects that wait for a person are not taken up by anybody.
_KEYS_IN_USE: Final = """
SELECT DISTINCT p.key_id
FROM (SELECT tenant_id, effect_id FROM effect_broker.effect_intents
      WHERE next_action_at IS NOT NULL
        AND state NOT IN ('succeeded', 'failed_final', 'cancelled', 'compensated')
      ORDER BY next_action_at LIMIT %(effects)s) AS i
JOIN effect_broker.effect_payloads AS p USING (tenant_id, effect_id)
WHERE p.ciphertext IS NOT NULL
ORDER BY p.key_id
"""
_OPERATION_KEYS: Final = """
SELECT t.name AS tenant, k.tool, k.operation_key
FROM (SELECT tenant_id, name FROM effect_broker.tenants
      ORDER BY created_at DESC LIMIT %(tenants)s) AS t
CROSS JOIN LATERAL (
    SELECT i.tool, i.operation_key FROM effect_broker.effect_intents i
    WHERE i.tenant_id = t.tenant_id AND i.created_at > '-infinity'
    ORDER BY i.created_at DESC, i.effect_id DESC LIMIT %(keys)s) AS k
"""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The server, and what it gives a session that brings no settings of its own.

    Attributes:
        version: as Postgres numbers it (180006).
        standbys: replicas that follow it now.
        connections_reserved: of `connections_max`, those that only certain roles may use.
        foreign_sessions: of the whole server, those of programs that are not ours.
    """

    version: int
    in_recovery: bool
    read_only: bool
    synchronous_commit: str
    fsync: str
    full_page_writes: str
    synchronous_standby_names: str
    standbys: int
    connections_max: int
    connections_reserved: int
    api_sessions: int
    foreign_sessions: int


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """A session of one of the broker's roles, as the broker makes it.

    Attributes:
        passes_row_security: the role it acts as sees the rows of every tenant whatever it asks.
        enters_engine: it may use the engine's schema.
        unguarded_tables: tables of tenants whose row-level security is not forced.
    """

    login: str
    login_superuser: bool
    passes_row_security: bool
    synchronous_commit: str
    lock_timeout_seconds: float
    idle_timeout_seconds: float
    enters_engine: bool
    unguarded_tables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecentKey:
    """The operation key of a recent effect, and whose it is."""

    tenant: str
    tool: str
    operation_key: str


@dataclass(frozen=True, slots=True)
class BusyContract:
    """A contract that limits its target, with effects that wait for their turn there."""

    contract_name: str
    effects: int
    last_turn_seconds: float


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """Workers, runs and effects as they stand.

    Attributes:
        engine_version: of the engine's schema; None where it is away.
        queue_registered: None where the engine's schema is away.
        beating: executors whose heartbeat is alive.
        holders: executor id to the number of runs that it holds.
        overdue: effects whose next action has been due for longer than was asked.
        busy: contracts whose limits let effects wait, the longest wait first.
        alerts: final effects whose target says otherwise than their receipt, by kind.
        holds: what is in force, the oldest first: kind, and what it is about in words.
        recent_keys: the latest of each tenant, of the tenants that are youngest.
    """

    schema_version: str | None
    engine_version: int | None
    queue_registered: bool | None
    live_workers: int
    draining_workers: int
    beating: tuple[str, ...]
    holders: Mapping[str, int]
    waiting: int
    overdue: int
    overdue_longest_seconds: float
    parked: Mapping[str, int]
    busy: tuple[BusyContract, ...]
    alerts: Mapping[str, int]
    halted: bool
    holds: tuple[str, ...]
    hmac_key_ids: tuple[str, ...]
    payload_key_ids: tuple[str, ...]
    recent_keys: tuple[RecentKey, ...]


def look_at_server(url: str) -> ServerFacts:
    """Return the server's facts, over a session without any settings of ours.

    Raises:
        StoreError.
    """
    with store_errors(), _connect(_plain_conninfo(url)) as connection:
        row = connection.execute(_SERVER).fetchone()
    assert row is not None, "a query without FROM returns one row"
    return ServerFacts(**row)


def look_at_session(url: str, role: DatabaseRole) -> SessionFacts:
    """Return what a session of the broker is like for this role.

    Raises:
        StoreError.
    """
    with store_errors(), _connect(_own_conninfo(url, role)) as connection:
        row = connection.execute(_SESSION).fetchone()
    assert row is not None, "a query without FROM returns one row"
    return SessionFacts(**{**row, "unguarded_tables": tuple(row["unguarded_tables"])})


def look_at_fleet(url: str, overdue_seconds: float) -> FleetFacts:
    """Return how workers, runs and effects stand, as the worker's role sees them.

    Raises:
        StoreError: also where the broker's schema is missing.
    """
    queue = {"queue": hosting.QUEUE_NAME}
    with store_errors(), _connect(_own_conninfo(url, DatabaseRole.WORKER)) as connection:

        def one(query: str, parameters: dict[str, Any] | None = None) -> DictRow:
            row = connection.execute(query, parameters).fetchone()
            return row or {}

        def column(query: str, parameters: dict[str, Any] | None = None) -> tuple[str, ...]:
            rows = connection.execute(query, parameters).fetchall()
            return tuple(str(next(iter(row.values()))) for row in rows)

        def counts(query: str) -> dict[str, int]:
            rows = connection.execute(query).fetchall()
            return {str(name): int(number) for name, number in (row.values() for row in rows)}

        engine, registered, holders = _engine(connection, queue)
        workers = one(_WORKERS)
        overdue = one(_OVERDUE, {"overdue_seconds": overdue_seconds})
        return FleetFacts(
            schema_version=one(_SCHEMA).get("version_num"),
            engine_version=engine,
            queue_registered=registered,
            live_workers=workers["live"],
            draining_workers=workers["draining"],
            beating=tuple(workers["beating"]),
            holders=holders,
            waiting=one(_WAITING)["effects"],
            overdue=overdue["effects"],
            overdue_longest_seconds=overdue["longest_seconds"],
            parked=counts(_PARKED),
            busy=tuple(BusyContract(**row) for row in connection.execute(_BUSY)),
            alerts=counts(_ALERTS),
            halted=bool(one(_HALTED).get("halted")),
            holds=column(_HOLDS),
            hmac_key_ids=column(_HMAC_KEYS),
            payload_key_ids=column(_PAYLOAD_KEYS, {"payloads": _PAYLOADS_LOOKED_AT}),
            recent_keys=tuple(
                RecentKey(**row)
                for row in connection.execute(
                    _OPERATION_KEYS, {"tenants": _TENANTS_MAX, "keys": KEYS_PER_TENANT}
                )
            ),
        )


async def encryption_keys_in_use(pool: Pool) -> tuple[str, ...]:
    """Return the ids of the keys under which the effects that are due first are stored.

    Raises:
        StoreError.
    """
    with store_errors():
        async with pool.connection() as connection:
            cursor = await connection.execute(_KEYS_IN_USE, {"effects": _EFFECTS_LOOKED_AT})
            return tuple(str(row["key_id"]) for row in await cursor.fetchall())


async def shares_sessions(url: str, patience_seconds: float = CONNECT_SECONDS) -> bool:
    """Return whether a pooler in transaction mode stands between here and the server.

    What one client sets for its session must be there in its next transaction. A lone client of
    such a pooler would mostly get the same server connection again, so a second client takes that
    connection into a transaction in between, and the first one looks from another.

    Raises:
        StoreError.
    """
    conninfo = _plain_conninfo(url)
    with store_errors():
        first = await psycopg.AsyncConnection.connect(conninfo, autocommit=True)
        try:
            second = await psycopg.AsyncConnection.connect(conninfo, autocommit=True)
            try:
                return not await _keeps_its_session(first, second, patience_seconds)
            finally:
                await second.close()
        finally:
            await first.close()


async def _keeps_its_session(
    first: psycopg.AsyncConnection[Any], second: psycopg.AsyncConnection[Any], patience: float
) -> bool:
    async def session(connection: psycopg.AsyncConnection[Any]) -> tuple[int, str]:
        cursor = await connection.execute(
            "SELECT pg_backend_pid(), current_setting('effect_broker.doctor', true)", prepare=False
        )
        row = await cursor.fetchone()
        assert row is not None
        return int(row[0]), str(row[1])

    await first.execute("SET effect_broker.doctor = 'first'", prepare=False)
    before = (await session(first))[0]
    await second.execute("BEGIN")
    try:
        await session(second)
        # A pool of one connection lets the first client wait until the second one is done.
        return await asyncio.wait_for(session(first), patience) == (before, "first")
    except TimeoutError:
        return False
    finally:
        with suppress(psycopg.Error):
            await second.execute("ROLLBACK")


def _engine(
    connection: psycopg.Connection[DictRow], queue: dict[str, str]
) -> tuple[int | None, bool | None, dict[str, int]]:
    """The engine's schema version, whether our queue is there, and who holds runs."""
    try:
        version = connection.execute(_ENGINE).fetchone()
        registered = connection.execute(_QUEUE, queue).fetchone()
        holders = connection.execute(_HOLDERS, queue).fetchall()
    except ENGINE_MISSING:
        return None, None, {}
    return (
        None if version is None else int(version["version"]),
        bool(registered and registered["registered"]),
        {row["executor_id"]: row["runs"] for row in holders},
    )


def _connect(conninfo: str) -> psycopg.Connection[DictRow]:
    return psycopg.connect(conninfo, autocommit=True, row_factory=dict_row)


def _plain_conninfo(url: str) -> str:
    given: dict[str, Any] = conninfo_to_dict(url)
    return make_conninfo(
        **{"connect_timeout": str(CONNECT_SECONDS), **given, "application_name": _APPLICATION_NAME}
    )


def _own_conninfo(url: str, role: DatabaseRole) -> str:
    return session_conninfo(
        url, role, application_name=_APPLICATION_NAME, ttl_seconds=HEARTBEAT_TTL_SECONDS
    )
