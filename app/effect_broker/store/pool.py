"""Connections: one pool per process, all of its sessions alike.

Sessions are in autocommit mode, since the store writes BEGIN and COMMIT itself, and prepare each
statement at its first use, since all of them are constants. Prepared statements, session settings
and pipelines need a session of one's own: a pooler in transaction mode cannot stand between.
"""

from __future__ import annotations

import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from psycopg import AsyncConnection, OperationalError
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool

from effect_broker.store.roles import HEARTBEAT_TTL_SECONDS, DatabaseRole, session_options

Connection: TypeAlias = AsyncConnection[DictRow]
Pool: TypeAlias = AsyncConnectionPool[Connection]

# How long a caller waits for a connection before the store counts as unavailable. Longer than a
# restart of a healthy server would only pile up requests.
POOL_WAIT_SECONDS = 5.0
CONNECT_SECONDS = 5


def session_conninfo(
    url: str, role: DatabaseRole | None, *, application_name: str, ttl_seconds: float
) -> str:
    """Return the URL's parameters with the broker's session options added to its own."""
    given: dict[str, Any] = conninfo_to_dict(url)
    options = f"{given.get('options') or ''} {session_options(role, ttl_seconds)}".strip()
    merged = {
        "connect_timeout": str(CONNECT_SECONDS),
        # A dead peer must not hold a caller for the hours that TCP would.
        "keepalives_idle": "5",
        "keepalives_interval": "2",
        "keepalives_count": "3",
        "tcp_user_timeout": "10000",
        **given,
        "options": options,
        "application_name": application_name,
    }
    return make_conninfo(**merged)


def make_pool(
    url: str,
    role: DatabaseRole | None,
    *,
    application_name: str,
    size_max: int = 10,
    size_min: int = 1,
    ttl_seconds: float = HEARTBEAT_TTL_SECONDS,
) -> Pool:
    """Return a closed pool; `async with` it, or `await pool.open()`.

    `role` is taken by SET ROLE, whoever the URL logs in as; None keeps the login.
    """
    return AsyncConnectionPool(
        conninfo=session_conninfo(
            url, role, application_name=application_name, ttl_seconds=ttl_seconds
        ),
        connection_class=AsyncConnection[DictRow],
        kwargs={"autocommit": True, "row_factory": dict_row, "prepare_threshold": 0},
        min_size=min(size_min, size_max),
        max_size=size_max,
        timeout=POOL_WAIT_SECONDS,
        name=application_name,
        open=False,
    )


@asynccontextmanager
async def session(pool: Pool) -> AsyncIterator[Connection]:
    """Give a session of the pool that has not ended while it was idle.

    Without this look, every pooled session that a restart has ended would cost somebody a failure.
    The pool's own check waits longer and longer after each one that it finds.

    Raises:
        psycopg_pool.PoolTimeout: the server gives no session in time.
    """
    connection = await pool.getconn()
    while not await _lives(connection):
        await connection.close()
        await pool.putconn(connection)  # which makes another one
        connection = await pool.getconn()
    try:
        async with connection:
            yield connection
    finally:
        await pool.putconn(connection)


async def _lives(connection: Connection) -> bool:
    """Whether a session that was idle goes on.

    An idle session has nothing to say. Bytes that wait are the server's goodbye, the end of the
    stream, or a notice; only then is a round trip spent to find out.
    """
    if not _has_something_to_read(connection.fileno()):
        return True
    try:
        await AsyncConnectionPool.check_connection(connection)
    except OperationalError:
        return False
    return True


def _has_something_to_read(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
