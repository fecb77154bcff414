"""Connections: one pool per process, all of its sessions alike.

Sessions are in autocommit mode, since the store writes BEGIN and COMMIT itself, and prepare each
statement at its first use, since all of them are constants. Prepared statements, session settings
and pipelines need a session of one's own: a pooler in transaction mode cannot stand between.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from psycopg import AsyncConnection
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
        session_conninfo(url, role, application_name=application_name, ttl_seconds=ttl_seconds),
        connection_class=AsyncConnection[DictRow],
        kwargs={"autocommit": True, "row_factory": dict_row, "prepare_threshold": 0},
        min_size=min(size_min, size_max),
        max_size=size_max,
        timeout=POOL_WAIT_SECONDS,
        name=application_name,
        open=False,
    )
