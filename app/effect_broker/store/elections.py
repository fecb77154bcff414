"""Elections on Postgres (`effect_broker.protocol.submission.ElectionStore`).

One round trip elects the first caller of a new effect, and one settles the effect by its word.
Whoever comes later, and whatever else is told, is planned under the lock as every change.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg.types.json import Jsonb

from effect_broker.protocol.ports import Change, Snapshot
from effect_broker.protocol.submission import Elected, FirstElection, Submission
from effect_broker.store.errors import UNDONE_SQLSTATE
from effect_broker.store.postgres import PostgresStore
from effect_broker.store.rows import intent_of

# One statement in autocommit mode, as for a submit.
ELECT: Final = """
SELECT s.created, s.granted,
       (s.intent).effect_id, (s.intent).tenant_id, (s.intent).operation_key, (s.intent).tool,
       (s.intent).request_hash, (s.intent).contract_name, (s.intent).contract_version,
       (s.intent).contract_digest, (s.intent).safety, (s.intent).downstream_key,
       (s.intent).state, (s.intent).version, (s.intent).reason, (s.intent).generation,
       (s.intent).progress_generation, (s.intent).next_action_at, (s.intent).target_identity,
       (s.intent).wire_digest, (s.intent).created_at, (s.intent).updated_at
FROM (SELECT set_config('effect_broker.tenant_id', %(tenant_id)s::text, true)::uuid AS id
      OFFSET 0) AS t,
LATERAL effect_broker.elect_effect(
    t.id, %(effect_id)s, %(operation_key)s, %(tool)s, %(request_hash)s, %(contract_name)s,
    %(contract_version)s, %(contract_digest)s, %(safety)s, %(downstream_key)s, %(hmac_key_id)s,
    %(wire_digest)s, %(requested_by)s, %(trace_id)s, %(traceparent)s, %(preview)s,
    %(arguments_key_id)s, %(arguments)s, %(wire_key_id)s, %(wire)s,
    %(attempt_id)s, %(caller)s, %(target_identity)s, %(lease_seconds)s,
    %(clock_margin_seconds)s, %(key_retention_seconds)s, %(reason)s) AS s
"""


class PostgresElections(PostgresStore):
    """The store of elections."""

    async def elect_first(self, submission: Submission, first: FirstElection) -> Elected:
        """As `ElectionStore.elect_first`.

        Raises:
            StoreUnavailable, StoreBusy, CommitUnknown, ContractMoved.
        """
        assert submission.send_before is None, "who is elected sends now"
        assert submission.parent_id is None, "links are made by a submit"
        assert submission.compensates_id is None, "links are made by a submit"
        preview, wire = submission.preview, submission.wire
        parameters = {
            "tenant_id": submission.tenant_id,
            "effect_id": submission.effect_id,
            "operation_key": submission.operation_key,
            "tool": submission.tool,
            "request_hash": submission.request_hash,
            "contract_name": submission.contract_name,
            "contract_version": submission.contract_version,
            "contract_digest": submission.contract_digest,
            "safety": submission.safety.value,
            "downstream_key": submission.downstream_key,
            "hmac_key_id": submission.hmac_key_id,
            "wire_digest": submission.wire_digest,
            "requested_by": submission.requested_by,
            "trace_id": submission.trace_id,
            "traceparent": submission.traceparent,
            "preview": None if preview is None else Jsonb(dict(preview)),
            "arguments_key_id": submission.arguments.key_id,
            "arguments": submission.arguments.ciphertext,
            "wire_key_id": None if wire is None else wire.key_id,
            "wire": None if wire is None else wire.ciphertext,
            "attempt_id": first.attempt_id,
            "caller": first.caller,
            "target_identity": first.target_identity,
            "lease_seconds": first.lease_seconds,
            "clock_margin_seconds": first.clock_margin_seconds,
            "key_retention_seconds": first.key_retention_seconds,
            "reason": first.reason,
        }
        async with self.connection() as (connection, progress):
            progress.committing = True
            try:
                row = await (await connection.execute(ELECT, parameters)).fetchone()
            except psycopg.DatabaseError as problem:
                if problem.sqlstate != UNDONE_SQLSTATE:
                    raise
                # A hold was placed at that very moment. It is seen now, and nobody is elected.
                row = await (await connection.execute(ELECT, parameters)).fetchone()
        assert row is not None, "elect_effect returns one row"
        intent = intent_of(row)
        if not row["granted"]:
            return Elected(row["created"], intent)
        return Elected(True, intent, first, granted_at=intent.updated_at)

    async def settle_first(self, snapshot: Snapshot, change: Change[Any]) -> bool:
        """As `ElectionStore.settle_first`.

        Raises:
            StoreUnavailable, StoreBusy, CommitUnknown, StaleWrite.
        """
        async with self.connection() as (connection, progress):
            return await self._settled(connection, progress, snapshot, change)
