"""Whether the database is fit to be written to: what `readyz` and `doctor` ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from effect_broker.store.errors import store_errors
from effect_broker.store.pool import Pool, session
from effect_broker.store.runs import live_executors

# Names are looked up in the catalogue, so that the question can be asked of a database that has
# not been migrated, by a role without rights in it.
_STATE: Final = """
SELECT current_setting('transaction_read_only')::boolean OR pg_is_in_recovery() AS read_only,
       EXISTS (SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = 'effect_broker' AND c.relname = 'alembic_version') AS migrated,
       EXISTS (SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = 'dbos' AND c.relname = 'workflow_status') AS engine,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('server_version_num')::integer AS server_version
"""
_VERSION: Final = "SELECT version_num FROM effect_broker.alembic_version"


@dataclass(frozen=True, slots=True)
class DatabaseHealth:
    """What one look at the database has found.

    Attributes:
        read_only: a standby, or a primary that takes no writes.
        schema_version: of the broker's schema; None where it is not migrated.
        engine_present: the engine's schema is there; without it runs wait, submits do not.
        live_workers: workers that beat and take work.
        server_version: as Postgres numbers it (180006).
    """

    read_only: bool
    schema_version: str | None
    engine_present: bool
    live_workers: int
    synchronous_commit: str
    server_version: int


async def database_health(pool: Pool) -> DatabaseHealth:
    """Look at the database through a pool of any role but `effect_broker_prune`.

    Raises:
        StoreUnavailable, StoreBusy: it cannot even be looked at.
    """
    with store_errors():
        async with session(pool) as connection:
            state = await (await connection.execute(_STATE)).fetchone()
            assert state is not None, "a query without FROM returns one row"
            version = None
            live = 0
            if state["migrated"]:
                row = await (await connection.execute(_VERSION)).fetchone()
                version = None if row is None else str(row["version_num"])
                live = await live_executors(connection)
    return DatabaseHealth(
        read_only=state["read_only"],
        schema_version=version,
        engine_present=state["engine"],
        live_workers=live,
        synchronous_commit=state["synchronous_commit"],
        server_version=state["server_version"],
    )
