"""The database roles, and the settings of their sessions: this module owns both lists.

The roles exist once per server and may log in, but have no password until the operator sets one,
so that only trusted local connections (the embedded server, tests) get in without a decision of
his. An operator may also make logins of his own and grant them a role; `create_login` does.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import psycopg
from psycopg import sql


class DatabaseRole(StrEnum):
    """Who a session acts as. Superuser is for `migrate` alone."""

    OWNER = "effect_broker_owner"  # owns the schema; cannot log in
    API = "effect_broker_api"  # submits, reads, resolves; one tenant per transaction
    WORKER = "effect_broker_worker"  # dispatches; serves every tenant
    PRUNE = "effect_broker_prune"  # removes receipts and events, erases payloads
    ADMIN = "effect_broker_admin"  # tenants, keys, contracts, holds; sees no effect


LOGIN_ROLES: Final = tuple(role for role in DatabaseRole if role is not DatabaseRole.OWNER)

HEARTBEAT_TTL_SECONDS: Final = 3.0

# Shares of the heartbeat's TTL. A process that stops in the middle of a transaction has lost its
# locks before its successor comes, and a statement gives up waiting for a lock before it is cut
# itself, so that the reason of a failure is the lock and not the time.
_LOCK_SHARE: Final = 0.5
_IDLE_SHARE: Final = 0.66
_STATEMENT_SHARE: Final = 0.83


def session_settings(ttl_seconds: float = HEARTBEAT_TTL_SECONDS) -> dict[str, str]:
    """Return the settings of every session of the broker, for a heartbeat TTL in seconds.

    The engine's own sessions have none of these timeouts: it does not retry a cancelled statement.
    That is why the worker's role carries no defaults; the API's role does (see `migrate`).
    """
    milliseconds = ttl_seconds * 1000
    return {
        "lock_timeout": f"{milliseconds * _LOCK_SHARE:.0f}ms",
        "idle_in_transaction_session_timeout": f"{milliseconds * _IDLE_SHARE:.0f}ms",
        "statement_timeout": f"{milliseconds * _STATEMENT_SHARE:.0f}ms",
        # An acknowledged intent or attempt is on the disk, whatever the server's default is.
        "synchronous_commit": "on",
        "timezone": "UTC",
    }


def session_options(
    role: DatabaseRole | None = None, ttl_seconds: float = HEARTBEAT_TTL_SECONDS
) -> str:
    """Return libpq's `options` for a session, which acts as `role` whoever has logged in."""
    settings = session_settings(ttl_seconds)
    if role is not None:
        settings["role"] = role.value
    return " ".join(f"-c {name}={value}" for name, value in settings.items())


def create_login(url: str, name: str, role: DatabaseRole, password: str | None = None) -> None:
    """Make a login that acts as `role`, or set its password if it exists; `url` may make roles.

    The password reaches the server as a SCRAM verifier only, so that no log can show it.

    Raises:
        psycopg.Error: the login may not make roles, or the server is not reachable.
    """
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [name]).fetchone()
        identifier = sql.Identifier(name)
        if found is None:
            connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(identifier))
        if name != role.value:
            member = sql.Identifier(role.value)
            connection.execute(sql.SQL("GRANT {} TO {}").format(member, identifier))
        if password is not None:
            verifier = connection.pgconn.encrypt_password(
                password.encode(), name.encode(), b"scram-sha-256"
            ).decode()
            connection.execute(
                sql.SQL("ALTER ROLE {} PASSWORD {}").format(identifier, sql.Literal(verifier))
            )
