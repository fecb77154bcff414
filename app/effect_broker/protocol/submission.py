"""What a submit hands to the store and gets back: the intent before anything else exists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeVar
from uuid import UUID

from effect_broker.protocol.ports import Change, Intent, Plan, Sealed, Snapshot
from effect_contracts.canonical import JsonValue
from effect_contracts.facts import Alert, SafetyClass

T = TypeVar("T")


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
class Standing:
    """What else the row of an intent says that nothing links to other effects.

    Attributes:
        now: the database clock of the answer. The rest is as in `effect_broker.reading`.
    """

    parked: bool
    requested_by: str
    trace_id: str | None
    preview: Mapping[str, JsonValue] = field(repr=False)
    receipt_digest: bytes | None
    alert: Alert | None
    now: datetime


@dataclass(frozen=True, slots=True)
class Submitted:
    """The intent of an operation key, new or as it stood.

    Attributes:
        created: False where the operation key existed; `intent` is then the stored one, and
            whether it was the same request is for the caller to judge.
        enqueued: whether a run was put into the engine's queue now; if not, reconcile does it.
        standing: so that an answer needs no second read; None where it needs one.
    """

    created: bool
    intent: Intent
    enqueued: bool = False
    standing: Standing | None = None


@dataclass(frozen=True, slots=True)
class FirstElection:
    """The first attempt of a new effect, which its caller makes.

    Attributes:
        caller: how the caller is named as the sender.
        reason: of the decision that grants it, where no hold stands in the way.
    """

    attempt_id: UUID
    caller: str
    target_identity: str
    lease_seconds: float
    clock_margin_seconds: float
    key_retention_seconds: float | None
    reason: str
    lease_extends: bool


@dataclass(frozen=True, slots=True)
class Elected:
    """The intent of an operation key, new or as it stood.

    Attributes:
        first: where its attempt was granted.
        granted_at: when, by the database clock.
    """

    created: bool
    intent: Intent
    first: FirstElection | None = None
    granted_at: datetime | None = None


class ElectionStore(Protocol):
    """Where callers are elected."""

    async def elect_first(self, submission: Submission, first: FirstElection) -> Elected:
        """Store a new intent with its first attempt, in one commit; an intent that stands, and a
        new one that is held, are returned without an attempt.

        Idempotent: after any error the same may be asked again.

        Raises:
            StoreUnavailable, StoreBusy, CommitUnknown, ContractMoved.
        """

    async def settle_first(self, snapshot: Snapshot, change: Change[Any]) -> bool:
        """Write a success that was planned on what `elect_first` has left, without reading it.

        `snapshot.now` is a moment of the database clock as this process measures it. False, and
        nothing was written, where it is not, where the effect has moved since, and where `change`
        is no plain success: then it is to be planned under the lock.

        Raises:
            StoreUnavailable, StoreBusy, CommitUnknown.
        """

    async def submit(self, submission: Submission) -> Submitted:
        """See `SubmitStore`."""

    async def change(self, tenant_id: UUID, effect_id: UUID, plan: Plan[T]) -> T:
        """See `effect_broker.protocol.ports.EffectStore`."""


class SubmitStore(Protocol):
    """Where intents are made."""

    async def submit(self, submission: Submission) -> Submitted:
        """Store the intent with its first event, payloads and run, or return the stored one.

        Idempotent: after any error the same submission may be made again.

        Raises:
            StoreUnavailable, StoreBusy, CommitUnknown.
        """
