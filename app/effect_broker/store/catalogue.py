"""The contracts in the database: applied once, immutable, one active version per tool.

Processes read contracts from here and nowhere else, so that all of them act on the same document.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from psycopg.errors import UniqueViolation

from effect_broker.store.errors import store_errors
from effect_broker.store.pool import Pool, session
from effect_contracts.document import ContractDocument
from effect_contracts.errors import ContractConflict

_INSERT: Final = """
INSERT INTO effect_broker.contracts (digest, name, version, tool, safety, document)
VALUES (%(digest)s, %(name)s, %(version)s, %(tool)s, %(safety)s, %(document)s)
ON CONFLICT (digest) DO NOTHING
RETURNING digest
"""
_ACTIVATE: Final = """
INSERT INTO effect_broker.active_contracts (tool, digest) VALUES (%(tool)s, %(digest)s)
ON CONFLICT (tool) DO UPDATE SET digest = excluded.digest, activated_at = clock_timestamp()
WHERE effect_broker.active_contracts.digest <> excluded.digest
"""
_LIST: Final = """
SELECT c.digest, c.name, c.version, c.tool, c.safety, c.applied_at,
       a.digest IS NOT NULL AS active
FROM effect_broker.contracts AS c
LEFT JOIN effect_broker.active_contracts AS a ON a.tool = c.tool AND a.digest = c.digest
ORDER BY c.tool, c.applied_at
"""


@dataclass(frozen=True, slots=True)
class ContractRecord:
    """One applied contract, without its document."""

    digest: bytes
    name: str
    version: str
    tool: str
    safety: str
    applied_at: datetime
    active: bool


class Catalogue:
    """Administration of contracts, over a pool of the admin role."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def apply(self, document: ContractDocument, *, activate: bool = True) -> bool:
        """Store a document and make it the active one of its tool; True if it is new here.

        Raises:
            ContractConflict: its name and version stand for another document.
            StoreError.
        """
        parameters: dict[str, Any] = {
            "digest": document.digest(),
            "name": document.name,
            "version": document.version,
            "tool": document.tool,
            "safety": document.safety.value,
            "document": document.canonical().decode(),
        }
        with store_errors() as progress:
            try:
                async with session(self._pool) as connection, connection.transaction():
                    inserted = await (await connection.execute(_INSERT, parameters)).fetchone()
                    if activate:
                        await connection.execute(_ACTIVATE, parameters)
                    progress.committing = True
            except UniqueViolation:
                raise ContractConflict from None
        return inserted is not None

    async def contracts(self) -> tuple[ContractRecord, ...]:
        """Return all contracts by tool and age."""
        with store_errors():
            async with session(self._pool) as connection:
                rows = await (await connection.execute(_LIST)).fetchall()
        return tuple(ContractRecord(**row) for row in rows)
