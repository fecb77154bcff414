"""The sessions of the console on Postgres (`effect_broker.console.Sessions`).

Lifetimes are in the functions of the migration: 8 hours, or 30 minutes without a request. They are
the database's clock's to judge, as all deadlines are.
"""

from __future__ import annotations

import hashlib
from typing import Final

from effect_broker.console import OpenSession
from effect_broker.intake import Tenant
from effect_broker.store.errors import store_errors
from effect_broker.store.pool import Pool, session
from effect_broker.store.rows import Row
from effect_contracts.errors import TenantDisabled

_BEGIN: Final = """
SELECT effect_broker.begin_console_session(%(hash)s, %(tenant_id)s, %(key_id)s::uuid) AS begun
"""
_FIND: Final = """
SELECT tenant_id, tenant, key_id, scopes, hmac_key_id, disabled, expires_at
FROM effect_broker.console_session(%(hash)s)
"""
_END: Final = "SELECT effect_broker.end_console_session(%(hash)s)"


class PostgresSessions:
    """Sessions over a pool of the API's role."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def begin(self, session_id: str, tenant: Tenant) -> bool:
        """Begin a session of a key; False where the key has been revoked meanwhile.

        Raises:
            StoreError.
        """
        asked = {"tenant_id": tenant.tenant_id, "key_id": tenant.credential}
        row = await self._one(_BEGIN, session_id, **asked)
        return row is not None and bool(row["begun"])

    async def find(self, session_id: str) -> OpenSession | None:
        """Return a session while it, its key and the patience for an idle one last.

        Raises:
            TenantDisabled, StoreError.
        """
        row = await self._one(_FIND, session_id)
        if row is None:
            return None
        if row["disabled"]:
            raise TenantDisabled
        tenant = Tenant(
            row["tenant_id"], row["hmac_key_id"], str(row["key_id"]), frozenset(row["scopes"])
        )
        return OpenSession(tenant, row["tenant"], row["expires_at"])

    async def end(self, session_id: str) -> None:
        """End a session, if it is there.

        Raises:
            StoreError.
        """
        await self._one(_END, session_id)

    async def _one(self, statement: str, session_id: str, **parameters: object) -> Row | None:
        digest = hashlib.sha256(session_id.encode()).digest()
        with store_errors():
            async with session(self._pool) as connection:
                cursor = await connection.execute(statement, {"hash": digest, **parameters})
                return await cursor.fetchone()
