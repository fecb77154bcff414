"""Tenants and their API keys: making, listing, revoking, and finding who a key belongs to.

A key is `eb_` and 256 random bits. It is shown once and stored as its SHA-256: there is nothing to
guess, so a slow hash would protect nothing and cost every request.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from psycopg.errors import UniqueViolation

from effect_broker.intake import Scope, Tenant
from effect_broker.store.errors import store_errors
from effect_broker.store.pool import Pool, session
from effect_contracts.errors import TenantDisabled, Unauthenticated

API_KEY_PREFIX: Final = "eb_"
_API_KEY_BYTES: Final = 32
# Long enough for every key we make, short enough that nobody makes us hash a megabyte.
_API_KEY_CHARS_MAX: Final = 128

DEFAULT_SCOPES: Final = (Scope.EFFECTS.value,)

_CREATE_TENANT: Final = """
INSERT INTO effect_broker.tenants (tenant_id, name, hmac_key_id)
VALUES (gen_random_uuid(), %(name)s, %(hmac_key_id)s)
RETURNING tenant_id, name, hmac_key_id, created_at, disabled_at
"""
_TENANTS: Final = """
SELECT tenant_id, name, hmac_key_id, created_at, disabled_at FROM effect_broker.tenants
ORDER BY name
"""
_SWITCH_TENANT: Final = """
UPDATE effect_broker.tenants
SET disabled_at = CASE WHEN %(disabled)s THEN coalesce(disabled_at, clock_timestamp()) END
WHERE name = %(name)s RETURNING tenant_id, name, hmac_key_id, created_at, disabled_at
"""
_CREATE_KEY: Final = """
INSERT INTO effect_broker.api_keys (key_id, tenant_id, key_hash, scopes, expires_at)
SELECT gen_random_uuid(), t.tenant_id, %(key_hash)s, %(scopes)s,
       clock_timestamp() + make_interval(secs => %(expires_seconds)s::float8)
FROM effect_broker.tenants AS t WHERE t.name = %(name)s
RETURNING key_id, tenant_id, expires_at
"""
_REVOKE_KEY: Final = """
UPDATE effect_broker.api_keys SET revoked_at = coalesce(revoked_at, clock_timestamp())
WHERE key_id = %(key_id)s RETURNING key_id
"""
_KEYS: Final = """
SELECT k.key_id, t.name AS tenant, k.scopes, k.created_at, k.revoked_at, k.expires_at,
       extract(epoch FROM k.expires_at - clock_timestamp())::float8 AS expires_in_seconds
FROM effect_broker.api_keys AS k JOIN effect_broker.tenants AS t USING (tenant_id)
WHERE %(name)s::text IS NULL OR t.name = %(name)s
ORDER BY t.name, k.created_at
"""
_AUTHENTICATE: Final = """
SELECT tenant_id, key_id, scopes, hmac_key_id, disabled FROM effect_broker.authenticate(%(hash)s)
"""


class TenantMissing(LookupError):
    """There is no tenant of this name."""


class TenantExists(ValueError):
    """There is a tenant of this name already."""


@dataclass(frozen=True, slots=True)
class TenantRecord:
    """One tenant."""

    tenant_id: UUID
    name: str
    hmac_key_id: str
    created_at: datetime
    disabled_at: datetime | None


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """One API key, without the key.

    Attributes:
        expires_at: None for a key without an end.
        expires_in_seconds: until then, by the database's clock; below 0 where it is past.
    """

    key_id: UUID
    tenant: str
    scopes: tuple[str, ...]
    created_at: datetime
    revoked_at: datetime | None
    expires_at: datetime | None
    expires_in_seconds: float | None


@dataclass(frozen=True, slots=True)
class NewApiKey:
    """A key that has just been made; `api_key` is shown once and stored nowhere."""

    key_id: UUID
    tenant_id: UUID
    api_key: str = field(repr=False)
    expires_at: datetime | None = None


class Tenants:
    """Administration of tenants and keys, over a pool of the admin role."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def create(self, name: str, hmac_key_id: str) -> TenantRecord:
        """Make a tenant whose downstream keys are made under `hmac_key_id`.

        Raises:
            TenantExists, StoreError.
        """
        with store_errors():
            try:
                rows = await self._rows(_CREATE_TENANT, name=name, hmac_key_id=hmac_key_id)
            except UniqueViolation:
                raise TenantExists(name) from None
        return TenantRecord(**rows[0])

    async def tenants(self) -> tuple[TenantRecord, ...]:
        """Return all tenants by name."""
        with store_errors():
            return tuple(TenantRecord(**row) for row in await self._rows(_TENANTS))

    async def switch(self, name: str, *, disabled: bool) -> TenantRecord:
        """Disable a tenant, which stops its dispatches and its submits, or enable it again.

        Raises:
            TenantMissing, StoreError.
        """
        with store_errors():
            rows = await self._rows(_SWITCH_TENANT, name=name, disabled=disabled)
        if not rows:
            raise TenantMissing(name)
        return TenantRecord(**rows[0])

    async def create_key(
        self,
        tenant: str,
        scopes: Sequence[str] = DEFAULT_SCOPES,
        expires_seconds: float | None = None,
    ) -> NewApiKey:
        """Make an API key of a tenant, which ends after `expires_seconds`; None: when revoked.

        Raises:
            TenantMissing, StoreError.
        """
        api_key = API_KEY_PREFIX + secrets.token_urlsafe(_API_KEY_BYTES)
        with store_errors():
            rows = await self._rows(
                _CREATE_KEY,
                name=tenant,
                key_hash=key_hash(api_key),
                scopes=list(scopes),
                expires_seconds=expires_seconds,
            )
        if not rows:
            raise TenantMissing(tenant)
        made = rows[0]
        return NewApiKey(made["key_id"], made["tenant_id"], api_key, made["expires_at"])

    async def revoke_key(self, key_id: UUID) -> bool:
        """Revoke a key at once; False if there is none of this id."""
        with store_errors():
            return bool(await self._rows(_REVOKE_KEY, key_id=key_id))

    async def keys(self, tenant: str | None = None) -> tuple[KeyRecord, ...]:
        """Return the keys of one tenant or of all, revoked ones included."""
        with store_errors():
            rows = await self._rows(_KEYS, name=tenant)
        return tuple(KeyRecord(**{**row, "scopes": tuple(row["scopes"])}) for row in rows)

    async def _rows(self, statement: str, **parameters: object) -> list[dict[str, Any]]:
        async with session(self._pool) as connection:
            cursor = await connection.execute(statement, parameters)
            return await cursor.fetchall()


class Authentication:
    """Finds the tenant of an API key, over a pool of the API's role."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def tenant(self, api_key: str) -> Tenant:
        """Return whom the key belongs to.

        Raises:
            Unauthenticated: no such key, revoked or expired. TenantDisabled: known, and not served.
            StoreError.
        """
        if not api_key.startswith(API_KEY_PREFIX) or len(api_key) > _API_KEY_CHARS_MAX:
            raise Unauthenticated
        with store_errors():
            async with session(self._pool) as connection:
                cursor = await connection.execute(_AUTHENTICATE, {"hash": key_hash(api_key)})
                row = await cursor.fetchone()
        if row is None:
            raise Unauthenticated
        if row["disabled"]:
            raise TenantDisabled
        return Tenant(
            row["tenant_id"], row["hmac_key_id"], str(row["key_id"]), frozenset(row["scopes"])
        )


def key_hash(api_key: str) -> bytes:
    """Return what is stored of an API key."""
    return hashlib.sha256(api_key.encode()).digest()
