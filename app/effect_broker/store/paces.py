"""The pace of targets that contracts limit: locked last, read and kept in the grant's transaction.

One small row for each contract and target (`limited_targets`) is the lock under which all grants of
that contract are made, one after the other; all of its versions and all tenants share it. Nothing
of this runs for a contract without limits, nor for any change but a grant.

A grant that leaves room wakes some who wait for a turn. Their rows are locked behind the target's,
against the order of locks, and so only where nobody else holds them.

The open attempts are counted by their own rows, so that a lost worker's place is free when its
attempt's deadline has passed, whoever does or does not clean up.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from effect_broker.protocol.ports import WAKE_SECONDS, KeepPace
from effect_broker.store.pool import Connection
from effect_contracts.pacing import Pace

# The function reads after it has locked, and the clock last.
_LOCK_PACE: Final = """
SELECT now, open_attempts, open_seconds, ended_seconds, hold_seconds, granted_at, rate_at,
       turns_at, again_at, others, waiting
FROM effect_broker.lock_target(%(contract_name)s, %(target_identity)s, %(tenant_id)s)
"""

KEEP_PACE: Final = """
SELECT effect_broker.keep_target(
    %(contract_name)s, %(target_identity)s, %(tenant_id)s, %(effect_id)s, %(hold_seconds)s,
    %(granted_at)s, %(rate_at)s, %(turns_at)s, %(again_at)s, %(attempt_id)s, %(now)s,
    %(open_until)s, %(wakes)s, %(wake_seconds)s)
"""


async def lock_pace(
    connection: Connection, tenant_id: UUID, contract_name: str, target_identity: str
) -> tuple[Pace, datetime]:
    """Lock a limited target until the end of the transaction; return its pace and the clock."""
    target = {
        "tenant_id": tenant_id,
        "contract_name": contract_name,
        "target_identity": target_identity,
    }
    row = await (await connection.execute(_LOCK_PACE, target)).fetchone()
    assert row is not None, "lock_target returns one row"
    now: datetime = row["now"]
    return Pace(**{name: row[name] for name in row if name != "now"}), now


def pace_parameters(write: KeepPace, contract_name: str) -> dict[str, Any]:
    """Return the parameters of `KEEP_PACE` that are not those of every statement."""
    return {
        **asdict(write.pace),
        "contract_name": contract_name,
        "target_identity": write.target_identity,
        "attempt_id": write.attempt_id,
        "open_until": write.open_until,
        "wakes": write.wakes,
        "wake_seconds": WAKE_SECONDS,
    }
