"""The connections of callers: which may be joined, and how a statement is run on each.

Connections of psycopg and of SQLAlchemy over psycopg are taken, synchronous and asynchronous. What
is joined is a transaction that is open, is not aborted, and ends by its owner's hand. One code
serves all: on a synchronous connection a coroutine of this module never waits for a loop.

An error of the server ends the caller's transaction, as after any other statement of theirs. Its
text may hold values of rows, so only its SQLSTATE goes further.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Final, Protocol, TypeAlias

import psycopg
import sqlalchemy
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

Parameters: TypeAlias = Mapping[str, object]

# The lock did not come, two waited for each other, or a snapshot is older than what it would judge:
# the whole transaction has to run again.
OVERTAKEN: Final = {
    "40001": "serialization_failure",
    "40P01": "deadlock_detected",
    "55P03": "lock_not_available",
}

# To release or roll back to a savepoint: there is no transaction, or none that has it.
_SAVEPOINT_LOST: Final = frozenset({"25P01", "3B001"})

# What has ended the transaction and may be gone the next time: a connection that was lost, a
# server that is short of something or was told to stop, a timeout. By class, or whole.
_PASSING: Final = ("08", "25P03", "25P04", "40", "53", "55", "57", "58")

# Asked of the catalogue first: to call what is not there would end the caller's transaction.
_GRANTED: Final = """
SELECT pg_catalog.has_schema_privilege(n.oid, 'USAGE')
       AND pg_catalog.has_function_privilege(p.oid, 'EXECUTE')
FROM pg_catalog.pg_namespace AS n JOIN pg_catalog.pg_proc AS p ON p.pronamespace = n.oid
WHERE n.nspname = 'effect_broker' AND p.proname = 'join_effect'
"""


class JoinRefused(Exception):
    """This transaction cannot carry an effect; nothing was written.

    Attributes:
        code: stable.
        detail: what the code is about, such as the class of a contract.
    """

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.detail = detail


class Overtaken(Exception):
    """Another transaction was faster, or this one is over: run it again. `code` is stable."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class SavepointLost(Exception):
    """The transaction that a savepoint was in has ended: what stands of it was its own statements'.

    Attributes:
        cause: what ended the block, where an exception of its own did.
    """

    def __init__(self, cause: Exception | None) -> None:
        super().__init__()
        self.cause = cause


class JoinBroken(Exception):
    """The database refuses what is asked here, and would again. `sqlstate` says how."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


class Link(Protocol):
    """An open connection of a caller."""

    needs_loop: bool

    async def row(self, query: str, parameters: Parameters | None = None) -> Any:
        """Return the first row as a tuple, None without one.

        Raises:
            JoinRefused, Overtaken, JoinBroken.
        """

    async def driver(self) -> Any:
        """Return psycopg's connection below it; SQLAlchemy's begins its transaction now.

        Raises:
            JoinRefused, Overtaken.
        """

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        """Give a context whose writes are taken back where it is left by an exception.

        Its connection permits neither commit() nor rollback() inside; see `kept` for the rest.
        """


def link_of(connection: object) -> Link:
    """Return a caller's connection as this package uses it.

    Raises:
        JoinRefused: it is none of psycopg, nor one of SQLAlchemy.
    """
    if isinstance(connection, scoped_session | async_scoped_session):
        connection = connection()
    match connection:
        case psycopg.Connection():
            return _Psycopg(connection)
        case psycopg.AsyncConnection():
            return _AsyncPsycopg(connection)
        case Session() | sqlalchemy.Connection():
            return _Alchemy(connection)
        case AsyncSession() | AsyncConnection():
            return _AsyncAlchemy(connection)
        case _:
            raise JoinRefused("unknown_connection")


async def check_open(link: Link) -> None:
    """See that the transaction may be joined.

    Raises:
        JoinRefused: it is aborted, each statement is a transaction of its own, or there is no
            broker for this role.
        Overtaken: the connection is gone.
    """
    driver = await link.driver()
    if not isinstance(driver, psycopg.Connection | psycopg.AsyncConnection):
        raise JoinRefused("unknown_connection")
    status = driver.info.transaction_status
    if status is TransactionStatus.UNKNOWN:
        raise Overtaken("connection_lost")
    if status is TransactionStatus.INERROR:
        raise JoinRefused("transaction_aborted")
    # A transaction that was begun explicitly is one, also on such a connection.
    if driver.autocommit and status is not TransactionStatus.INTRANS:
        raise JoinRefused("autocommit")
    granted = await link.row(_GRANTED)
    if granted is None:
        raise JoinRefused("no_broker_here")
    if not granted[0]:
        raise JoinRefused("not_a_caller")


@asynccontextmanager
async def kept(link: Link) -> AsyncIterator[None]:
    """Give the savepoint of a link, and see that it is still there at the end.

    A statement of the block, such as a COMMIT that was written out, may end the transaction, and
    another one may have begun: then neither can the savepoint be released nor its writes be taken
    back. psycopg says so of a release only, and is silent where it cannot roll back to it.

    Raises:
        SavepointLost. And what the block raises.
    """
    driver = await link.driver()
    raised: Exception | None = None
    try:
        async with link.savepoint():
            try:
                yield
            except Exception as error:
                raised = error
                raise
    except Exception as error:
        status = driver.info.transaction_status
        gone = status is TransactionStatus.INERROR and (raised is not None or _lost(error))
        if status is not TransactionStatus.IDLE and not gone:
            raise
    else:
        return
    raise SavepointLost(raised)


def _lost(error: BaseException | None) -> bool:
    """Whether the server has said that there is no transaction, or no such savepoint in it."""
    while error is not None:
        if isinstance(error, psycopg.Error) and error.sqlstate in _SAVEPOINT_LOST:
            return True
        error = error.__cause__ or error.__context__
    return False


class _Psycopg:
    needs_loop = False

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    async def row(self, query: str, parameters: Parameters | None = None) -> Any:
        with _errors(), self._connection.cursor(row_factory=tuple_row) as cursor:
            # Not prepared: a pooler may give the next statement another session.
            return cursor.execute(query.encode(), parameters, prepare=False).fetchone()

    async def driver(self) -> Any:
        return self._connection

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        with self._connection.transaction():
            yield


class _AsyncPsycopg:
    needs_loop = True

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def row(self, query: str, parameters: Parameters | None = None) -> Any:
        with _errors():
            async with self._connection.cursor(row_factory=tuple_row) as cursor:
                await cursor.execute(query.encode(), parameters, prepare=False)
                return await cursor.fetchone()

    async def driver(self) -> Any:
        return self._connection

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        async with self._connection.transaction():
            yield


class _Alchemy:
    needs_loop = False

    def __init__(self, source: Session | sqlalchemy.Connection) -> None:
        self._source = source

    def _connection(self) -> sqlalchemy.Connection:
        source = self._source
        return source.connection() if isinstance(source, Session) else source

    async def row(self, query: str, parameters: Parameters | None = None) -> Any:
        with _errors():
            found = self._connection().exec_driver_sql(query, dict(parameters or {}))
            return found.fetchone()

    async def driver(self) -> Any:
        with _errors():
            connection = self._connection()
            if not connection.in_transaction():
                connection.begin()
            return connection.connection.driver_connection

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        # SQLAlchemy lets a body end the whole transaction, and tells nobody; psycopg does not. Its
        # savepoint is the outer one, which a commit() of SQLAlchemy does not release on its way.
        with (await self.driver()).transaction(), self._source.begin_nested():
            yield


class _AsyncAlchemy:
    needs_loop = True

    def __init__(self, source: AsyncSession | AsyncConnection) -> None:
        self._source = source

    async def _connection(self) -> AsyncConnection:
        source = self._source
        return await source.connection() if isinstance(source, AsyncSession) else source

    async def row(self, query: str, parameters: Parameters | None = None) -> Any:
        with _errors():
            connection = await self._connection()
            return (await connection.exec_driver_sql(query, dict(parameters or {}))).fetchone()

    async def driver(self) -> Any:
        with _errors():
            connection = await self._connection()
            if not connection.in_transaction():
                await connection.begin()
            return (await connection.get_raw_connection()).driver_connection

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        async with (await self.driver()).transaction(), self._source.begin_nested():
            yield


@contextmanager
def _errors() -> Iterator[None]:
    """Turn what a statement on the caller's connection raises into the words of this module."""
    cause: BaseException | None
    try:
        yield
        return
    except psycopg.Error as error:
        cause = error
    except DBAPIError as error:
        cause = error.orig
    except SQLAlchemyError:
        # A session that has met an error before refuses everything until it is rolled back.
        cause = None
    state = cause.sqlstate if isinstance(cause, psycopg.Error) else None
    if cause is None or state == "25P02":
        raise JoinRefused("transaction_aborted")
    if state is None:
        raise Overtaken("connection_lost")
    if not state.startswith(_PASSING):
        raise JoinBroken(state)
    raise Overtaken(OVERTAKEN.get(state, f"sqlstate_{state.lower()}"))
