"""Every statement that this process sends to Postgres, and how each is planned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest

from effect_broker.store.roles import DatabaseRole
from postgres import Database

Statement = tuple[str, Any]

# Answered from memory for a second or two, whoever asks: no part of what an id costs.
_REMEMBERED = ("effect_broker.authenticate(", "effect_broker.active_contracts")
_PLANNED = ("SELECT", "WITH", "INSERT", "UPDATE", "DELETE")


@contextmanager
def recorded() -> Iterator[list[Statement]]:
    """Record the statements inside the block, in order."""
    seen: list[Statement] = []
    really = psycopg.AsyncCursor.execute

    async def execute(cursor: Any, query: Any, params: Any = None, **options: Any) -> Any:
        text = query if isinstance(query, str) else query.as_string(cursor)
        if not any(part in text for part in _REMEMBERED):
            seen.append((text, params))
        return await really(cursor, query, params, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg.AsyncCursor, "execute", execute)
        yield seen


def plans(database: Database, tenant_id: UUID, statements: list[Statement]) -> list[str]:
    """Plan each again as the API's role, and return the plans.

    Indexes are taken although the tables are small, as they are where the tables are large.
    """
    made = []
    url = database.url_for(DatabaseRole.API)
    with psycopg.connect(url, cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute("SET LOCAL enable_seqscan = off")
        name = "SELECT set_config('effect_broker.tenant_id', %s::text, true)"
        connection.execute(name, [str(tenant_id)])
        for text, params in statements:
            if not text.lstrip().startswith(_PLANNED) or "set_config" in text:
                continue
            explain = "EXPLAIN (COSTS OFF) "
            with connection.transaction(force_rollback=True):
                try:
                    rows = connection.execute((explain + text).encode(), params).fetchall()
                except psycopg.Error as refused:
                    made.append(f"{refused.sqlstate}: {refused.diag.message_primary}")
                    continue
            made.append("\n".join(str(row[0]) for row in rows))
        connection.rollback()
    return made
