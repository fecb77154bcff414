"""Elections on Postgres (`effect_broker.protocol.submission.ElectionStore`).

One round trip elects the first caller of a new effect, and one settles the effect by its word.
Whoever comes later, and whatever else is told, is planned under the lock as every change.
"""

from __future__ import annotations

from typing import Any, Final

from psycopg.types.json import Jsonb

from effect_broker.protocol.ports import (
    AddReceipt,
    Advance,
    Change,
    RecordOutcome,
    Snapshot,
    StorePayload,
)
from effect_broker.protocol.submission import Elected, FirstElection, Submission
from effect_broker.store.postgres import PostgresStore
from effect_broker.store.rows import intent_of
from effect_contracts.canonical import canonical_bytes
from effect_contracts.facts import Outcome

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

SETTLE: Final = """
SELECT effect_broker.settle_election(
    t.id, %(effect_id)s, %(version)s, %(generation)s, %(attempt_id)s, %(at)s, %(code)s,
    %(external_id)s, %(result_digest)s, %(result_key_id)s, %(result)s, %(receipt_id)s,
    %(content)s, %(receipt_digest)s, %(result_ref)s, %(event)s, %(to_state)s, %(reason)s,
    %(actor)s, %(kind)s, %(metadata)s, %(next_action_at)s, %(signing_key_id)s, %(algorithm)s,
    %(signature)s) AS settled
FROM (SELECT set_config('effect_broker.tenant_id', %(tenant_id)s::text, true)::uuid AS id
      OFFSET 0) AS t
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
        match change.writes:
            case (
                RecordOutcome(outcome=Outcome.COMMITTED) as outcome,
                StorePayload(kind="result") as payload,
                AddReceipt() as receipt,
                Advance() as advance,
            ):
                pass
            case _:
                return False  # something else follows from it than a plain success
        intent = snapshot.intent
        signature = None if self._signer is None else self._signer.sign(receipt.content)
        parameters = {
            "tenant_id": intent.tenant_id,
            "effect_id": intent.effect_id,
            "version": intent.version,
            "generation": intent.generation,
            "attempt_id": outcome.attempt_id,
            "at": snapshot.now,
            "code": outcome.code,
            "external_id": outcome.external_id,
            "result_digest": outcome.result_digest,
            "result_key_id": payload.sealed.key_id,
            "result": payload.sealed.ciphertext,
            "receipt_id": receipt.receipt_id,
            "content": receipt.content.decode(),
            "receipt_digest": receipt.digest,
            "result_ref": receipt.result_ref,
            "event": advance.event.value,
            "to_state": advance.state.value,
            "reason": advance.reason,
            "actor": advance.actor,
            "kind": advance.kind,
            "metadata": canonical_bytes(dict(advance.metadata)).decode(),
            "next_action_at": advance.next_action_at,
            "signing_key_id": None if signature is None else signature.key_id,
            "algorithm": None if signature is None else signature.algorithm,
            "signature": None if signature is None else signature.signature,
        }
        async with self.connection() as (connection, progress):
            progress.committing = True
            row = await (await connection.execute(SETTLE, parameters)).fetchone()
        assert row is not None, "settle_election returns one row"
        if row["settled"]:
            self._observer.changed(snapshot, change)
        return bool(row["settled"])
