"""What a worker does before its first effect: it opens its sessions, and lets each of them plan.

A session that is new reads the catalogue and plans each statement when it first meets it, which is
tens of milliseconds of the server for what takes one afterwards. A backlog would meet all sessions
of a worker that way at once. Here each statement of the hot path runs in each session for an effect
that does not exist, or for no row at all; nothing is written.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from effect_broker.store import statements as sql
from effect_broker.store.granted import SETTLE
from effect_broker.store.pool import Connection, Pool, session

# Of nobody and nothing. No statement takes a lock or writes for it.
_NONE: Final = {"tenant_id": UUID(int=0), "effect_id": UUID(int=0)}

# Of the types that an effect gives which simply succeeds: a session keeps a plan for each set.
_AT: Final = datetime(2000, 1, 1, tzinfo=UTC)
_GRANT: Final[dict[str, Any]] = {
    "expected_version": 1, "expected_generation": 1, "attempt_id": UUID(int=0), "ordinal": 1,
    "executor_id": "", "now": _AT, "deadline_at": _AT, "target_identity": "", "bound_identity": "",
    "kind": "", "event": "", "from_state": "", "to_state": "", "reason": "", "actor": "",
    "metadata": "", "next_action_at": _AT, "key_expires_at": _AT, "attempt_open_until": _AT,
    "sender_lost": False,
}  # fmt: skip
_SETTLE: Final[dict[str, Any]] = {
    "version": 2, "generation": 1, "attempt_id": UUID(int=0), "at": _AT, "code": "",
    "external_id": "", "status": 200, "response_digest": "", "result_digest": b"",
    "result_key_id": "", "result": b"", "receipt_id": UUID(int=0), "content": "",
    "receipt_digest": b"", "result_ref": "", "event": "", "to_state": "", "reason": "",
    "actor": "", "kind": "", "metadata": "", "next_action_at": None, "signing_key_id": "",
    "algorithm": "", "signature": b"",
}  # fmt: skip


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
