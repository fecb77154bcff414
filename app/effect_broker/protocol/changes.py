"""Every change of an effect after its submit, as pure functions from a locked snapshot to writes.

This file owns the guards of the protocol: what must still be true, under the lock, for a write to
be made. A plan reads no clock (`snapshot.now` is the database's) and does no I/O. All plans end
in the same way (`effect_broker.protocol.conclusion`): they fold the new fact into the facts, ask
`decide` again, and write the state, the reason and the next action that follow. Facts that arrive
after the end of an effect are stored and rewrite nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from effect_adapters.base import Answer, Finding
from effect_broker.protocol.conclusion import (
    Metadata,
    Next,
    Sighting,
    View,
    add_fact,
    certificate_named,
    fact_digest_of,
    held_facts,
    hex_of,
    losses,
    needs_writing,
    outcome_digest_of,
    rows_removed,
    view,
    view_of,
    with_attempt,
    with_evidence,
    write_decision,
)
from effect_broker.protocol.ports import (
    AddEvidence,
    Advance,
    AttemptRow,
    BindTarget,
    BindWire,
    Change,
    EvidenceRow,
    FenceMutation,
    KeepPace,
    RecordOutcome,
    Requeue,
    Sealed,
    Snapshot,
    StartAttempt,
    StorePayload,
    Write,
)
from effect_contracts import operations
from effect_contracts.audit import is_count
from effect_contracts.backoff import exponential_seconds
from effect_contracts.decide import Action, Decision, Reason, deadline, decide
from effect_contracts.election import sender_actor
from effect_contracts.facts import (
    CODE_FAILURE_NOTICE,
    CODE_SEVERAL_MATCHES,
    PROVES_NO_COMMIT,
    Attempt,
    Evidence,
    EvidenceSource,
    Facts,
    Outcome,
    Verdict,
)
from effect_contracts.life import LifeEvent, is_final, move
from effect_contracts.pacing import Place
from effect_contracts.turn import place_of

# A run that comes back this often without a new fact waits longer each time, and is then shown
# to a person: something about this effect breaks its runs. The waits add up to about two hours, so
# that a wrong key ring or a restart that somebody mends meanwhile costs nobody a park.
IDLE_GENERATIONS_FREE = 3
IDLE_GENERATIONS_MAX = 20
IDLE_WAIT_CAP_SECONDS = 900.0
_IDLE_WAIT_INITIAL_SECONDS = 1.0


class GrantKind(StrEnum):
    """Whether transaction 1 gave a permission to send."""

    GRANTED = "granted"
    STALE = "stale"
    BUSY = "busy"
    OWNED = "owned"


@dataclass(frozen=True, slots=True)
class Grant:
    """The answer of transaction 1; only `granted` may send, and only once."""

    kind: GrantKind
    deadline_seconds: float = 0.0


# Reserve -----------------------------------------------------------------------------------


def conclude(
    snapshot: Snapshot, *, identity: str, expected_version: int, receipt_id: UUID, actor: str
) -> Change[View]:
    """Write a wait, a park or a settlement under compare-and-set on the version."""
    if is_final(snapshot.intent.state):
        return Change(view(snapshot, identity)[0])
    if snapshot.intent.version != expected_version:
        # To end here would leave an effect that is due without a run, for another one to find.
        return Change(replace(view(snapshot, identity)[0], next=Next.RELOAD))
    facts = held_facts(snapshot, identity)
    decision = decide(facts, snapshot.document.policy(), snapshot.now)
    if not needs_writing(snapshot, decision):
        return Change(view_of(snapshot, decision, snapshot.intent.version, snapshot.intent.state))
    return write_decision(snapshot, facts, decision, receipt_id, actor, decision.action.value, {})


def bind_wire(snapshot: Snapshot, *, wire: Sealed, wire_digest: bytes) -> Change[None]:
    """Store the wire request of an intent that was submitted without one; the first one wins."""
    if snapshot.intent.wire_digest is not None or is_final(snapshot.intent.state):
        return Change(None)
    return Change(None, (StorePayload("wire", "", wire), BindWire(wire_digest)))


# Dispatch: transaction 1 and transaction 2 ---------------------------------------------------


def grant_attempt(
    snapshot: Snapshot,
    *,
    identity: str,
    expected_version: int,
    ordinal: int,
    attempt_id: UUID,
    executor_id: str,
) -> Change[Grant]:
    """Transaction 1: grant one permission to send, or refuse.

    The decision was made on an older view. It is made again here, under the lock, on the
    database clock and with fresh facts; only the same answer is a permission.
    """
    intent = snapshot.intent
    existing = next((a for a in snapshot.attempts if a.fact.ordinal == ordinal), None)
    if existing is not None:
        # Another execution owns this attempt, even if it has lost it: its bytes may be out.
        return Change(Grant(GrantKind.OWNED))
    if intent.version != expected_version or is_final(intent.state) or snapshot.wire is None:
        return Change(Grant(GrantKind.STALE))
    facts, policy = held_facts(snapshot, identity), snapshot.document.policy()
    decision = decide(facts, policy, snapshot.now)
    found = place_of(facts, policy, snapshot.now)
    if decision.reason is Reason.TARGET_BUSY and found is not None:
        return _turn_given(snapshot, facts, decision, found, identity, executor_id)
    if decision.action is not Action.DISPATCH or decision.ordinal != ordinal:
        return Change(Grant(GrantKind.STALE))
    deadline_at = snapshot.now + timedelta(seconds=policy.attempt_deadline_seconds)
    started = StartAttempt(
        attempt_id=attempt_id,
        ordinal=ordinal,
        executor_id=executor_id,
        started_at=snapshot.now,
        deadline_at=deadline_at,
        target_identity=identity,
    )
    attempt = Attempt(ordinal, snapshot.now, deadline_at)
    advance = Advance(
        event=decision.event,
        state=move(intent.state, decision.event),
        reason=decision.reason,
        next_action_at=deadline(attempt, policy),
        parked=False,
        actor=f"worker:{executor_id}",
        kind="attempt_started",
        metadata={
            "ordinal": ordinal,
            "attempt_id": str(attempt_id),
            "wire_digest": hex_of(intent.wire_digest),
            **certificate_named(facts, policy, snapshot.now),
        },
    )
    bind: tuple[Write, ...] = ()
    if intent.target_identity is None:
        bind = (BindTarget(identity),)
    keep: tuple[Write, ...] = ()
    if found is not None:
        until = deadline(attempt, policy)
        keep = (KeepPace(identity, found.after, attempt_id, until, wakes=found.wakes),)
    writes: tuple[Write, ...] = (*losses(decision), started, *bind, *keep, advance)
    return Change(Grant(GrantKind.GRANTED, policy.attempt_deadline_seconds), writes)


def _turn_given(
    snapshot: Snapshot,
    facts: Facts,
    decision: Decision,
    found: Place,
    identity: str,
    executor_id: str,
) -> Change[Grant]:
    """What the target cannot bear now is not sent: the effect waits for a turn of its own."""
    if decision.at == snapshot.facts.turn_at:
        return Change(Grant(GrantKind.STALE))  # nobody is to ask before the turn has come
    intent = snapshot.intent
    waits_on = intent.reason == decision.reason and not decision.lost
    if waits_on and move(intent.state, decision.event) is intent.state:
        keep = KeepPace(identity, found.after, turn_at=decision.at)
        return Change(Grant(GrantKind.BUSY), (keep,))
    kind, actor = decision.action.value, f"worker:{executor_id}"
    waits = write_decision(snapshot, facts, decision, None, actor, kind, {})
    return Change(Grant(GrantKind.BUSY), (KeepPace(identity, found.after), *waits.writes))


def confirm_grant(snapshot: Snapshot, *, attempt_id: UUID) -> Change[bool]:
    """Whether the attempt stands, asked under the lock after the answer to COMMIT was lost.

    The lock makes the answer final: the transaction in question has ended one way or the other.
    """
    return Change(any(a.attempt_id == attempt_id for a in snapshot.attempts))


def record_outcome(
    snapshot: Snapshot,
    *,
    attempt_id: UUID,
    answer: Answer,
    result: Sealed | None,
    result_digest: bytes | None,
    operation: Sealed | None,
    receipt_id: UUID,
    executor_id: str,
) -> Change[View]:
    """Transaction 2: the process that sent records what it saw; idempotent.

    It fits whatever has happened meanwhile: a successor may have presumed the attempt lost, the
    effect may be parked or final. The fact is stored in every case.
    """
    row = next((a for a in snapshot.attempts if a.attempt_id == attempt_id), None)
    identity = snapshot.intent.target_identity or ""
    if row is None and is_final(snapshot.intent.state) and rows_removed(snapshot):
        return Change(view(snapshot, identity)[0])  # retention was faster than its sender
    assert row is not None, "an outcome is recorded only for an attempt that was granted"
    if row.fact.outcome not in {None, Outcome.PRESUMED_AMBIGUOUS}:
        return Change(view(snapshot, identity)[0])
    outcome = RecordOutcome(
        attempt_id=attempt_id,
        outcome=answer.outcome,
        code=answer.code,
        recorded_at=snapshot.now,
        external_id=answer.external_id,
        retry_after_seconds=answer.retry_after_seconds,
        operation=answer.operation is not None,
        bytes_may_have_left=answer.bytes_may_have_left,
        response_digest=answer.response_digest,
        status=answer.status,
        result_digest=result_digest,
    )
    payloads: list[Write] = []
    if result is not None:
        payloads.append(StorePayload("result", str(attempt_id), result))
    if operation is not None:
        payloads.append(StorePayload("operation", str(attempt_id), operation))
    fact = replace(
        row.fact,
        outcome=answer.outcome,
        recorded_at=snapshot.now,
        code=answer.code,
        external_id=answer.external_id,
        retry_after_seconds=answer.retry_after_seconds,
        operation=answer.operation is not None,
    )
    known = replace(row, fact=fact, result_digest=result_digest)
    after = with_attempt(snapshot, known)
    metadata = {
        "ordinal": row.fact.ordinal,
        "outcome": answer.outcome.value,
        "code": answer.code,
        "late": row.fact.outcome is Outcome.PRESUMED_AMBIGUOUS,
        "fact_digest": outcome_digest_of(outcome, row.fact.ordinal),
    }
    return add_fact(
        after,
        (outcome, *payloads),
        receipt_id,
        sender_actor(executor_id),
        "outcome_recorded",
        metadata,
        may_have_sent=answer.outcome not in PROVES_NO_COMMIT,
    )


# Probe -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProbeStart:
    """The answer of `begin_probe`; `view` says what else to do where no probe is due."""

    view: View
    began_at: datetime | None = None
    covers_through: int = 0


def begin_probe(
    snapshot: Snapshot,
    *,
    identity: str,
    expected_version: int,
    timeout_seconds: float,
    executor_id: str,
) -> Change[ProbeStart]:
    """Compare-and-set on the version decided on, and fix when the observation began."""
    seen, decision = view(snapshot, identity)
    if snapshot.intent.version != expected_version or seen.next is not Next.PROBE:
        return Change(ProbeStart(replace(seen, next=Next.RELOAD)))
    if decision is None:
        return _begin_count(snapshot, seen, identity, timeout_seconds, executor_id)
    through = snapshot.attempts[-1].fact.ordinal
    advance = Advance(
        event=LifeEvent.EVIDENCE_SOUGHT,
        state=move(snapshot.intent.state, LifeEvent.EVIDENCE_SOUGHT),
        reason=decision.reason,
        next_action_at=snapshot.now + timedelta(seconds=timeout_seconds),
        parked=False,
        actor=f"worker:{executor_id}",
        kind="probe_started",
        metadata={"covers_through": through},
    )
    started = replace(seen, version=snapshot.intent.version + 1, state=advance.state)
    return Change(ProbeStart(started, snapshot.now, through), (*losses(decision), advance))


def _begin_count(
    snapshot: Snapshot, seen: View, identity: str, timeout_seconds: float, executor_id: str
) -> Change[ProbeStart]:
    """Begin to count a final effect at its target (`effect_contracts.audit`)."""
    actor = f"worker:{executor_id}"
    if snapshot.intent.target_identity != identity:
        # Another origin or account knows nothing of our objects.
        given_up = _count_given_up(snapshot, Reason.TARGET_CHANGED, actor)
        return Change(ProbeStart(replace(seen, next=Next.RELOAD)), (given_up,))
    through = snapshot.attempts[-1].fact.ordinal
    until = snapshot.now + timedelta(seconds=timeout_seconds)
    advance = _after_end(snapshot, until, actor, "count_started", {"covers_through": through})
    started = replace(seen, version=snapshot.intent.version + 1)
    return Change(ProbeStart(started, snapshot.now, through), (advance,))


def _count_given_up(snapshot: Snapshot, reason: Reason, actor: str) -> Advance:
    metadata = {"why": reason.value, "generation": snapshot.intent.generation}
    return _after_end(snapshot, None, actor, "count_given_up", metadata)


def _after_end(
    snapshot: Snapshot,
    next_action_at: datetime | None,
    actor: str,
    kind: str,
    metadata: Metadata,
) -> Advance:
    """Something happens to a final effect that adds no fact."""
    intent = snapshot.intent
    return Advance(
        event=LifeEvent.LATE_FACT,
        state=move(intent.state, LifeEvent.LATE_FACT),
        reason=intent.reason,
        next_action_at=next_action_at,
        parked=False,
        actor=actor,
        kind=kind,
        metadata=metadata,
    )


def open_operation(snapshot: Snapshot) -> AttemptRow | None:
    """Return the row of the attempt that `effect_contracts.operations.open_operation` names."""
    if is_final(snapshot.intent.state):
        return None  # the objects themselves are counted
    polled = operations.open_operation(snapshot.facts)
    return None if polled is None else snapshot.attempts[polled.ordinal - 1]


def add_evidence(
    snapshot: Snapshot,
    *,
    evidence_id: UUID,
    source: EvidenceSource,
    finding: Finding,
    began_at: datetime,
    covers_through: int,
    target_identity: str | None,
    result: Sealed | None,
    result_digest: bytes | None,
    receipt_id: UUID,
    actor: str,
) -> Change[View]:
    """Store a fact about the target, whoever learned it and whenever; re-derive the state."""
    row = EvidenceRow(
        Evidence(
            evidence_id=str(evidence_id),
            source=source,
            verdict=finding.verdict,
            began_at=began_at,
            covers_through=covers_through,
            external_ids=finding.external_ids,
            code=finding.code,
        ),
        result_digest,
    )
    write = AddEvidence(
        evidence_id=evidence_id,
        source=source,
        verdict=finding.verdict,
        code=finding.code,
        began_at=began_at,
        covers_through=covers_through,
        external_ids=finding.external_ids,
        target_identity=target_identity,
        response_digest=finding.response_digest,
        result_digest=result_digest,
    )
    payloads: tuple[Write, ...] = ()
    if result is not None:
        payloads = (StorePayload("result", str(evidence_id), result),)
    after = with_evidence(snapshot, row)
    metadata = {
        "source": source.value,
        "verdict": finding.verdict.value,
        "code": finding.code,
        "covers_through": covers_through,
        "evidence_id": str(evidence_id),
        "fact_digest": fact_digest_of(write),
    }
    sighting = Sighting(
        verdict=finding.verdict,
        counts=source is EvidenceSource.PROBE
        and is_count(snapshot.facts, snapshot.document.policy(), began_at),
        several=finding.code == CODE_SEVERAL_MATCHES,
        told=source is EvidenceSource.WEBHOOK,
        failure=finding.code == CODE_FAILURE_NOTICE,
    )
    return add_fact(
        after, (write, *payloads), receipt_id, actor, "evidence_added", metadata, sighting
    )


def settle_transaction(
    snapshot: Snapshot,
    *,
    identity: str,
    expected_version: int,
    evidence_id: UUID,
    receipt_id: UUID,
    actor: str,
) -> Change[View]:
    """Settle a transactional effect by its mutation key: present, or fenced now.

    As every probe, it compares the version that was decided on: a peer may have granted another
    attempt since, and a fence would take that one's key away within its deadline. The fence row
    stands on the key of every attempt so far, so that an older transaction that is still open can
    no longer commit; only then is its absence a proof.
    """
    seen, decision = view(snapshot, identity)
    stale = snapshot.intent.version != expected_version
    if decision is None or stale or decision.action is not Action.PROBE:
        return Change(replace(seen, next=Next.RELOAD))
    through = snapshot.attempts[-1].fact.ordinal
    present = snapshot.mutation_ordinal is not None
    finding = Finding(
        Verdict.COMMITTED if present else Verdict.NOT_COMMITTED,
        "mutation_key_present" if present else "mutation_key_fenced",
    )
    change = add_evidence(
        snapshot,
        evidence_id=evidence_id,
        source=EvidenceSource.TRANSACTION,
        finding=finding,
        began_at=snapshot.now,
        covers_through=through,
        target_identity=snapshot.intent.target_identity,
        result=None,
        result_digest=None,
        receipt_id=receipt_id,
        actor=actor,
    )
    if present:
        return change
    fences = tuple(FenceMutation(a.fact.ordinal) for a in snapshot.attempts)
    return Change(change.result, (*fences, *change.writes))


# Repair ------------------------------------------------------------------------------------


def requeue(snapshot: Snapshot, *, expected_generation: int, actor: str) -> Change[bool]:
    """Start the next run of a due effect that has no live one; park it if its runs keep failing.

    True if a run was started.
    """
    intent = snapshot.intent
    due = intent.next_action_at is not None and intent.next_action_at <= snapshot.now
    if not due or intent.generation != expected_generation:
        return Change(False)
    idle = intent.generation - intent.progress_generation
    if idle >= IDLE_GENERATIONS_MAX:
        stopped = _count_given_up if is_final(intent.state) else _parked
        return Change(False, (stopped(snapshot, Reason.RUN_FAILING, actor),))
    wait = 0.0
    if idle >= IDLE_GENERATIONS_FREE:
        wait = exponential_seconds(
            idle - IDLE_GENERATIONS_FREE, _IDLE_WAIT_INITIAL_SECONDS, 2.0, IDLE_WAIT_CAP_SECONDS
        )
    return Change(True, (Requeue(expected_generation, snapshot.now + timedelta(seconds=wait)),))


def _parked(snapshot: Snapshot, reason: Reason, actor: str) -> Advance:
    return Advance(
        event=LifeEvent.REVIEW_NEEDED,
        state=move(snapshot.intent.state, LifeEvent.REVIEW_NEEDED),
        reason=reason,
        next_action_at=None,
        parked=True,
        actor=actor,
        kind="parked",
        metadata={"generation": snapshot.intent.generation},
    )
