"""The contract documents that are stored, for those who read them: command line and doctor."""

from __future__ import annotations

from typing import Final

from effect_broker.store.errors import store_errors
from effect_broker.store.pool import Pool, session
from effect_contracts.document import ContractDocument

_ONE: Final = """
SELECT document FROM effect_broker.contracts WHERE name = %(name)s AND version = %(version)s
"""
_ACTIVE: Final = """
SELECT c.document FROM effect_broker.active_contracts AS a
JOIN effect_broker.contracts AS c USING (tool, digest) ORDER BY c.tool
"""


async def applied_document(pool: Pool, name: str, version: str) -> ContractDocument | None:
    """Return the document of a name and version, None where none was applied.

    Raises:
        StoreError. ContractInvalid: this release cannot read what is stored.
    """
    with store_errors():
        async with session(pool) as connection:
            cursor = await connection.execute(_ONE, {"name": name, "version": version})
            row = await cursor.fetchone()
    return None if row is None else ContractDocument.from_canonical(row["document"].encode())


async def active_documents(pool: Pool) -> tuple[ContractDocument, ...]:
    """Return the active contract of every tool, by tool.

    Raises:
        StoreError. ContractInvalid: this release cannot read what is stored.
    """
    with store_errors():
        async with session(pool) as connection:
            rows = await (await connection.execute(_ACTIVE)).fetchall()
    return tuple(ContractDocument.from_canonical(row["document"].encode()) for row in rows)
