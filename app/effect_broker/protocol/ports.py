"""The ports of the protocol: what a store, a vault, a clock and a process must offer.

The step bodies know these and nothing behind them, so that production and the simulator run the
same code. A store owns no rule. It locks an effect, shows it as a `Snapshot`, lets a pure function
plan the writes, and commits all of them or none. Every legal write is one class below; there is
no way to set a state but `Advance`, whose state comes from `effect_contracts.life`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

from effect_adapters.base import Adapter, Answer, Reach, TransactionalAdapter
from effect_contracts.document import ContractDocument
from effect_contracts.facts import (
    Alert,
    Attempt,
    Conclusion,
    EffectState,
    Evidence,
    EvidenceSource,
    Facts,
    Outcome,
    SafetyClass,
    Verdict,
)
from effect_contracts.life import LifeEvent
from effect_contracts.pacing import Pace

T = TypeVar("T")


# What a store shows ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sealed:
    """Ciphertext with the id of the key that opens it (AES-256-GCM, nonce first)."""

    key_id: str
    ciphertext: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Intent:
    """One row of `effect_intents`: the identity of an effect and where it stands.

    Attributes:
        version: the fence; every change that adds a fact raises it by one.
        reason: the stored reason of the latest decision.
        generation: number of the run that may drive the effect now, from 1.
        progress_generation: the generation in which the latest fact was added.
        next_action_at: when the broker acts next; None where it waits for a person, and where it
            is final unless the target has to be counted once more (`effect_contracts.audit`).
        target_identity: origin and account of the first attempt, once there is one.
        wire_digest: SHA-256 of the stored wire request.
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
    state: EffectState
    version: int
    reason: str
    generation: int
    progress_generation: int
    next_action_at: datetime | None
    target_identity: str | None
    wire_digest: bytes | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """An attempt as stored: the fact, and what identifies it."""

    fact: Attempt
    attempt_id: UUID
    executor_id: str
    result_digest: bytes | None = None


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    """Decisive evidence as stored."""

    fact: Evidence
    result_digest: bytes | None = None


@dataclass(frozen=True, slots=True)
class Urgency:
    """What the order of the unresolved effects needs (`effect_broker.protocol.urgency`).

    A store keeps it with the intent's row and makes it anew at every change; a settled effect has
    none of it.

    Attributes:
        key_expires_at: when the target may forget our key; None without a key's retention, and
            while nothing may have been sent.
        open_until: until when the open attempt may still be sending; None without one.
        sender_lost: an attempt whose sender was lost is not cleared yet.
    """

    key_expires_at: datetime | None = None
    open_until: datetime | None = None
    sender_lost: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An effect as one transaction saw it.

    Attributes:
        facts: what `decide` reads; holds of the database (pause, freeze, tenant) are included.
        document: the pinned contract.
        now: the database clock, read after the lock was granted.
        wire: the sealed wire request, None where none is stored yet.
        operation: the sealed reference of an accepted operation, if any.
        mutation_ordinal: ordinal under which the transactional mutation has committed.
        parked: nothing happens by itself; a person or new evidence ends it.
        alert: what a person has to know of a final effect, until somebody has dealt with it.
    """

    intent: Intent
    facts: Facts
    attempts: tuple[AttemptRow, ...]
    evidence: tuple[EvidenceRow, ...]
    document: ContractDocument
    now: datetime
    wire: Sealed | None
    operation: Sealed | None
    mutation_ordinal: int | None
    parked: bool = False
    urgency: Urgency = Urgency()
    alert: Alert | None = None


# The legal writes --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Grant one permission to send (`ON CONFLICT (effect_id, ordinal) DO NOTHING`)."""

    attempt_id: UUID
    ordinal: int
    executor_id: str
    started_at: datetime
    deadline_at: datetime
    target_identity: str


@dataclass(frozen=True, slots=True)
class ExtendAttempt:
    """The lease of an open attempt of a caller lasts longer; it never gets shorter."""

    attempt_id: UUID
    deadline_at: datetime


@dataclass(frozen=True, slots=True)
class LoseAttempt:
    """A successor closes an open attempt past its deadline as `presumed_ambiguous`."""

    ordinal: int


@dataclass(frozen=True, slots=True)
class RecordOutcome:
    """The process that sent records what it saw; over nothing or `presumed_ambiguous` only."""

    attempt_id: UUID
    outcome: Outcome
    code: str
    recorded_at: datetime
    external_id: str | None
    retry_after_seconds: float | None
    operation: bool
    bytes_may_have_left: bool
    response_digest: str | None
    status: int | None
    result_digest: bytes | None


@dataclass(frozen=True, slots=True)
class AddEvidence:
    """A fact about the target that is not an attempt's own answer."""

    evidence_id: UUID
    source: EvidenceSource
    verdict: Verdict
    code: str
    began_at: datetime
    covers_through: int
    external_ids: tuple[str, ...]
    target_identity: str | None
    response_digest: str | None
    result_digest: bytes | None


@dataclass(frozen=True, slots=True)
class StorePayload:
    """Ciphertext that belongs to the effect; `kind` and `ref` identify it (first one wins).

    Attributes:
        kind: `arguments`, `wire`, `operation` or `result`.
        ref: empty for arguments and wire, else the attempt's or the evidence's id.
    """

    kind: str
    ref: str
    sealed: Sealed


@dataclass(frozen=True, slots=True)
class BindTarget:
    """Fix the target's identity at the first attempt; it never changes afterwards."""

    target_identity: str


@dataclass(frozen=True, slots=True)
class BindWire:
    """Fix the digest of the wire request; it never changes afterwards."""

    wire_digest: bytes


@dataclass(frozen=True, slots=True)
class FenceMutation:
    """Stand on the key of a transactional attempt, so that its transaction cannot commit."""

    ordinal: int


@dataclass(frozen=True, slots=True)
class AddReceipt:
    """The immutable record of a settled effect: canonical JSON content and its SHA-256."""

    receipt_id: UUID
    content: bytes
    digest: bytes
    result_ref: str | None


@dataclass(frozen=True, slots=True)
class AddResolution:
    """What a person has concluded: canonical JSON content and its SHA-256, once per decision id.

    `failed` also marks the effect, so that `decide` honours it whatever else is known.
    """

    decision_id: str
    evidence_id: UUID
    conclusion: Conclusion
    content: bytes
    digest: bytes
    actor: str


@dataclass(frozen=True, slots=True)
class AskToReconcile:
    """Somebody has asked for a look now. It counts as progress: runs that failed start anew."""

    asked_at: datetime


@dataclass(frozen=True, slots=True)
class AskToCancel:
    """Somebody has asked to withdraw the effect; it counts while there is no attempt."""

    asked_at: datetime


@dataclass(frozen=True, slots=True)
class AddApproval:
    """What a person has decided before the first attempt: canonical JSON and its SHA-256.

    An approval counts from `at` on, the latest one; a denial says only why the effect ends.
    """

    decision_id: str
    approved: bool
    content: bytes
    digest: bytes
    actor: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """A person has dealt with the effect's alert; it goes from the effect's row."""

    alert: Alert
    reason: str
    actor: str


@dataclass(frozen=True, slots=True)
class FreezeContract:
    """Stop automatic redispatch of this tenant's contract version."""

    reason: str


@dataclass(frozen=True, slots=True)
class Requeue:
    """Start the next generation's run, in the same commit (compare-and-set on generation)."""

    expected_generation: int
    next_action_at: datetime


@dataclass(frozen=True, slots=True)
class KeepPace:
    """What an attempt, or a turn, leaves at a target that the contract limits.

    Attributes:
        attempt_id: of the attempt that was granted; None where the effect got a turn.
        open_until: until when that attempt may still be sending.
        turn_at: the next turn of an effect whose turn came in vain. It becomes the next action and
            moves nothing else: as an event, a slow target would fill histories with them.
        wakes: so many of the tenant's effects whose turn is further away than `WAKE_SECONDS` are
            due now, those that would be next.
    """

    target_identity: str
    pace: Pace
    attempt_id: UUID | None = None
    open_until: datetime | None = None
    turn_at: datetime | None = None
    wakes: int = 0


@dataclass(frozen=True, slots=True)
class Advance:
    """Raise the version, set the state that `life.move` gave, and append the event.

    Attributes:
        parked: nothing happens by itself; a person or new evidence ends it.
        actor: `worker:<executor>`, `operator:<credential>`, `caller:<credential>`, …
        kind: what happened, for the event (`attempt_started`, `outcome_recorded`, …).
        alert: what a person has to know of a final effect; None leaves what is stored.
        metadata: ids, ordinals, states and codes only; never arguments, answers or secrets.
    """

    event: LifeEvent
    state: EffectState
    reason: str
    next_action_at: datetime | None
    parked: bool
    actor: str
    kind: str
    metadata: Mapping[str, str | int | float | bool | None]
    alert: Alert | None = None


Write = (
    StartAttempt
    | ExtendAttempt
    | LoseAttempt
    | RecordOutcome
    | AddEvidence
    | StorePayload
    | BindTarget
    | BindWire
    | FenceMutation
    | AddReceipt
    | AddResolution
    | AskToReconcile
    | AskToCancel
    | AddApproval
    | Acknowledge
    | FreezeContract
    | Requeue
    | KeepPace
    | Advance
)


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """The writes of one transaction, applied in order, and what the caller gets to know."""

    result: T
    writes: tuple[Write, ...] = ()


Plan = Callable[[Snapshot], Change[T]]

# Whose turn is nearer than this is in its run already, and sleeps (`steps.BUSY_WAIT_SECONDS`).
WAKE_SECONDS = 1.0

# How the target of a contract is named where it would be sent to.
IdentityOf = Callable[[ContractDocument], str]


# What a store may raise ----------------------------------------------------------------------


class StoreError(Exception):
    """The store could not do it; the text names no argument and no secret."""


class StoreUnavailable(StoreError):
    """The store is not reachable or refuses writes; nothing was committed. Try again later."""


class StoreBusy(StoreError):
    """A lock was not granted in time; nothing was committed. Try again later."""


class CommitUnknown(StoreError):
    """The answer to COMMIT was lost: the change has happened or it has not."""


class EffectMissing(StoreError):
    """There is no such effect for this tenant."""


class ContractMoved(StoreError):
    """The contract of a submission is no longer the active one of its tool; nothing was stored."""


class LinkRefusal(StrEnum):
    """Why an effect cannot belong to another one."""

    MISSING = "missing"
    ANOTHER = "another"
    NOT_COMPENSABLE = "not_compensable"


class LinkRefused(StoreError):
    """A submit names an effect that it cannot belong to; nothing was stored."""

    def __init__(self, why: LinkRefusal) -> None:
        super().__init__(why.value)
        self.why = why


class StaleWrite(StoreError):
    """A guarded write changed no row although the plan was made under the lock: a bug, or a
    hand in the database. Nothing was committed."""


# The ports ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mutation:
    """A transactional mutation to run inside a change, before its plan is made.

    Attributes:
        ordinal: the attempt; its key is inserted first, and a fence on it answers `not_sent`.
        run: performs the mutation on the store's own connection.
    """

    ordinal: int
    run: Callable[[Any], Awaitable[Answer]]


class EffectStore(Protocol):
    """The authority over effects. Implementations pass one conformance suite."""

    async def load(self, tenant_id: UUID, effect_id: UUID) -> Snapshot:
        """Return the effect without a lock.

        Raises:
            EffectMissing, StoreUnavailable.
        """

    async def change(
        self,
        tenant_id: UUID,
        effect_id: UUID,
        plan: Plan[T],
        paced: IdentityOf | None = None,
        *,
        new: bool = False,
    ) -> T:
        """Lock the effect's row, then its contract's control row; plan; write; commit durably.

        `paced` is for a plan that would send: where the contract limits its target, that target
        (which `paced` names) is locked as well, last, and the facts hold its pace. `new` says that
        the effect is likely to be as its submit has left it: a store may then plan on what it reads
        without a lock, if it writes only what that plan would have written under the lock.
        A plan without writes commits nothing. A transaction that certainly did not commit and
        failed on a lost connection, a deadlock or a serialization failure is not retried here.

        Raises:
            EffectMissing, StoreUnavailable, StoreBusy, CommitUnknown, StaleWrite.
        """

    async def mutate(
        self,
        tenant_id: UUID,
        effect_id: UUID,
        mutation: Mutation,
        plan: Callable[[Snapshot, Answer], Change[T]],
    ) -> T:
        """Like `change`, with a transactional mutation in the same transaction; raises as it."""

    async def payload(
        self, tenant_id: UUID, effect_id: UUID, kind: str, ref: str = ""
    ) -> Sealed | None:
        """Return stored ciphertext, None where there is none or it was erased.

        Raises:
            StoreUnavailable.
        """


class Vault(Protocol):
    """Encrypts what belongs to an effect; binds it to tenant, effect and column."""

    def seal(self, tenant_id: UUID, effect_id: UUID, column: str, plain: bytes) -> Sealed:
        """Encrypt under the active key."""

    def unseal(self, tenant_id: UUID, effect_id: UUID, column: str, sealed: Sealed) -> bytes:
        """Decrypt.

        Raises:
            VaultError: unknown key id, or the ciphertext does not belong here.
        """


class VaultError(Exception):
    """A payload cannot be opened; the text names the key id and nothing of the content."""


@dataclass(frozen=True, slots=True)
class ReceiptSignature:
    """A signature of a receipt's content (`effect_contracts.signed_receipts`)."""

    key_id: str
    algorithm: str
    signature: bytes


class Signer(Protocol):
    """Signs what this broker settles. A process without a signing key has none."""

    def sign(self, content: bytes) -> ReceiptSignature:
        """Sign a receipt's content with the active key."""


class Clock(Protocol):
    """The process's clock. It measures budgets; it judges no deadline of the protocol."""

    def boot_seconds(self) -> float:
        """Return CLOCK_BOOTTIME (CLOCK_MONOTONIC where there is none) in seconds."""

    async def sleep(self, seconds: float) -> None:
        """Wait for the whole time."""


class Process(Protocol):
    """The process incarnation that runs the steps."""

    @property
    def executor_id(self) -> str:
        """Unique for this incarnation."""

    def may_dispatch(self) -> bool:
        """False while draining, and while heartbeats have failed for their TTL."""

    async def rest(self, seconds: float) -> None:
        """Wait; returns early when the process has begun to drain."""

    async def complete(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` to its end even if the calling task is cancelled meanwhile."""


@dataclass(frozen=True, slots=True)
class Ports:
    """All that a step needs."""

    store: EffectStore
    adapters: Mapping[str, Adapter | TransactionalAdapter]
    vault: Vault
    clock: Clock
    process: Process
    new_id: Callable[[], UUID]
    reach: Reach
    # Told when a run begins to wait for its target: others may compute meanwhile.
    waits: Callable[[], None] = lambda: None
