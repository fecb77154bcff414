"""What goes wrong between the store and its database comes out as one of the store's own errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import psycopg
import pytest
from psycopg import Connection, sql
from psycopg.rows import TupleRow
from psycopg_pool import PoolClosed, PoolTimeout

from effect_broker.protocol.ports import (
    Change,
    CommitUnknown,
    Snapshot,
    StaleWrite,
    StoreBusy,
    StoreError,
    StoreUnavailable,
)
from effect_broker.store.api import PostgresApiStore
from effect_broker.store.errors import store_error
from effect_broker.store.pool import make_pool
from effect_broker.store.postgres import PostgresStore
from effect_broker.store.roles import DatabaseRole
from effect_contracts.facts import EffectState
from effect_contracts.life import LifeEvent
from postgres import Database
from store.samples import advance, submission
from store.wire import Wire, wire_to


def again(snapshot: Snapshot) -> Change[int]:
    """A small change."""
    move = advance(LifeEvent.NOTHING_SENT, EffectState.PREPARED, snapshot.now)
    return Change(snapshot.intent.version, (move,))


@pytest.fixture
async def wire(shared_database: Database) -> AsyncIterator[Wire]:
    """A wire to the server, as the worker's role."""
    async with wire_to(shared_database.url_for(DatabaseRole.WORKER)) as made:
        yield made


@pytest.fixture
async def wired_store(wire: Wire) -> AsyncIterator[PostgresStore]:
    """A store at the other end of the wire, with one connection."""
    async with make_pool(wire.url, None, application_name="wired", size_max=1) as pool:
        yield PostgresStore(pool)


@pytest.fixture
async def effect_id(api_store: PostgresApiStore, tenant_id: UUID) -> UUID:
    """A submitted effect."""
    return (await api_store.submit(submission(tenant_id))).intent.effect_id


@pytest.mark.parametrize(("swallow", "version"), [(True, 1), (False, 2)])
async def test_a_connection_lost_during_commit_leaves_it_unknown(
    wire: Wire,
    wired_store: PostgresStore,
    api_store: PostgresApiStore,
    tenant_id: UUID,
    effect_id: UUID,
    swallow: bool,
    version: int,
) -> None:
    await wired_store.payload(tenant_id, effect_id, "wire")  # a connection that works
    wire.cut_at, wire.swallow = b"update_intent", swallow
    with pytest.raises(CommitUnknown):
        await wired_store.change(tenant_id, effect_id, again)
    assert (await api_store.intent(tenant_id, effect_id)).version == version


async def test_a_connection_lost_before_commit_changes_nothing(
    wire: Wire, wired_store: PostgresStore, tenant_id: UUID, effect_id: UUID
) -> None:
    wire.cut_at, wire.swallow = b"lock_effect", False
    with pytest.raises(StoreUnavailable):
        await wired_store.change(tenant_id, effect_id, again)
    wire.cut_at = None
    assert await wired_store.change(tenant_id, effect_id, again) == 1


async def test_a_submit_whose_answer_is_lost_is_unknown_and_may_be_repeated(
    shared_database: Database, api_store: PostgresApiStore, tenant_id: UUID
) -> None:
    wanted = submission(tenant_id)
    async with wire_to(shared_database.url_for(DatabaseRole.API)) as wire:
        wire.cut_at, wire.swallow = wanted.downstream_key.encode(), False
        async with make_pool(wire.url, None, application_name="wired", size_max=1) as pool:
            with pytest.raises(CommitUnknown):
                await PostgresStore(pool).submit(wanted)
    assert not (await api_store.submit(wanted)).created


async def test_a_change_takes_three_round_trips(
    wire: Wire, wired_store: PostgresStore, tenant_id: UUID, effect_id: UUID
) -> None:
    await wired_store.change(tenant_id, effect_id, again)  # connects, and reads the contract
    counts = []
    for call in (
        lambda: wired_store.change(tenant_id, effect_id, again),
        lambda: wired_store.load(tenant_id, effect_id),
        lambda: wired_store.payload(tenant_id, effect_id, "wire"),
    ):
        before = wire.turns
        await call()
        counts.append(wire.turns - before)
    assert counts == [3, 1, 1]


async def test_an_ended_backend_is_unavailable_and_the_next_call_works(
    wired_store: PostgresStore,
    superuser: Connection[TupleRow],
    tenant_id: UUID,
    effect_id: UUID,
) -> None:
    await wired_store.load(tenant_id, effect_id)
    superuser.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE application_name = 'wired' AND datname = current_database()"
    )
    with pytest.raises(StoreUnavailable):
        await wired_store.load(tenant_id, effect_id)
    assert (await wired_store.load(tenant_id, effect_id)).intent.version == 1


async def test_a_lock_that_is_not_granted_makes_the_store_busy(
    shared_database: Database,
    superuser: Connection[TupleRow],
    tenant_id: UUID,
    effect_id: UUID,
    api_store: PostgresApiStore,
) -> None:
    url = shared_database.url_for(DatabaseRole.WORKER)
    pool = make_pool(url, None, application_name="hasty", ttl_seconds=0.4)
    async with pool:
        with superuser.transaction():
            superuser.execute(
                "SELECT 1 FROM effect_broker.effect_intents WHERE effect_id = %s FOR UPDATE",
                [effect_id],
            )
            with pytest.raises(StoreBusy, match="55P03"):
                await PostgresStore(pool).change(tenant_id, effect_id, again)
    assert await api_store.change(tenant_id, effect_id, again) == 1


async def test_a_stopped_holder_of_a_lock_loses_it(
    shared_database: Database, tenant_id: UUID, effect_id: UUID, api_store: PostgresApiStore
) -> None:
    url = shared_database.url_for(DatabaseRole.WORKER)
    pool = make_pool(url, None, application_name="stopped", ttl_seconds=0.4)
    async with pool, pool.connection() as connection:
        await connection.execute("BEGIN")
        await connection.execute(
            "SELECT 1 FROM effect_broker.effect_intents WHERE effect_id = %s FOR UPDATE",
            [effect_id],
        )
        await asyncio.wait_for(api_store.change(tenant_id, effect_id, again), 20)
        with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
            await connection.execute("COMMIT")


async def test_a_server_that_takes_no_writes_is_unavailable(
    shared_database: Database, superuser: Connection[TupleRow], tenant_id: UUID, effect_id: UUID
) -> None:
    url = shared_database.url_for(DatabaseRole.WORKER)
    options = "&options=-c%20default_transaction_read_only%3Don"
    async with make_pool(url + options, None, application_name="read-only") as pool:
        store = PostgresStore(pool)
        assert (await store.load(tenant_id, effect_id)).intent.version == 1
        with pytest.raises(StoreUnavailable, match="25006"):
            await store.change(tenant_id, effect_id, again)


async def test_a_server_that_is_away_is_unavailable(
    tenant_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("effect_broker.store.pool.POOL_WAIT_SECONDS", 0.3)
    url = "postgresql://nobody@/nothing?host=/nonexistent&port=1"
    pool = make_pool(url, None, application_name="nowhere", size_min=0)
    await pool.open()
    try:
        with pytest.raises(StoreUnavailable):
            await PostgresStore(pool).load(tenant_id, tenant_id)
    finally:
        await pool.close()


async def test_an_error_tells_no_value_of_a_row(
    api_store: PostgresApiStore, tenant_id: UUID
) -> None:
    secret = "not printable:\x01secret"
    with pytest.raises(StoreError) as caught:
        await api_store.submit(submission(tenant_id, key=secret))
    assert isinstance(caught.value, StaleWrite)
    assert "secret" not in str(caught.value)
    assert "operation_key_check" in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


# The mapping --------------------------------------------------------------------------------

# What each class of SQLSTATE is. A class that psycopg learns and this table does not know fails.
_CLASSES: dict[str, type[StoreError]] = {
    "02": StoreError, "03": StoreError, "08": StoreUnavailable, "09": StoreError,
    "0A": StoreError, "0B": StoreError, "0F": StoreError, "0L": StoreError, "0P": StoreError,
    "0Z": StoreError, "10": StoreError, "20": StoreError, "21": StoreError, "22": StoreError,
    "23": StaleWrite, "24": StoreError, "25": StoreError, "26": StoreError, "27": StaleWrite,
    "28": StoreUnavailable, "2B": StoreError, "2D": StoreError, "2F": StoreError,
    "34": StoreError, "38": StoreError, "39": StoreError, "3B": StoreError, "3D": StoreUnavailable,
    "3F": StoreUnavailable, "40": StoreBusy, "42": StoreError, "44": StaleWrite,
    "53": StoreUnavailable, "54": StoreError, "55": StoreError, "57": StoreError,
    "58": StoreUnavailable, "72": StoreError, "F0": StoreError, "HV": StoreError,
    "P0": StoreError, "XX": StoreError,
}  # fmt: skip
_EXCEPTIONS: dict[str, type[StoreError]] = {
    "08007": CommitUnknown, "40003": CommitUnknown, "22023": StoreUnavailable,
    "25006": StoreUnavailable, "25P03": StoreUnavailable, "25P04": StoreUnavailable,
    "42501": StoreUnavailable, "42703": StoreUnavailable, "42883": StoreUnavailable,
    "42P01": StoreUnavailable, "55006": StoreBusy, "55P03": StoreBusy, "57014": StoreBusy,
    "57P01": StoreUnavailable, "57P02": StoreUnavailable, "57P03": StoreUnavailable,
    "57P04": StoreUnavailable, "57P05": StoreUnavailable,
}  # fmt: skip

_SERVER_ERRORS = sorted(
    (
        error
        for error in vars(psycopg.errors).values()
        if isinstance(error, type) and issubclass(error, psycopg.Error) and error.sqlstate
    ),
    key=lambda error: str(error.sqlstate),
)


def test_every_error_of_the_server_has_one_meaning() -> None:
    assert len(_SERVER_ERRORS) > 200
    for error in _SERVER_ERRORS:
        state = str(error.sqlstate)
        expected = _EXCEPTIONS.get(state, _CLASSES.get(state[:2]))
        assert expected is not None, f"psycopg knows a new class: {state} {error.__name__}"
        mapped = store_error(error("secret"), committing=False)
        assert type(mapped) is expected, (state, error.__name__)
        assert "secret" not in str(mapped)


def test_while_committing_every_loss_of_the_connection_is_unknown() -> None:
    for state in ("08006", "57P01", "57P02", "57P05", "25P03"):
        error = psycopg.errors.lookup(state)("lost")
        assert type(store_error(error, committing=True)) is CommitUnknown
    for error in (psycopg.OperationalError("lost"), psycopg.InterfaceError("closed")):
        assert type(store_error(error, committing=True)) is CommitUnknown
        assert type(store_error(error, committing=False)) is StoreUnavailable


def test_an_answer_of_the_server_while_committing_is_no_doubt() -> None:
    for state, expected in (
        ("23514", StaleWrite),
        ("40001", StoreBusy),
        ("53100", StoreUnavailable),
    ):
        error = psycopg.errors.lookup(state)("told")
        assert type(store_error(error, committing=True)) is expected


def test_every_error_without_a_code_has_one_meaning() -> None:
    plain = [
        error
        for error in vars(psycopg.errors).values()
        if isinstance(error, type) and issubclass(error, psycopg.Error) and not error.sqlstate
    ]
    assert psycopg.errors.PipelineAborted in plain
    for error in [*plain, PoolTimeout, PoolClosed]:
        mapped = store_error(error("text"), committing=False)
        lost = issubclass(error, psycopg.OperationalError | psycopg.InterfaceError)
        assert type(mapped) is (StoreUnavailable if lost else StoreError), error


def test_the_guards_own_code_is_a_stale_write(superuser: Connection[TupleRow]) -> None:
    with pytest.raises(psycopg.Error) as caught:
        superuser.execute(
            sql.SQL("SELECT effect_broker.expect_one({}, 'test')").format(sql.Literal(0))
        )
    assert type(store_error(caught.value, committing=True)) is StaleWrite
