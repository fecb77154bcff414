"""Keys in Postgres: a small table of the server's own, beside its business tables.

Atomic (the default, and the strong way): the claim holds a transaction-scoped advisory lock on the
key, and row and mutation are committed together on the connection that the work is given. A second
request waits for the lock, and a look-up tries it: whoever gets it knows that nobody is at work, so
"not landed" is the truth of that moment. A dead process loses lock and row together.

Separate: the claim is committed before the work, with a lease on the database's clock; what is done
to a row afterwards names the claim's token.

Lock order: the key's advisory lock, then its row. All times are the database's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final, LiteralString
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from effect_broker.clock import SystemClock, new_id
from effect_broker.receiving.alike import check_ways, columns_of, warn_of_unused_connection
from effect_broker.receiving.terms import (
    LEASE_SECONDS,
    RESULT_BYTES_MAX,
    RETENTION_SECONDS,
    WAIT_SECONDS,
    Claim,
    KeptResult,
    KeyedRequest,
    Landed,
    NothingDone,
    NotStored,
    Reclaim,
    Refusal,
    Row,
    Standing,
    State,
    StoreUnavailable,
    judge,
    standing_of,
)

Connection = psycopg.AsyncConnection[Any]
Connections = Callable[[], AbstractAsyncContextManager[Connection]]

POSTGRES_DDL: Final = """
CREATE TABLE IF NOT EXISTS idempotency_keys (
    scope          text        NOT NULL CHECK (length(scope) <= 255),
    key            text        NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    request_digest bytea       NOT NULL CHECK (octet_length(request_digest) = 32),
    state          text        NOT NULL CHECK (state IN ('in_progress', 'done', 'unknown')),
    token          uuid        NOT NULL,
    started_at     timestamptz NOT NULL,
    lease_until    timestamptz NOT NULL,
    status         integer,
    headers        jsonb,
    body           bytea,
    refused        boolean     NOT NULL DEFAULT false,
    created_at     timestamptz NOT NULL,
    expires_at     timestamptz NOT NULL,
    PRIMARY KEY (scope, key),
    CHECK ((state = 'done') = (status IS NOT NULL AND headers IS NOT NULL AND body IS NOT NULL))
);
CREATE INDEX IF NOT EXISTS idempotency_keys_expired
    ON idempotency_keys (expires_at) WHERE state = 'done';
"""

_LOCK_NAME: Final = "hashtextextended(%(scope)s || chr(31) || %(key)s, 7116)"
_LOCK: LiteralString = f"SELECT pg_advisory_xact_lock({_LOCK_NAME})"
_TRY_LOCK: LiteralString = f"SELECT pg_try_advisory_xact_lock_shared({_LOCK_NAME})"
_BOUND_LOCKS: Final = "SELECT current_setting('lock_timeout'), set_config('lock_timeout', %s, true)"
_LOCKS_AS_BEFORE: Final = "SELECT set_config('lock_timeout', %s, true)"
_INSERT: Final = """
INSERT INTO idempotency_keys
    (scope, key, request_digest, state, token, started_at, lease_until, created_at, expires_at)
SELECT %(scope)s, %(key)s, %(digest)s, 'in_progress', %(token)s, moment,
       moment + make_interval(secs => %(lease)s), moment,
       moment + make_interval(secs => %(retention)s)
FROM clock_timestamp() AS moment
ON CONFLICT (scope, key) DO NOTHING
RETURNING token
"""
_READ: Final = """
SELECT request_digest, state, token, lease_until <= clock_timestamp(), status, headers, body,
       refused, created_at, expires_at
FROM idempotency_keys WHERE scope = %(scope)s AND key = %(key)s
"""
_RECLAIM: Final = """
UPDATE idempotency_keys
SET state = 'in_progress', token = %(token)s, started_at = clock_timestamp(),
    lease_until = clock_timestamp() + make_interval(secs => %(lease)s)
WHERE scope = %(scope)s AND key = %(key)s AND token = %(former)s AND state <> 'done'
RETURNING token
"""
_COMPLETE: Final = """
UPDATE idempotency_keys
SET state = 'done', status = %(status)s, headers = %(headers)s, body = %(body)s,
    refused = %(refused)s
WHERE scope = %(scope)s AND key = %(key)s AND token = %(token)s AND state <> 'done'
RETURNING token
"""
_GIVE_UP: Final = """
UPDATE idempotency_keys SET state = 'unknown'
WHERE scope = %(scope)s AND key = %(key)s AND token = %(token)s AND state = 'in_progress'
"""
_RELEASE: Final = """
DELETE FROM idempotency_keys
WHERE scope = %(scope)s AND key = %(key)s AND token = %(token)s AND state <> 'done'
"""
_RESOLVE_READ: Final = """
SELECT token FROM idempotency_keys
WHERE scope = %(scope)s AND key = %(key)s
  AND (state = 'unknown' OR state = 'in_progress' AND lease_until <= clock_timestamp())
FOR UPDATE
"""
# Rows without a result stay: without them, their requests could be carried out a second time.
_PURGE: Final = """
DELETE FROM idempotency_keys WHERE (scope, key) IN (
    SELECT scope, key FROM idempotency_keys
    WHERE state = 'done' AND expires_at < clock_timestamp() ORDER BY expires_at LIMIT %s
    FOR UPDATE SKIP LOCKED)
"""
# The server has answered the COMMIT, and the answer is that nothing was committed.
_ROLLED_BACK: Final = ("22", "23", "40", "42", "44", "54", "55", "P0")
_COMPLETION_UNKNOWN: Final = "40003"
_POLL_SECONDS: Final = 0.05


def connecting(url: str) -> Connections:
    """Return a source that opens a connection for each claim; a pool's `connection` is faster."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Connection]:
        connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
        try:
            yield connection
        finally:
            await connection.close()

    return opened


class PostgresKeys:
    """Implements `effect_broker.receiving.terms.KeyStore`.

    Args:
        connections: gives a connection to whoever enters it, such as
            `psycopg_pool.AsyncConnectionPool.connection`. It must be in no transaction.
        shares_transaction: the work is done on `current_claim().connection` and nowhere else.
        repeatable: only of a separate store: doing the work twice does no harm, so a claim whose
            outcome is unknown may be taken anew.
        lease_seconds: only of a separate store: so long the work may take before it counts as lost.
        retention_seconds: so long a result is kept at least.
        wait_seconds: so long a second request waits for the first.
    """

    def __init__(
        self,
        connections: Connections,
        *,
        shares_transaction: bool = True,
        repeatable: bool = False,
        lease_seconds: float = LEASE_SECONDS,
        retention_seconds: float = RETENTION_SECONDS,
        wait_seconds: float = WAIT_SECONDS,
        result_bytes_max: int = RESULT_BYTES_MAX,
    ) -> None:
        check_ways(shares_transaction=shares_transaction, repeatable=repeatable)
        self.atomic = shares_transaction
        self.result_bytes_max = result_bytes_max
        self._connections = connections
        self._repeatable = repeatable
        self._lease_seconds = lease_seconds
        self._retention_seconds = retention_seconds
        self._wait_seconds = wait_seconds
        self._clock = SystemClock()

    async def create_table(self) -> None:
        """Create the table where it is missing (`POSTGRES_DDL`); for start-up and tests."""
        async with self._connections() as connection, connection.transaction():
            await connection.execute(POSTGRES_DDL)

    @asynccontextmanager
    async def claim(
        self, request: KeyedRequest, *, connection: Connection | None = None
    ) -> AsyncIterator[Claim]:
        """Claim a key; see `KeyStore`.

        Args:
            connection: the caller's own, which may be in a transaction already: then the claim is
                part of that one, and so is its commit. Only of an atomic store.
        """
        if not self.atomic:
            assert connection is None, "a separate store commits the claim by itself"
            async with self._separate_claim(request) as claim:
                yield claim
            return
        async with AsyncExitStack() as stack:
            try:
                if connection is None:
                    connection = await stack.enter_async_context(self._connections())
                held = await self._begun(connection, request)
            except (psycopg.Error, OSError) as error:
                raise StoreUnavailable(type(error).__name__) from error
            if not isinstance(held, _Shared):
                yield held
                return
            try:
                yield held
            finally:
                await held.roll_back_unless_ended()

    async def _begun(self, connection: Connection, request: KeyedRequest) -> Claim:
        """Take the key's lock and insert its row, and leave the transaction open if both went."""
        held = _Shared(connection, self._values(request), self._lease_seconds)
        await held.begin()
        try:
            found = await held.insert(self._wait_seconds, self._retention_seconds)
            if found is None:
                await connection.execute("SAVEPOINT effect_receiving")
                return held
            told = judge(found, request, repeatable=False)
            assert not isinstance(told, Reclaim), "the work is not repeatable"
        except psycopg.errors.LockNotAvailable:
            told = Refusal.IN_PROGRESS
        except BaseException:
            await held.roll_back_unless_ended()
            raise
        await held.roll_back_unless_ended()
        return told

    # The separate way -----------------------------------------------------------------------------

    @asynccontextmanager
    async def _separate_claim(self, request: KeyedRequest) -> AsyncIterator[Claim]:
        token = new_id()
        try:
            told = await self._claimed(request, token)
        except (psycopg.Error, OSError) as error:
            raise StoreUnavailable(type(error).__name__) from error
        if told is not None:
            yield told
            return
        held = _Separate(self, {**self._values(request), "token": token})
        try:
            yield held
        finally:
            await held.give_up()

    async def _claimed(self, request: KeyedRequest, token: UUID) -> KeptResult | Refusal | None:
        """Return None where the row is ours now, else what the request is told."""
        until = self._clock.boot_seconds() + self._wait_seconds
        while True:
            told = await self._claimed_once(request, token)
            if told is not Refusal.IN_PROGRESS or self._clock.boot_seconds() >= until:
                return told
            await self._clock.sleep(_POLL_SECONDS)

    async def _claimed_once(
        self, request: KeyedRequest, token: UUID
    ) -> KeptResult | Refusal | None:
        values = {**self._values(request), "token": token, "lease": self._lease_seconds}
        async with self._connections() as connection, connection.transaction():
            # The claim has to outlive the machine before the work begins.
            await connection.execute("SET LOCAL synchronous_commit = on")
            inserted = {**values, "retention": self._retention_seconds}
            if await _one(connection, _INSERT, inserted) is not None:
                return None
            row = await _read(connection, values)
            if row is None:
                return Refusal.IN_PROGRESS  # released in between: come again
            told = judge(row, request, repeatable=self._repeatable)
            if not isinstance(told, Reclaim):
                return told
            taken = await _one(connection, _RECLAIM, {**values, "former": row.token})
            return None if taken is not None else Refusal.IN_PROGRESS

    async def _change(self, statement: LiteralString, values: dict[str, Any]) -> bool:
        async with self._connections() as connection, connection.transaction():
            await connection.execute("SET LOCAL synchronous_commit = on")
            cursor = await connection.execute(statement, values)
            return cursor.rowcount == 1

    # Looking, and keeping in order --------------------------------------------------------------

    async def look_up(self, scope: str, key: str) -> Standing:
        """Say how a key stands; see `KeyStore`."""
        values = {"scope": scope, "key": key}
        try:
            async with self._connections() as connection, connection.transaction():
                # Two statements: the second one's snapshot is taken when nobody is at work.
                await connection.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
                free = await _one(connection, _TRY_LOCK, values)
                row = await _read(connection, values)
        except (psycopg.Error, OSError) as error:
            raise StoreUnavailable(type(error).__name__) from error
        if row is None and free != (True,):
            return Standing(Landed.IN_PROGRESS)
        return standing_of(row)

    async def resolve(self, scope: str, key: str, result: KeptResult | None) -> bool:
        """Conclude a key whose outcome is unknown: a person has found out.

        Args:
            result: what the first request is to be answered from now on; None if it is proved that
                nothing was done, which opens the key again.

        Returns:
            False if the key is not unknown (any more).
        """
        values: dict[str, Any] = {"scope": scope, "key": key}
        async with self._connections() as connection, connection.transaction():
            found = await _one(connection, _RESOLVE_READ, values)
            if found is None:
                return False
            values["token"] = found[0]
            if result is None:
                await connection.execute(_RELEASE, values)
            else:
                await connection.execute(_COMPLETE, {**values, **columns_of(result)})
            return True

    async def purge(self, rows_max: int = 1000) -> int:
        """Delete up to `rows_max` results past their retention; return how many were deleted.

        Keys in progress and unknown ones are never deleted.
        """
        async with self._connections() as connection, connection.transaction():
            return (await connection.execute(_PURGE, [rows_max])).rowcount

    @staticmethod
    def _values(request: KeyedRequest) -> dict[str, Any]:
        return {"scope": request.scope, "key": request.key, "digest": request.digest}


class _Shared:
    """A claim in an open transaction; implements `Held`."""

    def __init__(
        self, connection: Connection, values: dict[str, Any], lease_seconds: float
    ) -> None:
        self._connection = connection
        self._transaction = connection.transaction()
        self._begun: psycopg.AsyncTransaction | None = None
        self._values = {**values, "token": new_id(), "lease": lease_seconds}
        self._ended = False
        self._taken = False

    @property
    def connection(self) -> Connection:
        self._taken = True
        return self._connection

    async def begin(self) -> None:
        self._begun = await self._transaction.__aenter__()

    async def insert(self, wait_seconds: float, retention_seconds: float) -> Row | None:
        """Return None where the row is ours, else the row that is there."""
        # 0 would mean no bound at all.
        bound = f"{max(int(wait_seconds * 1000), 1)}ms"
        former = await _one(self._connection, _BOUND_LOCKS, [bound])
        assert former is not None, "a SELECT without FROM has one row"
        await self._connection.execute(_LOCK, self._values)
        values = {**self._values, "retention": retention_seconds}
        inserted = await _one(self._connection, _INSERT, values)
        await self._connection.execute(_LOCKS_AS_BEFORE, [former[0]])
        if inserted is not None:
            return None
        row = await _read(self._connection, self._values)
        if row is None:
            # Only a separate claim that was released this moment.
            raise psycopg.errors.LockNotAvailable
        return row

    async def complete(self, result: KeptResult) -> None:
        try:
            if result.refused:
                await self._connection.execute("ROLLBACK TO SAVEPOINT effect_receiving")
            kept = await _one(self._connection, _COMPLETE, {**self._values, **columns_of(result)})
        except psycopg.Error as error:
            # No COMMIT was sent, unless the work has sent one of its own.
            if self._connection.info.transaction_status is TransactionStatus.IDLE:
                raise NotStored(type(error).__name__) from error
            raise NothingDone(type(error).__name__) from error
        assert kept is not None, "nobody else sees the row before it is committed"
        self._ended = True
        try:
            await self._transaction.__aexit__(None, None, None)
        except psycopg.Error as error:
            state = error.sqlstate
            if state and state.startswith(_ROLLED_BACK) and state != _COMPLETION_UNKNOWN:
                raise NothingDone(type(error).__name__) from error
            raise NotStored(type(error).__name__) from error
        if not self._taken and not result.refused:
            warn_of_unused_connection()

    async def release(self) -> None:
        await self.roll_back_unless_ended()

    async def give_up(self) -> bool:
        # Idle: the work has sent a COMMIT by SQL of its own. The row went with it, and is unknown
        # when its lease is over.
        ours = self._connection.info.transaction_status is not TransactionStatus.IDLE
        await self.roll_back_unless_ended()
        return ours

    async def roll_back_unless_ended(self) -> None:
        if self._ended:
            return
        self._ended = True
        reason = psycopg.Rollback(self._begun)
        await self._transaction.__aexit__(psycopg.Rollback, reason, None)


class _Separate:
    """A claim that is committed; implements `Held`."""

    def __init__(self, keys: PostgresKeys, values: dict[str, Any]) -> None:
        self._values = values
        self._ended = False
        self._keys = keys

    @property
    def connection(self) -> Connection:
        raise RuntimeError("a separate store shares no transaction; see shares_transaction")

    async def complete(self, result: KeptResult) -> None:
        try:
            kept = await self._keys._change(_COMPLETE, {**self._values, **columns_of(result)})
        except (psycopg.Error, OSError) as error:
            raise NotStored(type(error).__name__) from error
        if not kept:
            raise NotStored("the claim was taken over or resolved")
        self._ended = True

    async def release(self) -> None:
        await self._end(_RELEASE)

    async def give_up(self) -> bool:
        await self._end(_RELEASE if self._keys._repeatable else _GIVE_UP)
        return False

    async def _end(self, statement: LiteralString) -> None:
        if self._ended:
            return
        # Where this fails the row stays in progress, and is unknown when its lease is over.
        with suppress(psycopg.Error, OSError):
            await self._keys._change(statement, self._values)
            self._ended = True


async def _one(
    connection: Connection, statement: LiteralString, values: dict[str, Any] | list[Any]
) -> tuple[Any, ...] | None:
    """Return the first row; the caller's own row factory is none of ours."""
    async with connection.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(statement, values)
        return await cursor.fetchone()


async def _read(connection: Connection, values: dict[str, Any]) -> Row | None:
    found = await _one(connection, _READ, values)
    if found is None:
        return None
    digest, state, token, lease_over, status, headers, body, refused, created, expires = found
    result = None
    if state == State.DONE:
        pairs = tuple((str(name), str(value)) for name, value in headers)
        result = KeptResult(status, pairs, bytes(body), refused)
    return Row(bytes(digest), State(state), token, lease_over, result, created, expires)
