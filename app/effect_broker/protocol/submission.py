"""What a submit hands to the store and gets back: the intent before anything else exists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol
from uuid import UUID

from effect_broker.protocol.ports import Intent, Sealed
from effect_contracts.canonical import JsonValue
from effect_contracts.facts import SafetyClass


@dataclass(frozen=True, slots=True)
class Submission:
    """A new intent, complete: identity, pinned contract and sealed payloads.

    Attributes:
        effect_id: a pure function of tenant and operation key.
        hmac_key_id: the key under which `downstream_key` was made; stored, never recomputed.
        wire: the sealed wire request, with its `wire_digest`; both or neither.
        requested_by: who asked, as the first event's actor (`caller:<credential>`).
        send_before: no first attempt may start at or after this moment.
        parent_id: the effect that has delegated this one, of the same tenant.
        compensates_id: the effect that this one undoes when it succeeds.
        preview: what an approver is shown; no sensitive field may be in it.
    """

    effect_id: UUID
    tenant_id: UUID
    operation_key: str
    tool: str
    request_hash: bytes
    contract_name: str
    contract_version: str
    contract_digest: bytes
    safety: SafetyClass
    downstream_key: str
    hmac_key_id: str
    arguments: Sealed
    requested_by: str
    wire: Sealed | None = None
    wire_digest: bytes | None = None
    trace_id: str | None = None
    traceparent: str | None = None
    send_before: datetime | None = None
    parent_id: UUID | None = None
    compensates_id: UUID | None = None
    preview: Mapping[str, JsonValue] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Submitted:
    """The intent of an operation key, new or as it stood.

    Attributes:
        created: False where the operation key existed; `intent` is then the stored one, and
            whether it was the same request is for the caller to judge.
        enqueued: whether a run was put into the engine's queue now; if not, reconcile does it.
    """

    created: bool
    intent: Intent
    enqueued: bool = False


class SubmitStore(Protocol):
    """Where intents are made."""

    async def submit(self, submission: Submission) -> Submitted:
        """Store the intent with its first event, payloads and run, or return the stored one.

        Idempotent: after any error the same submission may be made again.

        Raises:
            StoreUnavailable, StoreBusy, CommitUnknown.
        """
