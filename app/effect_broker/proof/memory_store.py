"""The store in memory, for the simulator only: no process keeps effects in it.

It implements the port of `effect_broker.protocol.ports` and passes the same conformance suite as
Postgres. Its clock is given, so that a simulation owns time. A transaction is one critical
section of the effect: a change that meets another one under way waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar, assert_never
from uuid import UUID

from effect_adapters.base import Answer
from effect_broker.proof.memory_certificates import MemoryCertificates, has_come
from effect_broker.proof.memory_paces import MemoryPaces
from effect_broker.proof.memory_rows import evidence_row, unrun
from effect_broker.protocol import election
from effect_broker.protocol.ports import (
    Acknowledge,
    AddApproval,
    AddEvidence,
    AddReceipt,
    AddResolution,
    Advance,
    AskToCancel,
    AskToReconcile,
    AttemptRow,
    BindTarget,
    BindWire,
    Change,
    EffectMissing,
    EvidenceRow,
    ExtendAttempt,
    FenceMutation,
    FreezeContract,
    IdentityOf,
    Intent,
    KeepPace,
    LoseAttempt,
    Mutation,
    Plan,
    RecordOutcome,
    Requeue,
    Sealed,
    Snapshot,
    StaleWrite,
    StartAttempt,
    StorePayload,
    Urgency,
    Write,
)
from effect_broker.protocol.progress import adds_a_fact
from effect_broker.protocol.submission import Elected, FirstElection, Submission, Submitted
from effect_broker.protocol.urgency import NO_URGENCY, urgency_after
from effect_contracts.decision import Reason
from effect_contracts.document import ContractDocument
from effect_contracts.facts import (
    FINAL_STATES,
    Alert,
    Attempt,
    Certified,
    Conclusion,
    EffectState,
    EvidenceSource,
    Facts,
    Hold,
    Outcome,
    SafetyClass,
)

T = TypeVar("T")

# The holds that stand in a row of their own, which somebody lifts by changing that row.
_HOLD_REASONS = frozenset(
    {Hold.PAUSED.value, Hold.FROZEN.value, Hold.TENANT_DISABLED.value, Hold.DATABASE_RESTORED.value}
)


@dataclass
class MemoryEvent:
    """One appended event."""

    sequence: int
    advance: Advance
    at: datetime


@dataclass
class _Row:
    """All that is stored of one effect."""

    intent: Intent
    send_before: datetime | None
    attempts: list[AttemptRow] = field(default_factory=list)
    evidence: list[EvidenceRow] = field(default_factory=list)
    payloads: dict[tuple[str, str], Sealed] = field(default_factory=dict)
    events: list[MemoryEvent] = field(default_factory=list)
    receipt: AddReceipt | None = None
    mutations: dict[int, str] = field(default_factory=dict)
    parked: bool = False
    alert: Alert | None = None
    urgency: Urgency = NO_URGENCY
    resolutions: list[AddResolution] = field(default_factory=list)
    failed_by_operator: bool = False
    reconcile_asked_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    approvals: list[AddApproval] = field(default_factory=list)
    approved_at: datetime | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class MemoryStore:
    """An `EffectStore` without a database.

    Args:
        now: the database clock of the simulated world.
        enqueue: called for every run that a commit starts, with tenant, effect and generation.
    """

    def __init__(
        self,
        now: Callable[[], datetime],
        enqueue: Callable[[UUID, UUID, int], None] = lambda *_: None,
    ) -> None:
        self._now = now
        self._enqueue = enqueue
        self._rows: dict[UUID, _Row] = {}
        self._documents: dict[bytes, ContractDocument] = {}
        self._active: dict[str, bytes] = {}
        self.frozen: set[tuple[UUID, str, str]] = set()
        self.holds: set[Hold] = set()
        self.certificates = MemoryCertificates(now)
        self.paces = MemoryPaces()

    # Contracts and submit --------------------------------------------------------------------

    def apply_contract(self, document: ContractDocument) -> None:
        """Store a document and make it the active one of its tool."""
        self._documents[document.digest()] = document
        self._active[document.tool] = document.digest()

    async def active_contract(self, tool: str) -> ContractDocument | None:
        """Return the active contract of a tool."""
        digest = self._active.get(tool)
        return self._documents[digest] if digest else None

    def forget_contract(self, tool: str) -> None:
        """Nothing is remembered here."""

    async def submit(self, submission: Submission) -> Submitted:
        """Store an intent, or return the one that holds the key."""
        row = self._rows.get(submission.effect_id)
        if row is not None:
            return Submitted(created=False, intent=row.intent)
        intent = self._stored(submission)
        self._enqueue(submission.tenant_id, submission.effect_id, 1)
        return Submitted(created=True, intent=intent)

    async def elect_first(self, submission: Submission, first: FirstElection) -> Elected:
        """See `effect_broker.protocol.submission.ElectionStore`."""
        known = self._rows.get(submission.effect_id)
        if known is not None:
            return Elected(False, known.intent)
        self._stored(submission)
        row = self._rows[submission.effect_id]
        snapshot = self._snapshot(row)
        change = election.elect(
            snapshot,
            identity=first.target_identity,
            attempt_id=first.attempt_id,
            caller=first.caller,
            receipt_id=first.attempt_id,
        )
        if not change.result.elected:
            return Elected(True, row.intent)
        self._apply(row, change.writes)
        return Elected(True, row.intent, first, granted_at=snapshot.now)

    async def settle_first(self, snapshot: Snapshot, change: Change[Any]) -> bool:
        """See `effect_broker.protocol.submission.ElectionStore`."""
        row = self._row(snapshot.intent.tenant_id, snapshot.intent.effect_id)
        if row.intent.version != snapshot.intent.version or row.lock.locked():
            return False
        self._apply(row, change.writes)
        return True

    def _stored(self, submission: Submission) -> Intent:
        now = self._now()
        intent = Intent(
            effect_id=submission.effect_id,
            tenant_id=submission.tenant_id,
            operation_key=submission.operation_key,
            tool=submission.tool,
            request_hash=submission.request_hash,
            contract_name=submission.contract_name,
            contract_version=submission.contract_version,
            contract_digest=submission.contract_digest,
            safety=submission.safety,
            downstream_key=submission.downstream_key,
            state=EffectState.PREPARED,
            version=1,
            reason="submitted",
            generation=1,
            progress_generation=1,
            next_action_at=now,
            target_identity=None,
            wire_digest=submission.wire_digest,
            created_at=now,
            updated_at=now,
        )
        row = _Row(intent, submission.send_before)
        row.payloads["arguments", ""] = submission.arguments
        if submission.wire is not None:
            row.payloads["wire", ""] = submission.wire
        self._rows[submission.effect_id] = row
        return intent

    # The port ----------------------------------------------------------------------------------

    async def load(self, tenant_id: UUID, effect_id: UUID) -> Snapshot:
        """See `EffectStore.load`."""
        return self._snapshot(self._row(tenant_id, effect_id))

    async def change(
        self,
        tenant_id: UUID,
        effect_id: UUID,
        plan: Plan[T],
        paced: IdentityOf | None = None,
        *,
        new: bool = False,
    ) -> T:
        """See `EffectStore.change`; what is new is planned as all else is."""
        row = self._row(tenant_id, effect_id)
        async with row.lock:
            snapshot = self._snapshot(row)
            if paced is not None and snapshot.document.limits is not None:
                rows = self._rows.values()
                attempts = {a.attempt_id: a.fact for other in rows for a in other.attempts}
                identity = paced(snapshot.document)
                snapshot = self.paces.shown(snapshot, identity, attempts, self.intents())
            change = plan(snapshot)
            self._apply(row, change.writes)
            return change.result

    async def mutate(
        self,
        tenant_id: UUID,
        effect_id: UUID,
        mutation: Mutation,
        plan: Callable[[Snapshot, Answer], Change[T]],
    ) -> T:
        """See `EffectStore.mutate`."""
        row = self._row(tenant_id, effect_id)
        async with row.lock:
            standing = self._snapshot(row).mutation_ordinal
            free = standing is None and mutation.ordinal not in row.mutations
            answer = await mutation.run(None) if free else unrun(standing, mutation.ordinal)
            committed = free and answer.outcome is Outcome.COMMITTED
            change = plan(self._snapshot(row), answer)
            # As a transaction: without a write of the plan's nothing stays, nor does the key.
            if change.writes:
                key = {mutation.ordinal: "mutation"} if committed else {}
                self._apply(row, change.writes, key)
            return change.result

    async def payload(
        self, tenant_id: UUID, effect_id: UUID, kind: str, ref: str = ""
    ) -> Sealed | None:
        """See `EffectStore.payload`."""
        return self._row(tenant_id, effect_id).payloads.get((kind, ref))

    # What a proof looks at -------------------------------------------------------------------

    async def intent(self, tenant_id: UUID, effect_id: UUID) -> Intent:
        """Return an intent."""
        return self._row(tenant_id, effect_id).intent

    def intents(self) -> tuple[Intent, ...]:
        """Return every intent."""
        return tuple(row.intent for row in self._rows.values())

    def receipt(self, effect_id: UUID) -> AddReceipt | None:
        """Return an effect's receipt."""
        return self._rows[effect_id].receipt

    def events(self, effect_id: UUID) -> tuple[MemoryEvent, ...]:
        """Return an effect's events."""
        return tuple(self._rows[effect_id].events)

    def snapshot(self, effect_id: UUID) -> Snapshot:
        """Return an effect as it stands."""
        return self._snapshot(self._rows[effect_id])

    def payloads_of(self, effect_id: UUID) -> dict[tuple[str, str], Sealed]:
        """Return an effect's ciphertext by kind and ref; a proof may spoil it."""
        return self._rows[effect_id].payloads

    def fences(self, effect_id: UUID) -> tuple[int, ...]:
        """Return the ordinals on whose mutation a fence stands."""
        return tuple(o for o, kind in self._rows[effect_id].mutations.items() if kind == "fence")

    def parked(self, effect_id: UUID) -> bool:
        """Return whether an effect waits for a person."""
        return self._rows[effect_id].parked

    def alert(self, effect_id: UUID) -> Alert | None:
        """Return what a person has to know of a final effect."""
        return self._rows[effect_id].alert

    # Inside ------------------------------------------------------------------------------------

    def _row(self, tenant_id: UUID, effect_id: UUID) -> _Row:
        row = self._rows.get(effect_id)
        if row is None or row.intent.tenant_id != tenant_id:
            raise EffectMissing
        return row

    def _snapshot(self, row: _Row) -> Snapshot:
        intent = row.intent
        document = self._documents[intent.contract_digest]
        latest = row.attempts[-1].fact.started_at if row.attempts else None
        probes = [
            e.fact
            for e in row.evidence
            if e.fact.source is EvidenceSource.PROBE
            and latest is not None
            and e.fact.began_at > latest
        ]
        decisive = tuple(e for e in row.evidence if e.fact.decisive)
        operations = [
            row.payloads.get(("operation", str(a.attempt_id)))
            for a in row.attempts
            if a.fact.operation
        ]
        holds = set(self.holds)
        if (intent.tenant_id, intent.contract_name, intent.contract_version) in self.frozen:
            holds.add(Hold.FROZEN)
        certificates: tuple[Certified, ...] = ()
        if document.policy().certificate is not None:
            certificates = self.certificates.in_force(intent.contract_digest)
        facts = Facts(
            attempts=tuple(a.fact for a in row.attempts),
            evidence=tuple(e.fact for e in decisive),
            probes_since_attempt=len(probes),
            probe_began_at=max((p.began_at for p in probes), default=None),
            look_up_asked_at=row.reconcile_asked_at,
            cancel_requested=row.cancel_requested_at is not None,
            failed_by_operator=row.failed_by_operator,
            holds=frozenset(holds),
            send_before=row.send_before,
            approved_at=row.approved_at,
            certificates=certificates,
            turn_at=intent.next_action_at if intent.reason == Reason.TARGET_BUSY else None,
            jitter_seed=intent.effect_id.int,
        )
        mutated = [o for o, kind in row.mutations.items() if kind == "mutation"]
        return Snapshot(
            intent=intent,
            facts=facts,
            attempts=tuple(row.attempts),
            evidence=decisive,
            document=document,
            now=self._now(),
            wire=row.payloads.get(("wire", "")),
            operation=operations[-1] if operations else None,
            mutation_ordinal=mutated[0] if mutated else None,
            parked=row.parked,
            urgency=row.urgency,
            alert=row.alert,
        )

    def _apply(
        self, row: _Row, writes: tuple[Write, ...], mutated: Mapping[int, str] | None = None
    ) -> None:
        """Apply all writes or, if one of them is refused, none."""
        copy = replace(row)
        copy.attempts, copy.evidence = list(row.attempts), list(row.evidence)
        copy.payloads, copy.events = dict(row.payloads), list(row.events)
        copy.mutations = {**row.mutations, **(mutated or {})}
        copy.resolutions, copy.approvals = list(row.resolutions), list(row.approvals)
        started: list[int] = []
        for write in writes:
            self._apply_one(copy, write, started)
        _check(copy)
        policy = self._documents[row.intent.contract_digest].policy()
        copy.urgency = urgency_after(row.urgency, row.intent.state, row.attempts, writes, policy)
        if any(isinstance(write, FreezeContract) for write in writes):
            intent = row.intent
            self.frozen.add((intent.tenant_id, intent.contract_name, intent.contract_version))
            self.certificates.found_lying(intent.contract_digest)
        for name in ("intent", "attempts", "evidence", "payloads", "events", "mutations"):
            setattr(row, name, getattr(copy, name))
        for name in (
            "receipt", "parked", "alert", "urgency", "resolutions", "failed_by_operator",
            "reconcile_asked_at", "cancel_requested_at", "approvals", "approved_at",
        ):  # fmt: skip
            setattr(row, name, getattr(copy, name))
        for write in writes:
            if isinstance(write, KeepPace):
                self.paces.keep(write, row.intent)
                for woken in self.paces.woken(write, row.intent, self.intents(), self._now()):
                    self._rows[woken.effect_id].intent = woken
        for generation in started:
            self._enqueue(row.intent.tenant_id, row.intent.effect_id, generation)

    def _apply_one(self, row: _Row, write: Write, started: list[int]) -> None:
        if adds_a_fact(write):
            row.intent = replace(row.intent, progress_generation=row.intent.generation)
        match write:
            case StartAttempt():
                self._start(row, write)
            case ExtendAttempt():
                self._extend(row, write)
            case LoseAttempt(ordinal=ordinal):
                self._lose(row, ordinal)
            case RecordOutcome():
                self._record(row, write)
            case AddEvidence():
                row.evidence.append(evidence_row(write))
            case StorePayload(kind=kind, ref=ref, sealed=sealed):
                row.payloads.setdefault((kind, ref), sealed)
            case BindTarget(target_identity=identity):
                _guard(row.intent.target_identity is None)
                row.intent = replace(row.intent, target_identity=identity)
            case BindWire(wire_digest=digest):
                _guard(row.intent.wire_digest is None)
                row.intent = replace(row.intent, wire_digest=digest)
            case FenceMutation(ordinal=ordinal):
                _guard(row.mutations.setdefault(ordinal, "fence") == "fence")
            case AddReceipt():
                _guard(row.receipt is None)
                row.receipt = write
            case AskToReconcile(asked_at=at):
                row.reconcile_asked_at = at
            case AskToCancel(asked_at=at):
                row.cancel_requested_at = row.cancel_requested_at or at
            case Acknowledge():
                row.alert = None
            case AddApproval():
                _guard(all(a.decision_id != write.decision_id for a in row.approvals))
                row.approvals.append(write)
                row.approved_at = write.at if write.approved else row.approved_at
            case AddResolution():
                _guard(all(r.decision_id != write.decision_id for r in row.resolutions))
                row.resolutions.append(write)
                failed = write.conclusion is Conclusion.FAILED
                row.failed_by_operator = row.failed_by_operator or failed
            case KeepPace(turn_at=turn_at) if turn_at is not None:
                row.intent = replace(row.intent, next_action_at=turn_at)
            case FreezeContract() | KeepPace():
                pass  # not of this row; done when all else stands
            case Requeue():
                _guard(row.intent.generation == write.expected_generation)
                generation = row.intent.generation + 1
                row.intent = replace(
                    row.intent, generation=generation, next_action_at=write.next_action_at
                )
                row.parked = False
                started.append(generation)
            case Advance():
                self._advance(row, write)
            case never:
                assert_never(never)

    def _start(self, row: _Row, write: StartAttempt) -> None:
        _guard(write.ordinal == len(row.attempts) + 1 and row.intent.state not in FINAL_STATES)
        _guard(all(a.fact.outcome is not None for a in row.attempts))  # one open attempt at most
        fact = Attempt(write.ordinal, write.started_at, write.deadline_at)
        row.attempts.append(AttemptRow(fact, write.attempt_id, write.executor_id))

    def _extend(self, row: _Row, write: ExtendAttempt) -> None:
        index = next(i for i, a in enumerate(row.attempts) if a.attempt_id == write.attempt_id)
        known = row.attempts[index]
        _guard(known.fact.outcome is None and known.fact.deadline_at < write.deadline_at)
        fact = replace(known.fact, deadline_at=write.deadline_at)
        row.attempts[index] = replace(known, fact=fact)

    def _lose(self, row: _Row, ordinal: int) -> None:
        index = next(i for i, a in enumerate(row.attempts) if a.fact.ordinal == ordinal)
        known = row.attempts[index]
        _guard(known.fact.outcome is None)
        fact = replace(known.fact, outcome=Outcome.PRESUMED_AMBIGUOUS)
        row.attempts[index] = replace(known, fact=fact)

    def _record(self, row: _Row, write: RecordOutcome) -> None:
        index = next(i for i, a in enumerate(row.attempts) if a.attempt_id == write.attempt_id)
        known = row.attempts[index]
        _guard(known.fact.outcome in {None, Outcome.PRESUMED_AMBIGUOUS})
        _guard(write.outcome is not Outcome.NOT_SENT or not write.bytes_may_have_left)
        fact = replace(
            known.fact,
            outcome=write.outcome,
            recorded_at=write.recorded_at,
            code=write.code,
            external_id=write.external_id,
            retry_after_seconds=write.retry_after_seconds,
            operation=write.operation,
        )
        row.attempts[index] = replace(known, fact=fact, result_digest=write.result_digest)

    def _advance(self, row: _Row, write: Advance) -> None:
        row.parked = write.parked
        row.alert = write.alert or row.alert
        row.intent = replace(
            row.intent,
            state=write.state,
            version=row.intent.version + 1,
            reason=write.reason,
            next_action_at=write.next_action_at,
            updated_at=self._now(),
        )
        row.events.append(MemoryEvent(row.intent.version, write, self._now()))

    async def release_certified(
        self, limit: int, identity_of: Callable[[ContractDocument], str]
    ) -> int:
        """See `effect_broker.repair.CertifiedEffects`."""
        snapshots = {row.intent.effect_id: self._snapshot(row) for row in self._rows.values()}
        waiting = [i for i, s in snapshots.items() if has_come(s, identity_of(s.document))][:limit]
        for effect_id in waiting:
            self._release(self._rows[effect_id])
        return len(waiting)

    async def release_lifted(self, limit: int) -> int:
        """See `effect_broker.repair.RunStore.release_lifted`."""
        now, released = self._now(), 0
        for row in self._rows.values():
            at = row.intent.next_action_at
            still = row.intent.reason in _HOLD_REASONS and (row.parked or (at or now) > now)
            if not still or released == limit:
                continue
            if row.intent.reason in {hold.value for hold in self._snapshot(row).facts.holds}:
                continue
            self._release(row)
            released += 1
        return released

    def _release(self, row: _Row) -> None:
        now, row.parked = self._now(), False
        row.intent = replace(row.intent, next_action_at=now, updated_at=now)

    def due(self) -> tuple[Intent, ...]:
        """Return what the reconcile loop would take up, liveness of runs left aside."""
        now = self._now()
        return tuple(
            i for i in self.intents() if i.next_action_at is not None and i.next_action_at <= now
        )


def _guard(holds: bool) -> None:
    if not holds:
        raise StaleWrite


def _check(row: _Row) -> None:
    """Refuse what the CHECKs of the schema refuse."""
    intent = row.intent
    final = intent.state in FINAL_STATES
    _guard(final == (row.receipt is not None))
    counted = intent.safety is SafetyClass.RECONCILABLE
    _guard(not final or ((intent.next_action_at is None or counted) and not row.parked))
    _guard(final or row.alert is None)
    _guard(final or row.parked == (intent.next_action_at is None))
    if intent.state in {EffectState.PREPARED, EffectState.CANCELLED}:
        _guard(not row.attempts)
    if intent.state is EffectState.DISPATCHING:
        _guard(bool(row.attempts))
