"""Placing, lifting and listing holds (`effect_broker.holding`), over a pool of the API or admin.

Placing is two transactions. The first commits the hold: every change that reads its facts later
sees it. The second waits until the changes that may have read them earlier have ended, by taking
alone the lock that each of them shares; after that no attempt is granted past the hold.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final
from uuid import UUID

from effect_broker.holding import (
    HoldKind,
    HoldMissing,
    HoldRecord,
    HoldScope,
    Placed,
    SubjectUnknown,
)
from effect_broker.protocol.ports import StoreBusy
from effect_broker.store import statements as sql
from effect_broker.store.errors import store_errors
from effect_broker.store.pool import Connection, Pool, session

# Behind a waiter for the lock all changes of the tenant queue up, so it gives way soon and comes
# again. A transaction whose process stands still is ended by the server after some seconds
# (`roles.session_settings`); the tries last longer than that.
_TRIES: Final = 40
_LOCK_TIMEOUT: Final = "SET LOCAL lock_timeout = '200ms'"

_HOLD: Final = """
SELECT h.hold_id, h.kind, h.tenant_id, t.name AS tenant, h.tool, h.contract_name,
       h.contract_version, h.reason, h.placed_by, h.placed_at, h.lifted_by, h.lifted_at,
       h.lift_reason
FROM effect_broker.holds AS h LEFT JOIN effect_broker.tenants AS t USING (tenant_id)
"""
_PLACE: Final = """
INSERT INTO effect_broker.holds (
    hold_id, kind, tenant_id, tool, contract_name, contract_version, reason, placed_by)
VALUES (%(hold_id)s, 'paused', %(tenant_id)s, %(tool)s, %(contract_name)s, %(contract_version)s,
        %(reason)s, %(actor)s)
ON CONFLICT (kind, tenant_id, tool, contract_name, contract_version) WHERE lifted_at IS NULL
DO NOTHING
RETURNING hold_id
"""
_STANDING: Final = f"""{_HOLD}
WHERE h.kind = 'paused' AND h.lifted_at IS NULL
  AND (h.tenant_id, h.tool, h.contract_name, h.contract_version) IS NOT DISTINCT FROM
      (%(tenant_id)s::uuid, %(tool)s::text, %(contract_name)s::text, %(contract_version)s::text)
"""
_LIFT: Final = """
UPDATE effect_broker.holds
SET lifted_by = %(actor)s, lifted_at = clock_timestamp(), lift_reason = %(reason)s
WHERE hold_id = %(hold_id)s AND lifted_at IS NULL
  AND (%(every_tenant)s OR tenant_id = %(tenant_id)s)
"""
_ONE: Final = f"""{_HOLD}
WHERE h.hold_id = %(hold_id)s
  AND (%(every_tenant)s OR h.tenant_id IS NULL OR h.tenant_id = %(tenant_id)s)
"""
_LIST: Final = f"""{_HOLD}
WHERE (%(every_tenant)s OR h.tenant_id IS NULL OR h.tenant_id = %(tenant_id)s)
  AND (%(lifted)s OR h.lifted_at IS NULL)
ORDER BY h.placed_at DESC, h.hold_id DESC LIMIT %(limit)s
"""
_KNOWN_TOOL: Final = "SELECT 1 FROM effect_broker.contracts WHERE tool = %(tool)s LIMIT 1"
_KNOWN_CONTRACT: Final = """
SELECT 1 FROM effect_broker.contracts
WHERE name = %(contract_name)s AND version = %(contract_version)s
"""
_AWAIT: Final = "SELECT effect_broker.await_holds(%(tenant_id)s)"


class Holds:
    """The holds that one tenant places and sees, or (with None) those of all, for the admin."""

    def __init__(self, pool: Pool, tenant_id: UUID | None) -> None:
        self._pool = pool
        self._tenant_id = tenant_id

    async def place(self, hold_id: UUID, scope: HoldScope, reason: str, actor: str) -> Placed:
        """Stop the dispatches of a scope; the same again is the hold that stands.

        Raises:
            SubjectUnknown, StoreError. After CommitUnknown the same call may be made again.
        """
        assert self._tenant_id in {None, scope.tenant_id}, "a tenant places holds of its own"
        name, version = scope.contract or (None, None)
        subject: dict[str, Any] = {
            "tenant_id": scope.tenant_id,
            "tool": scope.tool,
            "contract_name": name,
            "contract_version": version,
        }
        told = {**subject, "hold_id": hold_id, "reason": reason, "actor": actor}
        with store_errors() as progress:
            async with session(self._pool) as connection, connection.transaction():
                await self._name_tenant(connection)
                await _check_subject(connection, scope, subject)
                made = await (await connection.execute(_PLACE, told)).fetchone()
                rows = await (await connection.execute(_STANDING, subject)).fetchall()
                progress.committing = True
        if not rows:
            raise StoreBusy("the hold was lifted while it was placed")
        return Placed(_record(rows[0]), made is not None, await self._effective(scope))

    async def lift(self, hold_id: UUID, reason: str, actor: str) -> tuple[HoldRecord, bool]:
        """End a hold; return it, and whether it was this call that ended it.

        Raises:
            HoldMissing, StoreError.
        """
        told = {**self._seen(), "hold_id": hold_id, "reason": reason, "actor": actor}
        with store_errors() as progress:
            async with session(self._pool) as connection, connection.transaction():
                await self._name_tenant(connection)
                lifted = (await connection.execute(_LIFT, told)).rowcount
                rows = await (await connection.execute(_ONE, told)).fetchall()
                progress.committing = True
        if not rows:
            raise HoldMissing
        record = _record(rows[0])
        if record.lifted_at is None:
            raise HoldMissing  # one of all tenants: seen here, and lifted by the admin alone
        return record, bool(lifted)

    async def listing(self, *, lifted: bool, limit: int) -> tuple[HoldRecord, ...]:
        """Return the newest holds: those in force, or with `lifted` those of the past too.

        Raises:
            StoreError.
        """
        told = {**self._seen(), "lifted": lifted, "limit": limit}
        with store_errors():
            async with session(self._pool) as connection, connection.transaction():
                await self._name_tenant(connection)
                rows = await (await connection.execute(_LIST, told)).fetchall()
        return tuple(_record(row) for row in rows)

    def _seen(self) -> dict[str, object]:
        return {"every_tenant": self._tenant_id is None, "tenant_id": self._tenant_id}

    async def _name_tenant(self, connection: Connection) -> None:
        if self._tenant_id is not None:
            await connection.execute(sql.SET_TENANT, {"tenant_id": self._tenant_id})

    async def _effective(self, scope: HoldScope) -> bool:
        for _ in range(_TRIES):
            with suppress(StoreBusy), store_errors():
                async with session(self._pool) as connection, connection.transaction():
                    await connection.execute(_LOCK_TIMEOUT)
                    await connection.execute(_AWAIT, {"tenant_id": scope.tenant_id})
                return True
        return False


async def _check_subject(connection: Connection, scope: HoldScope, subject: dict[str, Any]) -> None:
    if scope.tool is not None:
        query = _KNOWN_TOOL
    elif scope.contract is not None:
        query = _KNOWN_CONTRACT
    else:
        return
    if await (await connection.execute(query, subject)).fetchone() is None:
        raise SubjectUnknown


def _record(row: dict[str, Any]) -> HoldRecord:
    contract = None
    if row["contract_name"] is not None:
        contract = (row["contract_name"], row["contract_version"])
    return HoldRecord(
        hold_id=row["hold_id"],
        kind=HoldKind(row["kind"]),
        scope=HoldScope(row["tenant_id"], row["tool"], contract),
        tenant=row["tenant"],
        reason=row["reason"],
        placed_by=row["placed_by"],
        placed_at=row["placed_at"],
        lifted_by=row["lifted_by"],
        lifted_at=row["lifted_at"],
        lift_reason=row["lift_reason"],
    )
