"""A database for one proof, made on a server and dropped afterwards."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from effect_broker.store.errors import store_errors


@contextmanager
def scratch_database(server_url: str) -> Iterator[str]:
    """Give the URL of a new, empty database; whoever still uses it at the end is cut off.

    Raises:
        StoreError: the login may not create databases, or the server is not reachable.
    """
    name = f"effect_broker_proof_{secrets.token_hex(4)}"
    identifier = sql.Identifier(name)
    with store_errors(), psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(identifier))
    try:
        yield urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))
    finally:
        with store_errors(), psycopg.connect(server_url, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(identifier))
