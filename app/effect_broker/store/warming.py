"""What a worker does before its first effect: it opens its sessions, and lets each of them plan.

A session that is new reads the catalogue and plans each statement when it first meets it, which is
tens of milliseconds of the server for what takes one afterwards. A backlog would meet all sessions
of a worker that way at once. Here each statement of the hot path runs in each session for an effect
that does not exist, or for no row at all; nothing is written.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Final
from uuid import UUID

from effect_broker.store import statements as sql
from effect_broker.store.granted import SETTLE
from effect_broker.store.pool import Connection, Pool, session

# Of nobody and nothing. No statement takes a lock or writes for it.
_NONE: Final = {"tenant_id": UUID(int=0), "effect_id": UUID(int=0)}

# Parameters of both functions; both look for the effect first and find none.
_GRANT: Final = dict.fromkeys(
    (
        "expected_version", "expected_generation", "attempt_id", "ordinal", "executor_id", "now",
        "deadline_at", "target_identity", "bound_identity", "kind", "event", "from_state",
        "to_state", "reason", "actor", "metadata", "next_action_at", "key_expires_at",
        "attempt_open_until", "sender_lost",
    )
)  # fmt: skip
_SETTLE: Final = dict.fromkeys(
    (
        "version", "generation", "attempt_id", "at", "code", "external_id", "status",
        "response_digest", "result_digest", "result_key_id", "result", "receipt_id", "content",
        "receipt_digest", "result_ref", "event", "to_state", "reason", "actor", "kind",
        "metadata", "next_action_at", "signing_key_id", "algorithm", "signature",
    )
)  # fmt: skip


async def warm(pool: Pool) -> None:
    """Open every session of the pool, and let each meet what nearly every effect asks of it.

    Raises:
        psycopg.Error: the server gives no session, or refuses a statement.
    """
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(session(pool)) for _ in range(pool.max_size)]
        await asyncio.gather(*(_met(connection) for connection in opened))


async def _met(connection: Connection) -> None:
    asked: tuple[tuple[str, dict[str, Any]], ...] = (
        (sql.READ_NEW, _NONE),
        (sql.GRANT_FIRST, {**_NONE, **_GRANT}),
        (SETTLE, {**_NONE, **_SETTLE}),
    )
    for statement, parameters in asked:
        await connection.execute(statement, parameters)
