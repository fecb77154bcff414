"""Which database roles submit inside their own transactions, and for whom: over the admin role.

A role is let in by two grants and a row, all of them in one function of the database, so that the
three are there together or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from effect_broker.store.errors import store_errors
from effect_broker.store.pool import Pool, session
from effect_broker.store.tenants import TenantMissing

_ADD: Final = """
SELECT effect_broker.add_caller(%(role)s, t.tenant_id) AS found
FROM effect_broker.tenants AS t WHERE t.name = %(tenant)s
"""
_REMOVE: Final = "SELECT effect_broker.remove_caller(%(role)s) AS removed"
_CALLERS: Final = """
SELECT c.role_name AS role, t.name AS tenant, c.added_at,
       EXISTS (SELECT 1 FROM pg_roles AS r WHERE r.rolname = c.role_name) AS exists
FROM effect_broker.callers AS c JOIN effect_broker.tenants AS t USING (tenant_id)
WHERE %(tenant)s::text IS NULL OR t.name = %(tenant)s
ORDER BY t.name, c.role_name
"""


class Admission(StrEnum):
    """What came of letting a role in; only the first two let it in."""

    ADDED = "added"
    THERE = "there"  # it was a caller of this tenant before
    NO_ROLE = "no_role"
    NO_LOGIN = "no_login"
    TOO_MIGHTY = "too_mighty"  # no rule of the database binds it, or it acts for the broker itself
    OF_ANOTHER_TENANT = "of_another_tenant"


@dataclass(frozen=True, slots=True)
class CallerRecord:
    """One role that submits for a tenant; `exists` is False once the server knows it no more."""

    role: str
    tenant: str
    added_at: datetime
    exists: bool


class Callers:
    """Administration of callers, over a pool of the admin role."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def add(self, role: str, tenant: str) -> Admission:
        """Let a role submit for a tenant; again, it changes nothing.

        Raises:
            TenantMissing, StoreError.
        """
        rows = await self._rows(_ADD, role=role, tenant=tenant)
        if not rows:
            raise TenantMissing(tenant)
        return Admission(rows[0]["found"])

    async def remove(self, role: str) -> bool:
        """Take it back; False where the role was no caller.

        Raises:
            StoreError.
        """
        return bool((await self._rows(_REMOVE, role=role))[0]["removed"])

    async def callers(self, tenant: str | None = None) -> tuple[CallerRecord, ...]:
        """Return the callers of one tenant or of all.

        Raises:
            StoreError.
        """
        return tuple(CallerRecord(**row) for row in await self._rows(_CALLERS, tenant=tenant))

    async def _rows(self, statement: str, **parameters: object) -> list[dict[str, Any]]:
        with store_errors():
            async with session(self._pool) as connection:
                cursor = await connection.execute(statement, parameters)
                return await cursor.fetchall()
