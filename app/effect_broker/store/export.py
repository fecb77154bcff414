"""The export of a trace: every effect of a selection, as of one moment, streamed.

It reads in one REPEATABLE READ, READ ONLY transaction through a server-side cursor, some hundred
effects at a time: no row is locked, and neither side's memory grows with the number of effects.
The worker's role is enough. What comes out is `effect_contracts.trace`'s format, which holds no
arguments, answers or secrets; the downstream key leaves the database as its SHA-256 only.

An open snapshot keeps VACUUM from removing rows that it can still see, so a very long export costs
the database space; it ends with the session.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, LiteralString
from uuid import UUID

from effect_broker.store.errors import store_errors
from effect_broker.store.pool import Connection, Pool, session
from effect_contracts.trace import TraceWriter

# Effects of one batch: enough that round trips do not count, little enough to hold.
_BATCH: Final = 200

_BEGIN: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"
# The settings of a worker's session end a transaction after two idle seconds, which a slow reader
# of our output may well need. It holds no lock that anybody waits for.
_PATIENCE: Final = """
SELECT set_config('statement_timeout', '60s', true),
       set_config('idle_in_transaction_session_timeout', '10min', true)
"""

_MOMENT: Final = """
SELECT clock_timestamp() AS exported_at,
       clock_timestamp() - make_interval(secs => %(changed_within_seconds)s) AS since,
       (SELECT bounds_restart_at FROM effect_broker.database_identity WHERE singleton)
           AS bounds_restart_at
"""

_INTENTS: Final = """
SELECT tenant_id, effect_id, operation_key, tool, request_hash, contract_name, contract_version,
       contract_digest, safety, sha256(convert_to(downstream_key, 'UTF8')) AS downstream_key_digest,
       target_identity, wire_digest, requested_by, send_before, cancel_requested_at,
       reconcile_asked_at, approved_at, failed_by_operator_at, created_at, updated_at, state,
       reason, version, latest_ordinal, retention_stage, next_action_at, parked, alert,
       receipt_digest, event_digest
FROM effect_broker.effect_intents
WHERE (%(tenant_id)s::uuid IS NULL OR tenant_id = %(tenant_id)s)
  AND (%(effect_id)s::uuid IS NULL OR effect_id = %(effect_id)s)
  AND (%(changed_since)s::timestamptz IS NULL OR updated_at >= %(changed_since)s)
ORDER BY tenant_id, effect_id
"""

# One query for each kind of row; `effect_id` is dropped when the rows are sorted out.
_ROWS: Final[Mapping[str, LiteralString]] = {
    "attempts": """
SELECT effect_id, attempt_id, ordinal, executor_id, started_at, deadline_at, target_identity,
       outcome, code, recorded_at, lost_at, external_id, retry_after_seconds, operation,
       result_digest
FROM effect_broker.effect_attempts WHERE effect_id = ANY(%(effect_ids)s)
ORDER BY effect_id, ordinal
""",
    "evidence": """
SELECT effect_id, evidence_id, source, verdict, code, began_at, recorded_at, covers_through,
       external_ids, target_identity, result_digest
FROM effect_broker.effect_evidence WHERE effect_id = ANY(%(effect_ids)s)
ORDER BY effect_id, recorded_at, evidence_id
""",
    "mutations": """
SELECT effect_id, ordinal, kind
FROM effect_broker.mutation_keys WHERE effect_id = ANY(%(effect_ids)s)
ORDER BY effect_id, ordinal
""",
    "resolutions": """
SELECT effect_id, decision_id, evidence_id, conclusion, digest, actor, recorded_at
FROM effect_broker.effect_resolutions WHERE effect_id = ANY(%(effect_ids)s)
ORDER BY effect_id, recorded_at, decision_id
""",
    "receipt": """
SELECT effect_id, receipt_id, content, digest, result_ref, recorded_at
FROM effect_broker.effect_receipts WHERE effect_id = ANY(%(effect_ids)s)
""",
    "events": """
SELECT effect_id, sequence, kind, event, from_state, to_state, reason, actor, at, metadata,
       previous_digest, digest
FROM effect_broker.effect_events WHERE effect_id = ANY(%(effect_ids)s)
ORDER BY effect_id, sequence
""",
}

_DOCUMENT: Final = "SELECT document FROM effect_broker.contracts WHERE digest = %(digest)s"


@dataclass(frozen=True, slots=True)
class TraceSelection:
    """Which effects; every condition that is given must hold. Each comes with its whole account.

    Attributes:
        changed_since: written to at or after this moment.
        changed_within_seconds: likewise, counted back from the database's now.
    """

    tenant_id: UUID | None = None
    effect_id: UUID | None = None
    changed_since: datetime | None = None
    changed_within_seconds: float | None = None


ALL_EFFECTS: Final = TraceSelection()


@dataclass(frozen=True, slots=True)
class Exported:
    """How much was written."""

    contracts: int
    effects: int
    events: int


async def export_trace(
    pool: Pool, write: Callable[[bytes], object], selection: TraceSelection = ALL_EFFECTS
) -> Exported:
    """Hand every line of the trace to `write`, in order.

    Raises:
        StoreError: the database is away, or the role may not read this; the trace has no end then,
            and the check refuses it.
    """
    writer = TraceWriter()
    with store_errors():
        async with session(pool) as connection:
            await connection.execute(_BEGIN)
            try:
                await connection.execute(_PATIENCE)
                async with aclosing(_lines(connection, writer, selection)) as lines:
                    async for line in lines:
                        write(line)
            finally:
                if not connection.closed:
                    await connection.execute("ROLLBACK")
    return Exported(writer.contracts, writer.effects, writer.events)


async def export_to(pool: Pool, path: Path, selection: TraceSelection = ALL_EFFECTS) -> Exported:
    """Write a trace to a file, which appears under its name when it is whole.

    A pipe or a device is written to as it is.

    Raises:
        StoreError, OSError.
    """
    with _appearing(path) as file:
        return await export_trace(pool, file.write, selection)


@contextmanager
def _appearing(path: Path) -> Iterator[BinaryIO]:
    """Give a file that takes its name when the block has ended well."""
    path = path.resolve()
    if path.exists() and not path.is_file():
        with path.open("wb") as device:
            yield device
        return
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with unfinished.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


async def _lines(
    connection: Connection, writer: TraceWriter, selection: TraceSelection
) -> AsyncGenerator[bytes]:
    moment = await _moment(connection, selection)
    since = selection.changed_since or moment["since"]
    yield writer.header(
        exported_at=moment["exported_at"],
        bounds_restart_at=moment["bounds_restart_at"],
        tenant_id=selection.tenant_id,
        effect_id=selection.effect_id,
        changed_since=since,
    )
    chosen = {
        "tenant_id": selection.tenant_id,
        "effect_id": selection.effect_id,
        "changed_since": since,
    }
    shown: set[bytes] = set()
    async with connection.cursor(name="trace") as cursor:
        await cursor.execute(_INTENTS, chosen)
        while intents := await cursor.fetchmany(_BATCH):
            rows = await _rows_of(connection, [intent["effect_id"] for intent in intents])
            for intent in intents:
                digest = bytes(intent["contract_digest"])
                if digest not in shown:
                    shown.add(digest)
                    yield writer.contract(digest, await _document(connection, digest))
                yield writer.effect(_members(intent, rows))
    yield writer.end()


async def _moment(connection: Connection, selection: TraceSelection) -> dict[str, Any]:
    # The first query of the transaction takes its snapshot; the clock runs on after it.
    parameters = {"changed_within_seconds": selection.changed_within_seconds}
    row = await (await connection.execute(_MOMENT, parameters)).fetchone()
    assert row is not None, "the clock answers"
    return row


async def _document(connection: Connection, digest: bytes) -> str:
    row = await (await connection.execute(_DOCUMENT, {"digest": digest})).fetchone()
    assert row is not None, "a foreign key holds the contract of every intent"
    return str(row["document"])


Rows = Mapping[str, Mapping[UUID, Sequence[Mapping[str, Any]]]]


async def _rows_of(connection: Connection, effect_ids: Sequence[UUID]) -> Rows:
    """Return the rows of a batch, by kind and effect; one round trip."""
    parameters = {"effect_ids": list(effect_ids)}
    async with connection.pipeline():
        cursors = {
            kind: await connection.execute(query, parameters) for kind, query in _ROWS.items()
        }
    sorted_out: dict[str, dict[UUID, list[Mapping[str, Any]]]] = {}
    for kind, cursor in cursors.items():
        by_effect: dict[UUID, list[Mapping[str, Any]]] = {}
        for row in await cursor.fetchall():
            by_effect.setdefault(row.pop("effect_id"), []).append(row)
        sorted_out[kind] = by_effect
    return sorted_out


def _members(intent: Mapping[str, Any], rows: Rows) -> dict[str, Any]:
    effect_id = intent["effect_id"]
    of_effect = {kind: by_effect.get(effect_id, ()) for kind, by_effect in rows.items()}
    receipts = of_effect.pop("receipt")
    return {
        "intent": intent,
        "attempts": of_effect["attempts"],
        "evidence": of_effect["evidence"],
        "mutations": of_effect["mutations"],
        "resolutions": of_effect["resolutions"],
        "receipt": receipts[0] if receipts else None,
        "events": of_effect["events"],
    }
