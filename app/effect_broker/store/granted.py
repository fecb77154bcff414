"""What a grant has left, and the success that is planned on it: one statement for transaction 2.

A process that has granted an attempt knows the effect as its commit has left it. Every fact bumps
the version, so that a success may be planned on that memory and be written by compare-and-set on
the version, without reading anything first. Where anything has happened meanwhile, nothing is
written, and the outcome is planned under the lock as every other change is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from effect_broker.protocol.ports import (
    AddReceipt,
    Advance,
    AttemptRow,
    BindTarget,
    Change,
    RecordOutcome,
    Signer,
    Snapshot,
    StartAttempt,
    StorePayload,
    Write,
)
from effect_broker.store.statements import OF_TENANT
from effect_contracts.canonical import canonical_bytes
from effect_contracts.election import CALLER_PREFIX
from effect_contracts.facts import Attempt, EffectState, Outcome

# Grants that are remembered: as many as a worker has slots, and some kilobytes each. What leaves
# early only costs a read.
GRANTS_MAX: Final = 2_000

# One statement in autocommit mode, as for a submit. The moment has to be one of the database's
# clock, not in the future and at most a second ago.
SETTLE: Final = (
    """
SELECT effect_broker.settle_success(
    t.id, %(effect_id)s, %(version)s, %(generation)s, %(attempt_id)s, %(at)s, %(code)s,
    %(external_id)s, %(status)s, %(response_digest)s, %(result_digest)s, %(result_key_id)s,
    %(result)s, %(receipt_id)s, %(content)s, %(receipt_digest)s, %(result_ref)s, %(event)s,
    %(to_state)s, %(reason)s, %(actor)s, %(kind)s, %(metadata)s, %(next_action_at)s,
    %(signing_key_id)s, %(algorithm)s, %(signature)s) AS settled"""
    + OF_TENANT
)


def plain_grant(
    writes: tuple[Write, ...],
) -> tuple[StartAttempt, BindTarget | None, Advance] | None:
    """Return the parts of a worker's grant that writes nothing else, None for other changes."""
    match writes:
        case (StartAttempt() as started, Advance() as advance):
            bound = None
        case (StartAttempt() as started, BindTarget() as bound, Advance() as advance):
            pass
        case _:
            return None
    if started.executor_id.startswith(CALLER_PREFIX):
        return None
    return started, bound, advance


def settlement(
    snapshot: Snapshot, change: Change[Any], signer: Signer | None
) -> dict[str, Any] | None:
    """Return the parameters of `SETTLE` where a change is a plain success, None for others."""
    match change.writes:
        case (
            RecordOutcome(outcome=Outcome.COMMITTED, operation=False) as outcome,
            StorePayload(kind="result") as payload,
            AddReceipt() as receipt,
            Advance(state=EffectState.SUCCEEDED, alert=None) as advance,
        ):
            pass
        case _:
            return None  # something else follows from it than a plain success
    intent = snapshot.intent
    signature = None if signer is None else signer.sign(receipt.content)
    return {
        "tenant_id": intent.tenant_id,
        "effect_id": intent.effect_id,
        "version": intent.version,
        "generation": intent.generation,
        "attempt_id": outcome.attempt_id,
        "at": snapshot.now,
        "code": outcome.code,
        "external_id": outcome.external_id,
        "status": outcome.status,
        "response_digest": outcome.response_digest,
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


@dataclass(frozen=True, slots=True)
class _Left:
    """An effect as a grant has left it, and when (on the boot clock) its moment was known."""

    snapshot: Snapshot
    known_at_seconds: float


class Grants:
    """The grants of this process whose outcome has not been written yet.

    Args:
        boot_seconds: a clock that never goes back.
    """

    def __init__(self, boot_seconds: Callable[[], float], grants_max: int = GRANTS_MAX) -> None:
        self._boot_seconds = boot_seconds
        self._max = grants_max
        self._left: OrderedDict[UUID, _Left] = OrderedDict()

    def moment(self) -> float:
        """Return the boot clock; to be read when the snapshot of a change has just arrived."""
        return self._boot_seconds()

    def remember(self, snapshot: Snapshot, change: Change[Any], known_at_seconds: float) -> None:
        """Keep what a committed change has left, if it is a plain grant."""
        granted = plain_grant(change.writes)
        if granted is None:
            return
        left = _after(snapshot, *granted)
        self._left[snapshot.intent.effect_id] = _Left(left, known_at_seconds)
        while len(self._left) > self._max:
            self._left.popitem(last=False)

    def take(self, tenant_id: UUID, effect_id: UUID) -> Snapshot | None:
        """Return an effect as this process's grant has left it, once.

        Its moment is the database's clock as it can be known here: no later than it is.
        """
        left = self._left.pop(effect_id, None)
        if left is None or left.snapshot.intent.tenant_id != tenant_id:
            return None
        passed = timedelta(seconds=self._boot_seconds() - left.known_at_seconds)
        return replace(left.snapshot, now=left.snapshot.now + passed)


def _after(
    snapshot: Snapshot, started: StartAttempt, bound: BindTarget | None, advance: Advance
) -> Snapshot:
    """Return the effect after a plain grant, as the next reader would see it."""
    intent = snapshot.intent
    attempt = Attempt(started.ordinal, started.started_at, started.deadline_at)
    row = AttemptRow(attempt, started.attempt_id, started.executor_id)
    return replace(
        snapshot,
        intent=replace(
            intent,
            state=advance.state,
            version=intent.version + 1,
            reason=advance.reason,
            progress_generation=intent.generation,
            next_action_at=advance.next_action_at,
            target_identity=intent.target_identity if bound is None else bound.target_identity,
            updated_at=snapshot.now,
        ),
        facts=replace(
            snapshot.facts,
            attempts=(*snapshot.facts.attempts, attempt),
            probes_since_attempt=0,
            probe_began_at=None,
        ),
        attempts=(*snapshot.attempts, row),
        parked=False,
        wire=None,  # it is sent already, and not small
    )
