"""The effect store on Postgres (`effect_broker.protocol.ports.EffectStore`, and submit).

What it promises: a change is planned on facts that were read under the effect's lock, or on the
version that it compares and sets; its writes are committed together and durably, or not at all.
Round trips: submit 1, load 1, change 3, a success that follows on this process's own grant 1
(`effect_broker.store.granted`), mutate 6 and those of the mutation itself; one more where a
contract is met for the first time, where it demands a certificate, where a plan writes nothing, or
where an attempt is granted under limits (two, where these demand a certificate).

Lock order: the intent's row, then the lock of the holds (shared), then all else, and last a target
that the contract limits (`effect_broker.store.paces`). Each lock and the facts are separate
statements of one READ COMMITTED transaction, sent in one pipeline: a statement that has waited for
a lock goes on with the snapshot from before it waited, only the next one sees what the other
transaction has done. The clock is read last.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar, cast
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from effect_adapters.base import Answer
from effect_broker.clock import SystemClock
from effect_broker.protocol.ports import (
    Change,
    EffectMissing,
    IdentityOf,
    Mutation,
    Plan,
    Sealed,
    Signer,
    Snapshot,
    StoreError,
)
from effect_broker.protocol.submission import Submission, Submitted
from effect_broker.protocol.urgency import urgency_after
from effect_broker.store import statements as sql
from effect_broker.store.certified import NO_KEYS, CertificatesInForce
from effect_broker.store.errors import UNDONE_SQLSTATE, Progress, store_errors
from effect_broker.store.granted import SETTLE, Grants, settlement
from effect_broker.store.observing import UNOBSERVED, StoreObserver
from effect_broker.store.paces import lock_pace
from effect_broker.store.pool import Connection, Pool, session
from effect_broker.store.rows import (
    StoredEffect,
    attempt_of,
    evidence_of,
    facts_of,
    intent_of,
    sealed_of,
    standing_of,
    urgency_of,
)
from effect_broker.store.signatures import signature_statements
from effect_broker.store.writes import Statement, statements_for
from effect_contracts.document import ContractDocument
from effect_contracts.facts import Alert, Facts, Outcome

T = TypeVar("T")

# A fenced key and a key that another attempt has used: this attempt's mutation did not run.
CODE_FENCED = "fenced"
CODE_ALREADY_MUTATED = "already_mutated"


class PostgresStore:
    """The effect store over a pool whose lifetime is the caller's.

    Args:
        signer: signs each receipt in the transaction that writes it; None leaves them unsigned.
        trusted: the public keys (raw, by id) whose certificates count; without keys none does, and
            an effect whose contract demands one is not sent.
        observer: is told what was read, changed and failed.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        signer: Signer | None = None,
        trusted: Mapping[str, bytes] = NO_KEYS,
        observer: StoreObserver = UNOBSERVED,
    ) -> None:
        self._pool = pool
        self._certificates = CertificatesInForce(trusted)
        self._signer = signer
        self._observer = observer
        # Documents are immutable by digest, so what was read once is true for ever.
        self._documents: dict[bytes, ContractDocument] = {}
        self._grants = Grants(SystemClock().boot_seconds)

    async def submit(self, submission: Submission) -> Submitted:
        """Store an intent with its event, payloads and run, or return the stored one.

        One statement, which is also the transaction: there is no state in between.

        Raises:
            StoreUnavailable, StoreBusy, CommitUnknown, StaleWrite.
        """
        arguments, wire = submission.arguments, submission.wire
        preview = submission.preview
        parameters = {
            **{name: getattr(submission, name) for name in _SUBMISSION_COLUMNS},
            "safety": submission.safety.value,
            "preview": None if preview is None else Jsonb(dict(preview)),
            "arguments_key_id": arguments.key_id,
            "arguments": arguments.ciphertext,
            "wire_key_id": None if wire is None else wire.key_id,
            "wire": None if wire is None else wire.ciphertext,
        }
        async with self.connection() as (connection, progress):
            progress.committing = True
            linked = submission.parent_id is not None or submission.compensates_id is not None
            cursor = await connection.execute(
                sql.SUBMIT_LINKED if linked else sql.SUBMIT, parameters
            )
            row = await cursor.fetchone()
        assert row is not None, "submit_effect returns one row"
        standing = None if linked or not row["alone"] else standing_of(row)
        return Submitted(row["created"], intent_of(row), row["enqueued"], standing)

    async def load(self, tenant_id: UUID, effect_id: UUID) -> Snapshot:
        """Return the effect without a lock, all of it as of one moment.

        Raises:
            EffectMissing, StoreUnavailable.
        """
        target = {"tenant_id": tenant_id, "effect_id": effect_id}
        async with self.connection() as (connection, _):
            async with connection.pipeline():
                await connection.execute(sql.BEGIN_READ)
                await connection.execute(sql.SET_TENANT, target)
                intent = await connection.execute(sql.READ_INTENT, target)
                reads = [await connection.execute(read, target) for read in _FACT_READS]
                await connection.execute(sql.COMMIT)
            stored = await _stored_effect(intent, reads)
            snapshot = await self._snapshot(connection, stored, tenant_id)
        self._observer.loaded(snapshot)
        return snapshot

    async def change(
        self, tenant_id: UUID, effect_id: UUID, plan: Plan[T], paced: IdentityOf | None = None
    ) -> T:
        """Lock, show, plan, write, commit; a success that follows on this store's own grant is
        planned on what the grant has left, and written on the same version without a look.

        Raises:
            EffectMissing, StoreUnavailable, StoreBusy, CommitUnknown, StaleWrite.
        """
        target = {"tenant_id": tenant_id, "effect_id": effect_id}
        async with self.connection() as (connection, progress):
            left = self._grants.take(tenant_id, effect_id)
            if left is not None:
                change = plan(left)
                if await self._settled(connection, progress, left, change):
                    return change.result
            stored = await _lock(connection, target)
            known_at_seconds = self._grants.moment()
            snapshot = await self._snapshot(connection, stored, tenant_id)
            if paced is not None and snapshot.document.limits is not None:
                snapshot = await self._paced(connection, snapshot, paced)
            change = plan(snapshot)
            await _finish(connection, progress, stored, snapshot, change, self._signer)
        self._grants.remember(snapshot, change, known_at_seconds)
        self._observer.changed(snapshot, change)
        return change.result

    async def _settled(
        self, connection: Connection, progress: Progress, snapshot: Snapshot, change: Change[Any]
    ) -> bool:
        """Write a plain success on the version that it was planned on; False for all else.

        For this package alone.
        """
        parameters = settlement(snapshot, change, self._signer)
        if parameters is None:
            return False
        progress.committing = True
        try:
            row = await (await connection.execute(SETTLE, parameters)).fetchone()
        except psycopg.DatabaseError as problem:
            if problem.sqlstate != UNDONE_SQLSTATE:
                raise
            row = {"settled": False}
        assert row is not None, "settle_success returns one row"
        if row["settled"]:
            self._observer.changed(snapshot, change)
        else:
            progress.committing = False
        return bool(row["settled"])

    async def mutate(
        self,
        tenant_id: UUID,
        effect_id: UUID,
        mutation: Mutation,
        plan: Callable[[Snapshot, Answer], Change[T]],
    ) -> T:
        """Lock, mutate under the mutation's key, plan with the answer, write, commit.

        The key is inserted before the mutation runs. Whatever is not `committed` is rolled back to
        before the key, so that only a commit leaves one.

        Raises:
            EffectMissing, StoreUnavailable, StoreBusy, CommitUnknown, StaleWrite.
        """
        target = {"tenant_id": tenant_id, "effect_id": effect_id}
        key = {**target, "ordinal": mutation.ordinal}
        async with self.connection() as (connection, progress):
            stored = await _lock(connection, target)
            snapshot = await self._snapshot(connection, stored, tenant_id)
            await connection.execute(sql.SAVEPOINT)
            inserted = await connection.execute(sql.INSERT_MUTATION, key)
            if await inserted.fetchone() is None:
                answer = _unrun(snapshot, mutation.ordinal)
            else:
                answer = await mutation.run(connection)
            if answer.outcome is not Outcome.COMMITTED:
                await connection.execute(sql.ROLLBACK_TO_SAVEPOINT)
            clock = await connection.execute(sql.READ_CLOCK)
            row = await clock.fetchone()
            assert row is not None, "the clock answers"
            snapshot = replace(snapshot, now=row["now"])
            change = plan(snapshot, answer)
            await _finish(connection, progress, stored, snapshot, change, self._signer)
        self._observer.changed(snapshot, change)
        return change.result

    async def payload(
        self, tenant_id: UUID, effect_id: UUID, kind: str, ref: str = ""
    ) -> Sealed | None:
        """Return stored ciphertext, None where there is none or it was erased.

        Raises:
            StoreUnavailable.
        """
        target = {"tenant_id": tenant_id, "effect_id": effect_id, "kind": kind, "ref": ref}
        async with self.connection() as (connection, _):
            async with connection.pipeline():
                await connection.execute(sql.BEGIN_READ)
                await connection.execute(sql.SET_TENANT, target)
                cursor = await connection.execute(sql.READ_PAYLOAD, target)
                await connection.execute(sql.COMMIT)
            row = await cursor.fetchone()
        return None if row is None else sealed_of(row, "payload")

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[Connection, Progress]]:
        """Give a pooled connection, for this package alone; errors come out as the store's."""
        try:
            with store_errors() as progress:
                async with session(self._pool) as connection:
                    yield connection, progress
        except StoreError as problem:
            self._observer.failed(problem)
            raise

    async def _snapshot(
        self, connection: Connection, stored: StoredEffect, tenant_id: UUID
    ) -> Snapshot:
        intent = intent_of(stored.intent)
        assert intent.tenant_id == tenant_id, "every query names its tenant"
        document = await self._document(connection, intent.contract_digest)
        return Snapshot(
            intent=intent,
            facts=await self._facts(connection, stored, document),
            attempts=tuple(attempt_of(row) for row in stored.attempts),
            evidence=tuple(evidence_of(row) for row in stored.evidence),
            document=document,
            now=cast(datetime, stored.context["now"]),
            wire=sealed_of(stored.context, "wire"),
            operation=sealed_of(stored.context, "operation"),
            mutation_ordinal=stored.context["mutation_ordinal"],
            parked=stored.intent["parked"],
            alert=Alert(stored.intent["alert"]) if stored.intent["alert"] else None,
            urgency=urgency_of(stored.intent),
        )

    async def _facts(
        self, connection: Connection, stored: StoredEffect, document: ContractDocument
    ) -> Facts:
        """What `decide` reads. The certificates are read last: one that was revoked meanwhile does
        not count, and its expiry is judged on the clock of the snapshot."""
        facts = facts_of(stored)
        if document.policy().certificate is None:
            return facts
        found = await self._certificates.of_contract(connection, document.digest())
        return replace(facts, certificates=found)

    async def _paced(
        self, connection: Connection, snapshot: Snapshot, identity_of: IdentityOf
    ) -> Snapshot:
        """Lock the contract's target, last of all, and show its pace as of then.

        Others may have held that lock for a while. Nothing keeps a certificate from being revoked
        meanwhile, so that it is looked for again.
        """
        intent, document = snapshot.intent, snapshot.document
        identity = identity_of(document)
        pace, now = await lock_pace(connection, intent.tenant_id, intent.contract_name, identity)
        facts = replace(snapshot.facts, pace=pace)
        if document.policy().certificate is not None:
            found = await self._certificates.of_contract(connection, document.digest())
            facts = replace(facts, certificates=found)
        return replace(snapshot, now=now, facts=facts)

    async def _document(self, connection: Connection, digest: bytes) -> ContractDocument:
        if (known := self._documents.get(digest)) is not None:
            return known
        cursor = await connection.execute(sql.READ_CONTRACT, {"digest": digest})
        row = await cursor.fetchone()
        assert row is not None, "a foreign key holds the contract of every intent"
        return self.remember_document(digest, row["document"])

    def remember_document(self, digest: bytes, stored: str) -> ContractDocument:
        """Return a stored document, parsed once per process; for this package alone."""
        known = self._documents.get(digest)
        if known is None:
            known = ContractDocument.from_canonical(stored.encode())
            self._documents[digest] = known
        return known


_SUBMISSION_COLUMNS = (
    "tenant_id",
    "effect_id",
    "operation_key",
    "tool",
    "request_hash",
    "contract_name",
    "contract_version",
    "contract_digest",
    "downstream_key",
    "hmac_key_id",
    "wire_digest",
    "requested_by",
    "trace_id",
    "traceparent",
    "send_before",
    "parent_id",
    "compensates_id",
)

_FACT_READS = (sql.READ_ATTEMPTS, sql.READ_EVIDENCE, sql.READ_CONTEXT)


async def _lock(connection: Connection, target: dict[str, Any]) -> StoredEffect:
    """Begin, take the locks in their order, and read the facts: two round trips.

    The last read goes alone. psycopg may end a pipeline with a Flush behind its Sync, and a server
    that has read one no longer counts the session as idle: `idle_in_transaction_session_timeout`
    would never end the transaction of a stopped process, and its successor would wait for ever.
    """
    async with connection.pipeline():
        await connection.execute(sql.BEGIN)
        intent = await connection.execute(sql.LOCK_EFFECT, target)
        reads = [await connection.execute(read, target) for read in _FACT_READS[:-1]]
    reads.append(await connection.execute(_FACT_READS[-1], target))
    return await _stored_effect(intent, reads)


async def _stored_effect(intent: Any, reads: list[Any]) -> StoredEffect:
    row = await intent.fetchone()
    if row is None:
        raise EffectMissing("no such effect of this tenant")
    attempts, evidence, context = reads
    context_row = await context.fetchone()
    assert context_row is not None, "the context of a locked effect is one row"
    return StoredEffect(row, await attempts.fetchall(), await evidence.fetchall(), context_row)


async def _finish(
    connection: Connection,
    progress: Progress,
    stored: StoredEffect,
    snapshot: Snapshot,
    change: Change[Any],
    signer: Signer | None,
) -> None:
    """Write and commit in one round trip, or let go where the plan writes nothing."""
    if not change.writes:
        await connection.execute(sql.ROLLBACK)
        return
    intent, policy = snapshot.intent, snapshot.document.policy()
    urgency = urgency_after(
        snapshot.urgency, intent.state, snapshot.attempts, change.writes, policy
    )
    planned: Iterator[Statement] = statements_for(
        intent, stored.intent, change.writes, snapshot.now, urgency
    )
    statements = list(planned)
    if signer is not None:
        statements += signature_statements(signer, intent, change.writes)
    async with connection.pipeline():
        # From here on a lost connection leaves open whether COMMIT has arrived.
        progress.committing = True
        for statement, parameters in statements:
            await connection.execute(statement, parameters)
        await connection.execute(sql.COMMIT)


def _unrun(snapshot: Snapshot, ordinal: int) -> Answer:
    """The answer of a mutation that did not run, since its key could not be inserted."""
    if snapshot.mutation_ordinal == ordinal:
        return Answer(outcome=Outcome.COMMITTED, code=CODE_ALREADY_MUTATED)
    code = CODE_FENCED if snapshot.mutation_ordinal is None else CODE_ALREADY_MUTATED
    return Answer(outcome=Outcome.NOT_SENT, code=code, bytes_may_have_left=False)
