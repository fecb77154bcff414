"""Keys in a SQLite file, for small servers: one writer at a time, and no other program needed.

The rules are those of `postgres_keys`. Atomic means that the business tables are in the same file:
the claim holds the file's write lock (BEGIN IMMEDIATE) while the work is done, so all work under
keys runs one after the other. Who does not get the lock is told `in_progress` where this process
knows that its key is at work, and else `store_unavailable`: which key another process works on
cannot be seen, and in either case nothing was done for this request.

No call waits inside SQLite, so the event loop is never held up by a lock.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NoReturn
from uuid import UUID

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

SQLITE_DDL: Final = """
CREATE TABLE IF NOT EXISTS idempotency_keys (
    scope          TEXT NOT NULL CHECK (length(scope) <= 255),
    key            TEXT NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    request_digest BLOB NOT NULL CHECK (length(request_digest) = 32),
    state          TEXT NOT NULL CHECK (state IN ('in_progress', 'done', 'unknown')),
    token          TEXT NOT NULL,
    started_at     REAL NOT NULL,
    lease_until    REAL NOT NULL,
    status         INTEGER,
    headers        TEXT,
    body           BLOB,
    refused        INTEGER NOT NULL DEFAULT 0,
    created_at     REAL NOT NULL,
    expires_at     REAL NOT NULL,
    PRIMARY KEY (scope, key),
    CHECK ((state = 'done') = (status IS NOT NULL AND headers IS NOT NULL AND body IS NOT NULL))
);
CREATE INDEX IF NOT EXISTS idempotency_keys_expired
    ON idempotency_keys (expires_at) WHERE state = 'done';
"""

# Seconds since 1970 by the clock of the machine, which a file has for its own.
_NOW: Final = "((julianday('now') - 2440587.5) * 86400.0)"
_INSERT: Final = f"""
INSERT INTO idempotency_keys
    (scope, key, request_digest, state, token, started_at, lease_until, created_at, expires_at)
VALUES (:scope, :key, :digest, 'in_progress', :token, {_NOW}, {_NOW} + :lease, {_NOW},
        {_NOW} + :retention)
ON CONFLICT (scope, key) DO NOTHING
"""  # noqa: S608 - constants of this file alone
_READ: Final = f"""
SELECT request_digest, state, token, lease_until <= {_NOW}, status, headers, body, refused,
       created_at, expires_at
FROM idempotency_keys WHERE scope = :scope AND key = :key
"""  # noqa: S608 - constants of this file alone
_RECLAIM: Final = f"""
UPDATE idempotency_keys
SET state = 'in_progress', token = :token, started_at = {_NOW}, lease_until = {_NOW} + :lease
WHERE scope = :scope AND key = :key AND token = :former AND state <> 'done'
"""  # noqa: S608 - constants of this file alone
_COMPLETE: Final = """
UPDATE idempotency_keys
SET state = 'done', status = :status, headers = :headers, body = :body, refused = :refused
WHERE scope = :scope AND key = :key AND token = :token AND state <> 'done'
"""
_GIVE_UP: Final = """
UPDATE idempotency_keys SET state = 'unknown'
WHERE scope = :scope AND key = :key AND token = :token AND state = 'in_progress'
"""
_RELEASE: Final = """
DELETE FROM idempotency_keys
WHERE scope = :scope AND key = :key AND token = :token AND state <> 'done'
"""
_PURGE: Final = f"""
DELETE FROM idempotency_keys WHERE rowid IN (
    SELECT rowid FROM idempotency_keys
    WHERE state = 'done' AND expires_at < {_NOW} ORDER BY expires_at LIMIT ?)
"""  # noqa: S608 - constants of this file alone
_POLL_SECONDS: Final = 0.01


class _Connection(sqlite3.Connection):
    """The connection that work is given: its transaction is ended by the claim, not by the work."""

    def commit(self) -> NoReturn:
        raise sqlite3.ProgrammingError(_NOT_YOURS)

    def rollback(self) -> NoReturn:
        raise sqlite3.ProgrammingError(_NOT_YOURS)

    def __enter__(self) -> NoReturn:
        raise sqlite3.ProgrammingError(_NOT_YOURS)


_NOT_YOURS: Final = "the claim of the idempotency key ends this transaction; do not commit in it"


class SqliteKeys:
    """Implements `effect_broker.receiving.terms.KeyStore`; the arguments are those of
    `PostgresKeys`, with the path of the file in the place of connections."""

    def __init__(
        self,
        path: str | Path,
        *,
        shares_transaction: bool = True,
        repeatable: bool = False,
        lease_seconds: float = LEASE_SECONDS,
        retention_seconds: float = RETENTION_SECONDS,
        wait_seconds: float = WAIT_SECONDS,
        result_bytes_max: int = RESULT_BYTES_MAX,
    ) -> None:
        check_ways(shares_transaction=shares_transaction, repeatable=repeatable)
        if str(path) == ":memory:":
            raise ValueError("keys in memory are forgotten by a crash; name a file")
        self.atomic = shares_transaction
        self.result_bytes_max = result_bytes_max
        self._path = Path(path)
        self._repeatable = repeatable
        self._times = {"lease": lease_seconds, "retention": retention_seconds}
        self._wait_seconds = wait_seconds
        self._clock = SystemClock()
        self._at_work: set[tuple[str, str]] = set()

    async def create_table(self) -> None:
        """Create file and table where they are missing (`SQLITE_DDL`)."""
        connection = self._opened()
        try:
            # Readers go on while the writer works. It stays a property of the file.
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(SQLITE_DDL)
        finally:
            connection.close()

    @asynccontextmanager
    async def claim(self, request: KeyedRequest) -> AsyncIterator[Claim]:
        """Claim a key; see `KeyStore`."""
        name = (request.scope, request.key)
        if self.atomic and not await self._waited_here(name):
            yield Refusal.IN_PROGRESS
            return
        try:
            told = await self._begun(request)
        except sqlite3.Error as error:
            raise StoreUnavailable(str(error)) from error
        if not isinstance(told, _Claim):
            yield told
            return
        self._at_work.add(name)
        try:
            yield told
        finally:
            self._at_work.discard(name)
            told.close()

    async def _waited_here(self, name: tuple[str, str]) -> bool:
        """Whether this process is not, or no longer, at work on the key."""
        until = self._clock.boot_seconds() + self._wait_seconds
        while name in self._at_work:
            if self._clock.boot_seconds() >= until:
                return False
            await self._clock.sleep(_POLL_SECONDS)
        return True

    async def _begun(self, request: KeyedRequest) -> Claim:
        values = {
            "scope": request.scope,
            "key": request.key,
            "digest": request.digest,
            "token": str(new_id()),
            **self._times,
        }
        until = self._clock.boot_seconds() + self._wait_seconds
        while True:
            connection = await self._locked()
            try:
                told = self._told(connection, request, values)
                if told is None:
                    return _Claim(self, connection, values)
            except BaseException:
                connection.close()
                raise
            connection.close()
            if told is not Refusal.IN_PROGRESS or self._clock.boot_seconds() >= until:
                return told
            await self._clock.sleep(_POLL_SECONDS)

    def _told(
        self, connection: sqlite3.Connection, request: KeyedRequest, values: dict[str, Any]
    ) -> KeptResult | Refusal | None:
        """Return None where the row is ours: committed, or in the transaction that goes on."""
        if connection.execute(_INSERT, values).rowcount != 1:
            row = _read(connection, values)
            assert row is not None, "nobody else writes while the file's lock is held"
            told = judge(row, request, repeatable=self._repeatable)
            if not isinstance(told, Reclaim):
                connection.execute("ROLLBACK")
                return told
            connection.execute(_RECLAIM, {**values, "former": str(row.token)})
        connection.execute("SAVEPOINT effect_receiving" if self.atomic else "COMMIT")
        return None

    async def _locked(self) -> sqlite3.Connection:
        """Return a connection that holds the file's write lock.

        Raises:
            sqlite3.OperationalError: it is taken for longer than `wait_seconds`.
        """
        until = self._clock.boot_seconds() + self._wait_seconds
        connection = self._opened()
        try:
            while True:
                try:
                    connection.execute("BEGIN IMMEDIATE")
                    return connection
                except sqlite3.OperationalError as error:
                    busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                    if not busy or self._clock.boot_seconds() >= until:
                        raise
                await self._clock.sleep(_POLL_SECONDS)
        except BaseException:
            connection.close()
            raise

    def _opened(self) -> sqlite3.Connection:
        # Work may run in a thread of its framework, while the claim waits for it.
        connection = sqlite3.connect(
            self._path,
            timeout=0,
            isolation_level=None,
            check_same_thread=False,
            factory=_Connection,
        )
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    async def look_up(self, scope: str, key: str) -> Standing:
        """Say how a key stands; see `KeyStore`. It waits for the file's lock like a writer, so
        that "not landed" is the truth of that moment."""
        if self.atomic and (scope, key) in self._at_work:
            return Standing(Landed.IN_PROGRESS)
        try:
            connection = await self._locked()
            try:
                return standing_of(_read(connection, {"scope": scope, "key": key}))
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise StoreUnavailable(str(error)) from error

    async def resolve(self, scope: str, key: str, result: KeptResult | None) -> bool:
        """Conclude a key whose outcome is unknown; see `PostgresKeys.resolve`."""
        values: dict[str, Any] = {"scope": scope, "key": key}
        connection = await self._locked()
        try:
            row = _read(connection, values)
            if row is None or standing_of(row).state is not Landed.UNKNOWN:
                return False
            values["token"] = str(row.token)
            if result is None:
                connection.execute(_RELEASE, values)
            else:
                connection.execute(_COMPLETE, {**values, **columns_of(result)})
            connection.execute("COMMIT")
            return True
        finally:
            connection.close()

    async def purge(self, rows_max: int = 1000) -> int:
        """Delete up to `rows_max` results past their retention; see `PostgresKeys.purge`."""
        connection = await self._locked()
        try:
            deleted = connection.execute(_PURGE, [rows_max]).rowcount
            connection.execute("COMMIT")
            return deleted
        finally:
            connection.close()


class _Claim:
    """A claim of either kind; implements `Held`."""

    def __init__(
        self, keys: SqliteKeys, connection: sqlite3.Connection, values: dict[str, Any]
    ) -> None:
        self._atomic = keys.atomic
        self._given_up = _RELEASE if keys._repeatable else _GIVE_UP
        self._connection = connection
        self._values = values
        self._ended = False
        self._taken = False

    @property
    def connection(self) -> sqlite3.Connection:
        if not self._atomic:
            raise RuntimeError("a separate store shares no transaction; see shares_transaction")
        self._taken = True
        return self._connection

    async def complete(self, result: KeptResult) -> None:
        try:
            if self._atomic:
                after = "ROLLBACK TO" if result.refused else "RELEASE"
                # Fails where the work has ended the transaction by SQL of its own.
                self._connection.execute(f"{after} effect_receiving")
            values = {**self._values, **columns_of(result)}
            kept = self._connection.execute(_COMPLETE, values).rowcount
            if self._atomic:
                self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self._atomic and self._connection.in_transaction:
                raise NothingDone(str(error)) from error
            raise NotStored(str(error)) from error
        if kept != 1:
            raise NotStored("the claim was taken over or resolved")
        self._ended = True
        if self._atomic and not self._taken and not result.refused:
            warn_of_unused_connection()

    async def release(self) -> None:
        self._end(_RELEASE)

    async def give_up(self) -> bool:
        undone = self._atomic and self._connection.in_transaction
        self._end(self._given_up)
        return undone

    def close(self) -> None:
        """End the claim if nothing else has."""
        self._end(self._given_up)
        self._connection.close()

    def _end(self, statement: str) -> None:
        if self._ended:
            return
        with suppress(sqlite3.Error):
            if self._atomic:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                else:
                    # The work has committed by SQL of its own, and the row with it.
                    self._connection.execute(_GIVE_UP, self._values)
            else:
                # A busy file leaves the row in progress, and it is unknown when its lease is over.
                self._connection.execute("PRAGMA busy_timeout = 200")
                self._connection.execute(statement, self._values)
            self._ended = True


def _read(connection: sqlite3.Connection, values: dict[str, Any]) -> Row | None:
    cursor = connection.cursor()
    cursor.row_factory = None
    found = cursor.execute(_READ, values).fetchone()
    if found is None:
        return None
    digest, state, token, lease_over, status, headers, body, refused, created, expires = found
    result = None
    if state == State.DONE:
        pairs = tuple((str(name), str(value)) for name, value in json.loads(headers))
        result = KeptResult(status, pairs, bytes(body), bool(refused))
    return Row(
        bytes(digest),
        State(state),
        UUID(token),
        bool(lease_over),
        result,
        datetime.fromtimestamp(created, UTC),
        datetime.fromtimestamp(expires, UTC),
    )
