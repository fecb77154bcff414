"""Approving or denying an effect before its first attempt, as a pure function to writes.

Only effects whose contract asks for it wait for an approval. It is given for the request that was
read, named by its hash, and counts for the first attempt, within the time that the contract says;
`decide` holds the effect until then. A denial withdraws the effect for good.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from uuid import UUID

from effect_broker.protocol.conclusion import write_decision
from effect_broker.protocol.ports import (
    AddApproval,
    AskToCancel,
    Change,
    Snapshot,
    Write,
)
from effect_contracts.decide import Reason, decide
from effect_contracts.facts import EffectState
from effect_contracts.life import is_final


@dataclass(frozen=True, slots=True)
class Approval:
    """What a person says, checked for form already.

    Attributes:
        decision_id: the person's own name of this decision; saying it again changes nothing.
        approved: False for a denial.
        request_hash: of the request that the person has read (SHA-256).
        content, digest: the statement in canonical JSON, and its SHA-256.
        actor: `operator:<credential>`.
    """

    decision_id: str
    approved: bool
    request_hash: bytes
    content: bytes
    digest: bytes
    actor: str


class Refusal(StrEnum):
    """Why an approval or a denial changed nothing."""

    NOT_WAITING = "not_waiting"
    ANOTHER_REQUEST = "another_request"


@dataclass(frozen=True, slots=True)
class Judged:
    """The answer; `refusal` is None where the decision stands now."""

    refusal: Refusal | None
    state: EffectState


def judge(snapshot: Snapshot, approval: Approval, *, receipt_id: UUID) -> Change[Judged]:
    """Record a person's yes or no and what follows from it, or say why not."""
    intent, policy = snapshot.intent, snapshot.document.policy()
    asks = policy.approval_valid_seconds is not None
    if not asks or is_final(intent.state) or snapshot.attempts:
        return Change(Judged(Refusal.NOT_WAITING, intent.state))
    if approval.request_hash != intent.request_hash:
        return Change(Judged(Refusal.ANOTHER_REQUEST, intent.state))
    said = AddApproval(
        decision_id=approval.decision_id,
        approved=approval.approved,
        content=approval.content,
        digest=approval.digest,
        actor=approval.actor,
        at=snapshot.now,
    )
    writes: tuple[Write, ...] = (said,)
    if approval.approved:
        facts = replace(snapshot.facts, approved_at=snapshot.now)
    else:
        facts = replace(snapshot.facts, cancel_requested=True)
        writes = (said, AskToCancel(snapshot.now))
    decision = decide(facts, policy, snapshot.now)
    if not approval.approved and decision.reason is not Reason.CANCELLED:
        # The target or a person has said something of it already, by another way.
        return Change(Judged(Refusal.NOT_WAITING, intent.state))
    metadata = {"decision_id": approval.decision_id, "digest": approval.digest.hex()}
    kind = "approved" if approval.approved else "denied"
    written = write_decision(snapshot, facts, decision, receipt_id, approval.actor, kind, metadata)
    return Change(Judged(None, written.result.state), (*writes, *written.writes))
