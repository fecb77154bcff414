"""From a plan's writes to statements: the whole of what one transaction sends before COMMIT.

Facts become rows at once, in order. Everything that the intent's row holds is folded first and
written by one guarded update, last but for the enqueue, so that the row's CHECKs see the end of
the change and not its middle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, assert_never

from effect_broker.protocol.ports import (
    Acknowledge,
    AddApproval,
    AddEvidence,
    AddReceipt,
    AddResolution,
    Advance,
    AskToCancel,
    AskToReconcile,
    BindTarget,
    BindWire,
    ExtendAttempt,
    FenceMutation,
    FreezeContract,
    Intent,
    KeepPace,
    LoseAttempt,
    RecordOutcome,
    Requeue,
    StaleWrite,
    StartAttempt,
    StorePayload,
    Urgency,
    Write,
)
from effect_broker.protocol.progress import adds_a_fact
from effect_broker.store import statements
from effect_broker.store.granted import plain_grant
from effect_broker.store.paces import KEEP_PACE, pace_parameters
from effect_broker.store.rows import Row
from effect_contracts.canonical import canonical_bytes
from effect_contracts.facts import Conclusion, EffectState

Statement = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Standing:
    """The columns of the intent's row that a change may move."""

    state: EffectState
    reason: str
    version: int
    generation: int
    progress_generation: int
    latest_ordinal: int
    next_action_at: datetime | None
    parked: bool
    target_identity: str | None
    wire_digest: bytes | None
    receipt_digest: bytes | None
    alert: str | None
    failed_by_operator_at: datetime | None
    reconcile_asked_at: datetime | None
    cancel_requested_at: datetime | None
    approved_at: datetime | None


def statements_for(
    intent: Intent, row: Row, writes: tuple[Write, ...], now: datetime, urgency: Urgency
) -> Iterator[Statement]:
    """Yield the statements of a change in order; `row` is the intent's locked row.

    `urgency` is that of the effect after the writes.

    Raises:
        StaleWrite: a requeue expects another generation than the locked one.
    """
    common: dict[str, Any] = {
        "tenant_id": intent.tenant_id,
        "effect_id": intent.effect_id,
        "now": now,
    }
    parameters = grant_parameters(intent, writes, now, urgency)
    if parameters is not None:
        yield statements.GRANT_ATTEMPT, parameters
        return
    standing = _Standing(
        state=intent.state,
        reason=intent.reason,
        version=intent.version,
        generation=intent.generation,
        progress_generation=intent.progress_generation,
        latest_ordinal=row["latest_ordinal"],
        next_action_at=intent.next_action_at,
        parked=row["parked"],
        target_identity=intent.target_identity,
        wire_digest=intent.wire_digest,
        receipt_digest=row["receipt_digest"],
        alert=row["alert"],
        failed_by_operator_at=row["failed_by_operator_at"],
        reconcile_asked_at=row["reconcile_asked_at"],
        cancel_requested_at=row["cancel_requested_at"],
        approved_at=row["approved_at"],
    )
    requeue: Requeue | None = None
    for write in writes:
        if isinstance(write, Requeue):
            requeue = write
        statement = _row_statement(intent, standing, write)
        standing = _folded(standing, write, now)
        if statement is not None:
            yield statement[0], {**common, **statement[1]}
    yield (
        statements.UPDATE_INTENT,
        {
            **common,
            **asdict(standing),
            "state": standing.state.value,
            "key_expires_at": urgency.key_expires_at,
            "attempt_open_until": urgency.open_until,
            "sender_lost": urgency.sender_lost,
            "expected_version": intent.version,
            "expected_generation": intent.generation,
        },
    )
    if requeue is not None:
        run = {"generation": standing.generation, "next_action_at": requeue.next_action_at}
        yield statements.ENQUEUE_RUN, {**common, **run}


def grant_parameters(
    intent: Intent, writes: tuple[Write, ...], now: datetime, urgency: Urgency
) -> dict[str, Any] | None:
    """Return what the one statement of a grant needs that nothing else goes with, else None."""
    granted = plain_grant(writes)
    if granted is None or granted[0].started_at != now:
        return None
    started, bound, advance = granted
    identity = intent.target_identity if bound is None else bound.target_identity
    return {
        "tenant_id": intent.tenant_id,
        "effect_id": intent.effect_id,
        "now": now,
        "expected_version": intent.version,
        "expected_generation": intent.generation,
        "attempt_id": started.attempt_id,
        "ordinal": started.ordinal,
        "executor_id": started.executor_id,
        "deadline_at": started.deadline_at,
        "target_identity": started.target_identity,
        "bound_identity": identity,
        "kind": advance.kind,
        "event": advance.event.value,
        "from_state": intent.state.value,
        "to_state": advance.state.value,
        "reason": advance.reason,
        "actor": advance.actor,
        "metadata": canonical_bytes(dict(advance.metadata)).decode(),
        "next_action_at": advance.next_action_at,
        "key_expires_at": urgency.key_expires_at,
        "attempt_open_until": urgency.open_until,
        "sender_lost": urgency.sender_lost,
    }


def _folded(standing: _Standing, write: Write, now: datetime) -> _Standing:
    """Return the intent's columns after a write."""
    if adds_a_fact(write):
        standing = replace(standing, progress_generation=standing.generation)
    match write:
        case StartAttempt(ordinal=ordinal):
            return replace(standing, latest_ordinal=ordinal)
        case BindTarget(target_identity=identity):
            return replace(standing, target_identity=identity)
        case BindWire(wire_digest=digest):
            return replace(standing, wire_digest=digest)
        case AddReceipt(digest=digest):
            return replace(standing, receipt_digest=digest)
        case AskToReconcile(asked_at=at):
            return replace(standing, reconcile_asked_at=at)
        case AskToCancel(asked_at=at):
            return replace(standing, cancel_requested_at=standing.cancel_requested_at or at)
        case AddApproval(approved=True, at=at):
            return replace(standing, approved_at=at)
        case KeepPace(turn_at=at) if at is not None:
            return replace(standing, next_action_at=at)
        case Acknowledge():
            return replace(standing, alert=None)
        case AddResolution(conclusion=Conclusion.FAILED):
            return replace(standing, failed_by_operator_at=now)
        case Requeue(expected_generation=expected, next_action_at=at):
            if expected != standing.generation:
                raise StaleWrite(f"requeue of generation {expected}")
            return replace(standing, generation=expected + 1, next_action_at=at, parked=False)
        case Advance():
            return replace(
                standing,
                state=write.state,
                reason=write.reason,
                version=standing.version + 1,
                next_action_at=write.next_action_at,
                parked=write.parked,
                alert=write.alert.value if write.alert else standing.alert,
            )
        case (
            LoseAttempt()
            | RecordOutcome()
            | ExtendAttempt()
            | AddEvidence()
            | StorePayload()
            | FenceMutation()
            | FreezeContract()
            | AddResolution()
            | AddApproval()
            | KeepPace()
        ):
            return standing
        case never:
            assert_never(never)


def _row_statement(intent: Intent, standing: _Standing, write: Write) -> Statement | None:
    """Return the statement of a write that has a row of its own; `standing` is from before it."""
    match write:
        case StartAttempt():
            return statements.START_ATTEMPT, asdict(write)
        case ExtendAttempt():
            return statements.EXTEND_ATTEMPT, asdict(write)
        case LoseAttempt():
            return statements.LOSE_ATTEMPT, asdict(write)
        case RecordOutcome():
            return statements.RECORD_OUTCOME, {**asdict(write), "outcome": write.outcome.value}
        case AddEvidence():
            return statements.ADD_EVIDENCE, {
                **asdict(write),
                "source": write.source.value,
                "verdict": write.verdict.value,
                "external_ids": list(write.external_ids),
            }
        case StorePayload(kind=kind, ref=ref, sealed=sealed):
            return statements.STORE_PAYLOAD, {
                "kind": kind,
                "ref": ref,
                "key_id": sealed.key_id,
                "ciphertext": sealed.ciphertext,
            }
        case FenceMutation():
            return statements.FENCE_MUTATION, asdict(write)
        case AddReceipt():
            return statements.ADD_RECEIPT, {**asdict(write), "content": write.content.decode()}
        case AddResolution():
            return statements.ADD_RESOLUTION, {
                **asdict(write),
                "conclusion": write.conclusion.value,
                "content": write.content.decode(),
            }
        case AddApproval():
            return statements.ADD_APPROVAL, {**asdict(write), "content": write.content.decode()}
        case Acknowledge(alert=alert, reason=reason, actor=actor):
            return statements.ACKNOWLEDGE, {
                "sequence": standing.version + 1,
                "alert": alert.value,
                "reason": reason,
                "actor": actor,
            }
        case FreezeContract(reason=reason):
            return statements.FREEZE_CONTRACT, {
                "contract_name": intent.contract_name,
                "contract_version": intent.contract_version,
                "contract_digest": intent.contract_digest,
                "reason": reason,
            }
        case KeepPace():
            return KEEP_PACE, pace_parameters(write, intent.contract_name)
        case Advance():
            return statements.APPEND_EVENT, {
                "sequence": standing.version + 1,
                "kind": write.kind,
                "event": write.event.value,
                "from_state": standing.state.value,
                "to_state": write.state.value,
                "reason": write.reason,
                "actor": write.actor,
                "metadata": canonical_bytes(dict(write.metadata)).decode(),
            }
        case BindTarget() | BindWire() | Requeue() | AskToReconcile() | AskToCancel():
            return None
        case never:
            assert_never(never)
