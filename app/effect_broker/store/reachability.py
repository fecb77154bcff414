"""Whether a database can be used by a role, and if not, a sentence on why and what to do.

A pool only says that it got no connection in time. A person who has mistyped a URL wants to know
which part; this module asks once, before the pool is made, and never repeats a password or the
server's own words, which may hold one.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

from effect_broker.store.pool import session_conninfo
from effect_broker.store.roles import HEARTBEAT_TTL_SECONDS, DatabaseRole

_APPLICATION_NAME: Final = "effect-broker-cli"
_DEFAULT_PORT: Final = "5432"

# Asked of the catalogue, which a role without rights in the schema may read too.
_MIGRATED: Final = """
SELECT EXISTS (SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = 'effect_broker' AND c.relname = 'alembic_version')
"""

# A pooler may be told to let clients with session options in, and to drop the options. This one
# is set by nobody else, so that a default of the role's cannot stand in for it.
_MARK: Final = "effect_broker.session_options"
_MARKED: Final = f"SELECT current_setting('{_MARK}', true)"

_SUPERUSER: Final = "SELECT rolsuper FROM pg_roles WHERE rolname = session_user"

# libpq reports a refused login without an SQLSTATE; what is left is its English text. A server
# that speaks another language gets the last sentence of `_sentence`.
_SIGNS: Final = (
    ("password authentication failed", "it refuses the user name or the password"),
    ("no password supplied", "it wants a password and the URL has none"),
    ("no pg_hba.conf entry", "its pg_hba.conf does not let this user in from this host"),
    ("does not support ssl", "it does not speak TLS; remove sslmode=require from the URL"),
    ("certificate", "its certificate is not accepted"),
    ("too many clients", "it has no connection left; raise max_connections or use fewer pools"),
    ("remaining connection slots", "it has no connection left; raise max_connections"),
    ("starting up", "it is still starting; try again in a moment"),
    ("shutting down", "it is shutting down; try again in a moment"),
    ("connection refused", "nothing listens there; is the server running, and the port right?"),
    ("no such file or directory", "there is no socket there; is the server running?"),
    ("could not translate host name", "the host name is not known"),
    ("resolve host", "the host name is not known"),
    ("name or service not known", "the host name is not known"),
    ("timeout expired", "it did not answer in time; is it the right host, and is it up?"),
    ("no route to host", "there is no route to the host"),
    ("network is unreachable", "there is no route to the host"),
)


def connection_trouble(
    url: str,
    role: DatabaseRole | None,
    *,
    variable: str,
    migrated: bool = True,
    keeps_settings: bool = False,
    superuser: bool = True,
) -> str | None:
    """Return a sentence on why `role` cannot use the database at `url`, None if it can.

    Args:
        role: taken by SET ROLE after the login; None asks for the login only.
        variable: the name of the setting that holds the URL, for the sentence.
        migrated: the broker's schema has to be there.
        keeps_settings: the settings that we bring have to be those of the session. Without its
            timeouts a process that stops could block its successor.
        superuser: the login may be one. Row-level security and the guards bind everybody else.
    """
    try:
        where = _place(conninfo_to_dict(url))
    except psycopg.Error:
        return (
            f"{variable} is not a URL that can be read; it looks like "
            "postgresql://user:password@host:5432/database, and special characters of a password "
            "are percent-encoded"
        )
    conninfo = session_conninfo(
        url, role, application_name=_APPLICATION_NAME, ttl_seconds=HEARTBEAT_TTL_SECONDS
    )
    parameters = conninfo_to_dict(conninfo)
    conninfo = make_conninfo(conninfo, options=f"{parameters['options']} -c {_MARK}=kept")
    try:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            # First, since a session without its settings may not act as the role either.
            if keeps_settings and not _keeps_settings(connection):
                return (
                    f"{variable}: the pooler at {where} drops session options, and a pool in "
                    "transaction mode keeps no session at all; connect to PostgreSQL itself"
                )
            if not superuser and _is_superuser(connection):
                instead = "a login of its own" if role is None else role.value
                return (
                    f"{variable}: the login at {where} is a superuser, whom no rule of the "
                    f"database binds; in production use {instead}"
                )
            found = not migrated or _has_schema(connection)
    except psycopg.Error as error:
        return f"{variable}: {_sentence(error, where, role)}"
    if not found:
        return f"{variable}: the database at {where} is not migrated; run `effect-broker migrate`"
    return None


def _keeps_settings(connection: psycopg.Connection[TupleRow]) -> bool:
    row = connection.execute(_MARKED).fetchone()
    return row is not None and row[0] == "kept"


def _is_superuser(connection: psycopg.Connection[TupleRow]) -> bool:
    # The login, and not the role that it has taken.
    row = connection.execute(_SUPERUSER).fetchone()
    return row is not None and bool(row[0])


def _has_schema(connection: psycopg.Connection[TupleRow]) -> bool:
    row = connection.execute(_MIGRATED).fetchone()
    return row is not None and bool(row[0])


def _place(parameters: dict[str, Any]) -> str:
    """Host, port and database, printable; a password that was misread as a host is no secret
    that could be kept, so only well-formed hosts are shown."""
    host = str(parameters.get("host") or parameters.get("hostaddr") or "the local socket")
    port = str(parameters.get("port") or _DEFAULT_PORT)
    plain = all(c.isalnum() or c in ".-_/:,~+" for c in host) and port.isdigit()
    return f"{host}, port {port}" if plain else "the given host"


def _sentence(error: psycopg.Error, where: str, role: DatabaseRole | None) -> str:
    said = str(error).lower()
    if "unsupported startup parameter" in said:
        return (
            f"the pooler at {where} refuses session options, so it runs in transaction mode; "
            "connect to PostgreSQL itself, or to a pool in session mode"
        )
    if "role" in said and ("does not exist" in said or 'parameter "role"' in said):
        named = role is not None and role.value in said
        if named:
            return f"the server at {where} is not migrated; run `effect-broker migrate`"
        return f"the server at {where} knows no user of this name"
    if role is not None and ("permission denied to set role" in said):
        return (
            f"the login at {where} may not act as {role.value}; use that role's own login, or "
            f"GRANT {role.value} to it"
        )
    if "database" in said and "does not exist" in said:
        return f"the server at {where} has no database of this name; create it, or correct the URL"
    for sign, meaning in _SIGNS:
        if sign in said:
            return f"the server at {where} cannot be used: {meaning}"
    return (
        f"the server at {where} refused the connection ({type(error).__name__}); its log says why"
    )
