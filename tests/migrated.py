"""The template database that has been migrated: what most tests' `database` is a copy of."""

from __future__ import annotations

import hashlib
from pathlib import Path

import psycopg

from effect_broker.durable import migrate_dbos
from effect_broker.store import migrate as migration
from postgres import DatabaseTemplate


def _digest() -> str:
    """Changes with every file that a migration runs, and with the program that runs them."""
    package = Path(migration.__file__).parent
    files = [Path(migration.__file__), package / "roles.py"]
    files += sorted((package / "migrations").rglob("*.sql"))
    files += sorted((package / "migrations" / "versions").glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _build(url: str) -> None:
    migration.migrate(url, migrate_dbos=migrate_dbos)
    with psycopg.connect(url, autocommit=True) as connection:
        # A clone of the template is no restore.
        connection.execute("UPDATE effect_broker.database_identity SET database_oid = NULL")


MIGRATED = DatabaseTemplate(f"migrated-{_digest()}", _build)
