"""What an operator says of a restore or a failover of the database, and the end of the halt.

A worker that meets another server, timeline, database or table than those that are remembered
halts dispatch for every class but `idempotent`, since attempts may be missing from the ledger. Here
the lost interval is recorded, the new identity is taken over, and running bounds start again in
full from now.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from effect_broker.store.errors import store_errors
from effect_broker.store.pool import Pool, session

_RECORD: Final = """
INSERT INTO effect_broker.database_restores (lost_from, lost_to, reason, actor)
VALUES (%(lost_from)s, %(lost_to)s, %(reason)s, %(actor)s)
"""
_RESUME: Final = """
UPDATE effect_broker.database_identity AS d
SET system_identifier = t.system_identifier, timeline = t.timeline,
    database_oid = t.database_oid, relation_oid = t.relation_oid,
    recorded_at = clock_timestamp(), halted_at = NULL, bounds_restart_at = clock_timestamp()
FROM effect_broker.this_database AS t
WHERE d.singleton AND d.halted_at IS NOT NULL
RETURNING d.bounds_restart_at
"""

_HALT: Final = """
UPDATE effect_broker.database_identity SET halted_at = clock_timestamp()
WHERE singleton AND halted_at IS NULL
"""


async def resume(
    pool: Pool, *, lost_from: datetime, lost_to: datetime, reason: str, actor: str
) -> bool:
    """Record the lost interval and end the halt; False where dispatch was not halted.

    Raises:
        StoreError.
    """
    told = {"lost_from": lost_from, "lost_to": lost_to, "reason": reason, "actor": actor}
    with store_errors() as progress:
        async with session(pool) as connection, connection.transaction():
            ended = await (await connection.execute(_RESUME)).fetchone()
            if ended is not None:
                await connection.execute(_RECORD, told)
            progress.committing = True
    return ended is not None


async def halt(pool: Pool) -> bool:
    """Halt dispatch for every class but `idempotent`; False where it was halted already.

    For what no server can notice: data files that were put back from a snapshot are the same
    server, timeline, database and tables.

    Raises:
        StoreError.
    """
    with store_errors() as progress:
        async with session(pool) as connection, connection.transaction():
            halted = (await connection.execute(_HALT)).rowcount
            progress.committing = True
    return bool(halted)
