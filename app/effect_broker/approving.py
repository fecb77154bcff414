"""Approving: from a person's yes or no to a decision that stands, for every surface.

This file owns the order of the checks, as `effect_broker.resolving` does for resolutions: the same
decision again is a result and not an error; nobody approves a request of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, Protocol, TypeVar
from uuid import UUID

from effect_broker.protocol import approval as rules
from effect_broker.protocol.approval import Approval, Judged, Refusal
from effect_broker.protocol.ports import CommitUnknown, Plan, StaleWrite
from effect_broker.reading import EffectDetail
from effect_contracts.canonical import canonical_bytes
from effect_contracts.errors import (
    AnotherRequest,
    DecisionConflict,
    SecondPersonRequired,
    StorageUnavailable,
    TransitionRefused,
)

T = TypeVar("T")

# A commit whose answer was lost is read back by its decision id; two rivals may need one more.
_TRIES: Final = 4


@dataclass(frozen=True, slots=True)
class ApprovalRecord:
    """An approval or a denial as stored."""

    effect_id: UUID
    decision_id: str
    approved: bool
    digest: bytes
    actor: str
    recorded_at: datetime


class ApprovalStore(Protocol):
    """What approving asks of the store."""

    async def change(self, tenant_id: UUID, effect_id: UUID, plan: Plan[T]) -> T: ...

    async def effect(self, tenant_id: UUID, effect_id: UUID) -> EffectDetail: ...

    async def approval(self, tenant_id: UUID, decision_id: str) -> ApprovalRecord | None:
        """Return the approval or denial of a decision id of this tenant."""


@dataclass(frozen=True, slots=True)
class Approving:
    """Records approvals and denials.

    Args:
        store: as the API's role.
        new_id: makes the id of a receipt.
    """

    store: ApprovalStore
    new_id: Callable[[], UUID]

    async def decide(
        self,
        tenant_id: UUID,
        effect_id: UUID,
        *,
        approved: bool,
        decision_id: str,
        request_hash: bytes,
        reason: str,
        credential: str,
    ) -> bool:
        """Make a decision stand; True if it is new, False if it stood already.

        Raises:
            EffectMissing, SecondPersonRequired, AnotherRequest, TransitionRefused,
            DecisionConflict, StorageUnavailable, StoreError.
        """
        content = canonical_bytes(
            {
                "effect_id": str(effect_id),
                "approved": approved,
                "request_hash": request_hash.hex(),
                "reason": reason,
            }
        )
        approval = Approval(
            decision_id=decision_id,
            approved=approved,
            request_hash=request_hash,
            content=content,
            digest=hashlib.sha256(content).digest(),
            actor=f"operator:{credential}",
        )
        for _ in range(_TRIES):
            known = await self.store.approval(tenant_id, decision_id)
            if known is not None:
                if known.digest == approval.digest:
                    return False
                raise DecisionConflict
            detail = await self.store.effect(tenant_id, effect_id)
            if approved and detail.requested_by.partition(":")[2] == credential:
                raise SecondPersonRequired
            plan = partial(rules.judge, approval=approval, receipt_id=self.new_id())
            try:
                judged: Judged = await self.store.change(tenant_id, effect_id, plan)
            except (CommitUnknown, StaleWrite):
                continue  # it stands or it does not: read it back
            if judged.refusal is not None:
                # A double click: the same decision was recorded between the look and the plan.
                known = await self.store.approval(tenant_id, decision_id)
                if known is not None and known.digest == approval.digest:
                    return False
            match judged.refusal:
                case None:
                    return True
                case Refusal.ANOTHER_REQUEST:
                    raise AnotherRequest
                case Refusal.NOT_WAITING:
                    raise TransitionRefused(state=judged.state)
        raise StorageUnavailable
