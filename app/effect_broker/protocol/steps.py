"""The three steps of a run: reserve, dispatch, probe. Coroutines over injected ports.

Each step is entered at least once; the engine that hosts it may enter it twice, or late, after
having lost the right to. Each returns a `View` and raises for no expected outcome. A step that
returns has written all it knows, so that losing its return value costs time only.

`dispatch` is the heart. In this order: read the boot clock; transaction 1 grants the attempt; the
target is asked, once, with the stored bytes, within the budget that began before transaction 1;
transaction 2 records the outcome and is tried until it is known to stand or the process ends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TypeVar, cast
from uuid import UUID

from effect_adapters.base import (
    Adapter,
    Answer,
    Budget,
    DispatchCall,
    Finding,
    ProbeCall,
    TransactionalAdapter,
)
from effect_broker.faultpoints import FaultPoint
from effect_broker.protocol import changes, conclusion
from effect_broker.protocol.changes import Grant, GrantKind
from effect_broker.protocol.conclusion import Next, View
from effect_broker.protocol.ports import (
    WAKE_SECONDS,
    Change,
    CommitUnknown,
    Mutation,
    Ports,
    Sealed,
    Snapshot,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    VaultError,
)
from effect_broker.protocol.results import result_bytes
from effect_contracts.canonical import JsonValue, parse_strict
from effect_contracts.decision import Reason
from effect_contracts.document import ContractDocument
from effect_contracts.facts import (
    CODE_OPERATION_GONE,
    EffectState,
    EvidenceSource,
    Outcome,
    SafetyClass,
    Verdict,
)
from effect_contracts.life import is_final

T = TypeVar("T")

# A run may sleep through waits up to this long; a longer one ends the run, and the reconcile
# loop starts the next. A slot of the worker is cheaper than a new run for a few seconds.
SHORT_WAIT_SECONDS = 5.0

# Of a turn at a limited target less is slept through: many have one at once, and each that sleeps
# holds a slot that its tenant's other effects may need.
BUSY_WAIT_SECONDS = WAKE_SECONDS

# Of an effect as its submit has left it.
_VERSION_FIRST = 1
_ORDINAL_FIRST = 1

# A probe asks one question; the contract's attempt deadline bounds it, and so does this.
PROBE_SECONDS_MAX = 30.0

# Waits between tries of a write that must stand. Short, since an answer is held in memory only.
_RETRY_FIRST_SECONDS = 0.05
_RETRY_CAP_SECONDS = 1.0


async def reserve(ports: Ports, tenant_id: UUID, effect_id: UUID, generation: int) -> View:
    """Re-read the effect and say what is next; write waits, parks and settlements.

    Takes no fence. Sleeps through a short wait and reads again.

    Raises:
        StoreError: the store cannot be read; the engine may enter the step again.
    """
    ports.reach(FaultPoint.BEFORE_RESERVE)
    while True:
        snapshot = await ports.store.load(tenant_id, effect_id)
        if snapshot.intent.generation != generation:
            return _ended(snapshot)  # superseded: a younger run drives this effect
        adapter = ports.adapters[snapshot.document.adapter.kind]
        identity = adapter.identity(snapshot.document)
        seen, decision = conclusion.view(snapshot, identity)
        if decision is not None and conclusion.needs_writing(snapshot, decision):
            plan = _conclusion_plan(ports, identity, snapshot.intent.version)
            seen = await ports.store.change(tenant_id, effect_id, plan)
            ports.reach(FaultPoint.AFTER_CONCLUDE_COMMIT)
        if seen.next is Next.DISPATCH and snapshot.wire is None:
            await _bind_wire(ports, adapter, snapshot)
        wait = _seconds_until(seen)
        busy = seen.reason == Reason.TARGET_BUSY
        if wait is None or wait > (BUSY_WAIT_SECONDS if busy else SHORT_WAIT_SECONDS):
            ports.reach(FaultPoint.AFTER_RESERVE)
            return seen if wait is None else replace(seen, next=Next.END)
        await ports.process.rest(wait)
        if not ports.process.may_dispatch():
            # Draining: hand it back, the next action is stored.
            return replace(seen, next=Next.END)


def _conclusion_plan(
    ports: Ports, identity: str, version: int
) -> Callable[[Snapshot], Change[View]]:
    """Return what writes a wait, a park or a settlement, as a plan."""
    receipt_id = ports.new_id()

    def planned(snapshot: Snapshot) -> Change[View]:
        change = changes.conclude(
            snapshot,
            identity=identity,
            expected_version=version,
            receipt_id=receipt_id,
            actor=_actor(ports),
        )
        if change.writes:
            ports.reach(FaultPoint.BEFORE_CONCLUDE_COMMIT)
        return change

    return planned


async def begin(ports: Ports) -> View:
    """Say what is next of a new effect, on the version that its submit has left; nothing is read.

    A guess, which transaction 1 judges as it judges every decision: whatever has become of the
    effect meanwhile, or holds it, ends in `reload`, and `reserve` reads it then.
    """
    ports.reach(FaultPoint.BEFORE_RESERVE)
    seen = View(
        next=Next.DISPATCH,
        version=_VERSION_FIRST,
        state=EffectState.PREPARED,
        reason=Reason.FIRST_ATTEMPT.value,
        now=None,
        ordinal=_ORDINAL_FIRST,
    )
    ports.reach(FaultPoint.AFTER_RESERVE)
    return seen


async def dispatch(
    ports: Ports, tenant_id: UUID, effect_id: UUID, version: int, ordinal: int
) -> View:
    """Send once, if the permission is granted, and record what it showed.

    Raises:
        StoreError: transaction 1 certainly did not commit; nothing was sent.
        VaultError: the stored request cannot be opened; nothing was sent.
    """
    if not ports.process.may_dispatch():
        return _reload(await ports.store.load(tenant_id, effect_id), Next.END)
    # From transaction 1 on: a commit of a task that is cancelled may stand, and an attempt that
    # nobody sends is in doubt for no reason.
    return await ports.process.complete(
        lambda: _dispatched(ports, tenant_id, effect_id, version, ordinal)
    )


async def _dispatched(
    ports: Ports, tenant_id: UUID, effect_id: UUID, version: int, ordinal: int
) -> View:
    began = ports.clock.boot_seconds()  # before transaction 1: the budget never outlives it
    permission = await _granted(ports, tenant_id, effect_id, version, ordinal)
    if permission is None:
        return _reload(await ports.store.load(tenant_id, effect_id), Next.RELOAD)
    ports.reach(FaultPoint.AFTER_ATTEMPT_COMMIT)
    document = permission.snapshot.document
    adapter = ports.adapters[document.adapter.kind]
    call = DispatchCall(
        effect_id=effect_id,
        tenant_id=tenant_id,
        attempt_id=permission.attempt_id,
        ordinal=ordinal,
        downstream_key=permission.snapshot.intent.downstream_key,
        wire=permission.wire,
        document=document,
        budget=Budget(began + permission.deadline_seconds, ports.clock.boot_seconds),
        reach=ports.reach,
    )
    ports.waits()
    if document.safety is SafetyClass.TRANSACTIONAL:
        return await _mutated(ports, cast(TransactionalAdapter, adapter), call)
    return await _sent(ports, cast(Adapter, adapter), call)


async def probe(ports: Ports, tenant_id: UUID, effect_id: UUID, version: int) -> View:
    """Ask the target whether the effect exists, and store what it says.

    Raises:
        StoreError: the observation could not be begun, or its finding could not be stored.
        VaultError: what the question is made of cannot be opened; nothing was asked.
    """
    snapshot = await ports.store.load(tenant_id, effect_id)
    document = snapshot.document
    adapter = ports.adapters[document.adapter.kind]
    ports.reach(FaultPoint.BEFORE_PROBE)
    if document.safety is SafetyClass.TRANSACTIONAL:
        return await _settled_transaction(ports, snapshot, version, adapter.identity(document))
    asking = cast(Adapter, adapter)
    # Opened before the probe begins; the version, compared below, holds them together.
    arguments = await _arguments(ports, tenant_id, effect_id)
    polled = changes.open_operation(snapshot)
    operation = None if polled is None else await _operation(ports, snapshot, polled.attempt_id)
    timeout = min(document.policy().attempt_deadline_seconds, PROBE_SECONDS_MAX)
    began = ports.clock.boot_seconds()
    start = await ports.store.change(
        tenant_id,
        effect_id,
        partial(
            changes.begin_probe,
            identity=adapter.identity(document),
            expected_version=version,
            timeout_seconds=timeout,
            executor_id=ports.process.executor_id,
        ),
    )
    if start.began_at is None:
        return start.view
    call = ProbeCall(
        effect_id=effect_id,
        tenant_id=tenant_id,
        downstream_key=snapshot.intent.downstream_key,
        arguments=arguments,
        document=document,
        operation=operation,
        budget=Budget(began + timeout, ports.clock.boot_seconds),
        reach=ports.reach,
    )
    ports.waits()
    finding = await asking.probe(call)
    ports.reach(FaultPoint.AFTER_PROBE_ANSWER)
    covers = start.covers_through
    gone = finding.verdict is Verdict.UNKNOWN and finding.code == CODE_OPERATION_GONE
    if polled is not None and (gone or finding.verdict is Verdict.REJECTED):
        covers = polled.fact.ordinal  # the operation's end speaks of its own attempt only
    return await _evidence_added(ports, call, finding, start.began_at, covers)


# Dispatch, in parts ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Permission:
    """A committed attempt of this process, with all that the send needs."""

    attempt_id: UUID
    deadline_seconds: float
    wire: bytes
    snapshot: Snapshot


async def _granted(
    ports: Ports, tenant_id: UUID, effect_id: UUID, version: int, ordinal: int
) -> _Permission | None:
    """Run transaction 1. If the answer to COMMIT is lost, read the attempt back under the lock."""
    attempt_id = ports.new_id()
    permission: _Permission | None = None

    def planned(snapshot: Snapshot) -> Change[Grant]:
        nonlocal permission
        permission = None  # a store may plan anew; the last plan is what it commits
        adapter = ports.adapters[snapshot.document.adapter.kind]
        change = changes.grant_attempt(
            snapshot,
            identity=adapter.identity(snapshot.document),
            expected_version=version,
            ordinal=ordinal,
            attempt_id=attempt_id,
            executor_id=ports.process.executor_id,
        )
        if change.result.kind is GrantKind.GRANTED:
            # Opened before the commit: a request that cannot be opened must not burn an attempt.
            permission = _Permission(
                attempt_id,
                change.result.deadline_seconds,
                _unsealed_wire(ports, snapshot),
                snapshot,
            )
        ports.reach(FaultPoint.BEFORE_ATTEMPT_COMMIT)
        return change

    new = (version, ordinal) == (_VERSION_FIRST, _ORDINAL_FIRST)
    try:
        await ports.store.change(
            tenant_id, effect_id, planned, partial(_identity_of, ports), new=new
        )
    except CommitUnknown:
        confirm = partial(changes.confirm_grant, attempt_id=attempt_id)
        stands = await _until_known(
            ports, lambda: ports.store.change(tenant_id, effect_id, confirm)
        )
        if not stands:
            return None
    return permission


async def _sent(ports: Ports, adapter: Adapter, call: DispatchCall) -> View:
    """Send, then run transaction 2 until it stands."""
    answer = await adapter.dispatch(call)
    ports.reach(FaultPoint.AFTER_TARGET_ANSWER)
    return await _recorded(ports, call, answer)


async def _recorded(ports: Ports, call: DispatchCall, answer: Answer) -> View:
    """Run transaction 2 until it stands."""
    planned = _outcome_plan(ports, call, answer)
    seen = await _until_known(
        ports, lambda: ports.store.change(call.tenant_id, call.effect_id, planned)
    )
    ports.reach(FaultPoint.AFTER_OUTCOME_COMMIT)
    return seen


def _outcome_plan(
    ports: Ports, call: DispatchCall, answer: Answer
) -> Callable[[Snapshot], Change[View]]:
    """Return transaction 2 as a plan. It is sealed here, while no lock is held."""
    result, digest = _sealed_result(ports, call.tenant_id, call.effect_id, answer)
    operation = _sealed_operation(ports, call, answer)
    receipt_id = ports.new_id()

    def planned(snapshot: Snapshot) -> Change[View]:
        change = changes.record_outcome(
            snapshot,
            attempt_id=call.attempt_id,
            answer=answer,
            result=result,
            result_digest=digest,
            operation=operation,
            receipt_id=receipt_id,
            executor_id=ports.process.executor_id,
        )
        ports.reach(FaultPoint.BEFORE_OUTCOME_COMMIT)
        return change

    return planned


async def _mutated(ports: Ports, adapter: TransactionalAdapter, call: DispatchCall) -> View:
    """Run the mutation and transaction 2 as one transaction.

    If its end is unknown, the attempt stays open: its deadline passes, and the mutation key
    tells. It is not run again here, since a second run would need a second permission.
    """

    async def run(connection: object) -> Answer:
        if call.budget.remaining_seconds() <= 0:
            return Answer(Outcome.NOT_SENT, "budget_spent", bytes_may_have_left=False)
        answer = await adapter.mutate(connection, call)
        ports.reach(FaultPoint.INSIDE_MUTATION)
        return answer

    def planned(snapshot: Snapshot, answer: Answer) -> Change[View | None]:
        if answer.outcome is Outcome.COMMITTED and is_final(snapshot.intent.state):
            return Change(None)  # no write, no commit: what the receipt says stays true
        change = _outcome_plan(ports, call, answer)(snapshot)
        return Change(change.result, change.writes)

    try:
        seen = await ports.store.mutate(
            call.tenant_id, call.effect_id, Mutation(call.ordinal, run), planned
        )
    except CommitUnknown:
        return await _until_known(ports, lambda: _found(ports, call))
    except (StoreUnavailable, StoreBusy):
        return await _recorded(ports, call, _undone("rolled_back"))
    if seen is None:
        return await _recorded(ports, call, _undone("effect_final"))
    ports.reach(FaultPoint.AFTER_OUTCOME_COMMIT)
    return seen


def _undone(code: str) -> Answer:
    """The mutation's transaction has certainly ended without a commit."""
    return Answer(Outcome.NOT_SENT, code, bytes_may_have_left=False)


async def _found(ports: Ports, call: DispatchCall) -> View:
    return _reload(await ports.store.load(call.tenant_id, call.effect_id), Next.RELOAD)


# Probe, in parts --------------------------------------------------------------------------------


async def _settled_transaction(
    ports: Ports, snapshot: Snapshot, version: int, identity: str
) -> View:
    intent = snapshot.intent
    try:
        return await ports.store.change(
            intent.tenant_id,
            intent.effect_id,
            partial(
                changes.settle_transaction,
                identity=identity,
                expected_version=version,
                evidence_id=ports.new_id(),
                receipt_id=ports.new_id(),
                actor=_actor(ports),
            ),
        )
    except StoreBusy:
        # The mutation's transaction may still be open and holds the key. Its session is ended by
        # idle_in_transaction_session_timeout; the next run asks again.
        return _ended(await ports.store.load(intent.tenant_id, intent.effect_id))


async def _evidence_added(
    ports: Ports,
    call: ProbeCall,
    finding: Finding,
    began_at: datetime,
    covers_through: int,
) -> View:
    adapter = ports.adapters[call.document.adapter.kind]
    evidence_id = ports.new_id()
    result: Sealed | None = None
    digest: bytes | None = None
    if finding.verdict is Verdict.COMMITTED:
        plain = result_bytes(finding)
        result = ports.vault.seal(call.tenant_id, call.effect_id, "result", plain)
        digest = hashlib.sha256(plain).digest()
    plan = partial(
        changes.add_evidence,
        evidence_id=evidence_id,
        source=EvidenceSource.PROBE,
        finding=finding,
        began_at=began_at,
        covers_through=covers_through,
        target_identity=adapter.identity(call.document),
        result=result,
        result_digest=digest,
        receipt_id=ports.new_id(),
        actor=_actor(ports),
    )
    # A probe may be asked again, so one try is enough; the stored next action starts it.
    seen = await ports.store.change(call.tenant_id, call.effect_id, plan)
    ports.reach(FaultPoint.AFTER_EVIDENCE_COMMIT)
    return seen


def _identity_of(ports: Ports, document: ContractDocument) -> str:
    """How the contract's target is named here."""
    return ports.adapters[document.adapter.kind].identity(document)


# Shared parts -----------------------------------------------------------------------------------


async def _until_known(ports: Ports, work: Callable[[], Awaitable[T]]) -> T:
    """Repeat an idempotent write until it stands; ends otherwise only with the process."""
    wait = _RETRY_FIRST_SECONDS
    while True:
        try:
            return await work()
        except StoreError:
            # Whatever it says: nobody else knows what this process has to write.
            await ports.clock.sleep(wait)
            wait = min(wait * 2, _RETRY_CAP_SECONDS)


async def _bind_wire(
    ports: Ports, adapter: Adapter | TransactionalAdapter, snapshot: Snapshot
) -> None:
    """Render and store the request of an effect that was submitted without one."""
    intent = snapshot.intent
    if intent.wire_digest is not None:
        raise VaultError("the stored request has been erased")
    arguments = await _arguments(ports, intent.tenant_id, intent.effect_id)
    # Nobody of ours has seen them in the clear before, where a caller's transaction has brought
    # them; what breaks the contract is never sent.
    snapshot.document.check_arguments(arguments)
    wire = adapter.render(snapshot.document, arguments, intent.downstream_key)
    sealed = ports.vault.seal(intent.tenant_id, intent.effect_id, "wire", wire)
    await ports.store.change(
        intent.tenant_id,
        intent.effect_id,
        partial(changes.bind_wire, wire=sealed, wire_digest=hashlib.sha256(wire).digest()),
    )


async def _arguments(ports: Ports, tenant_id: UUID, effect_id: UUID) -> JsonValue:
    sealed = await ports.store.payload(tenant_id, effect_id, "arguments")
    if sealed is None:
        # Not None, as which they would be compared with what the target holds.
        raise VaultError("the arguments have been erased")
    return parse_strict(ports.vault.unseal(tenant_id, effect_id, "arguments", sealed))


def _unsealed_wire(ports: Ports, snapshot: Snapshot) -> bytes:
    intent = snapshot.intent
    assert snapshot.wire is not None, "a permission is granted only for a stored request"
    wire = ports.vault.unseal(intent.tenant_id, intent.effect_id, "wire", snapshot.wire)
    if hashlib.sha256(wire).digest() != intent.wire_digest:
        raise VaultError("the stored request is not the one that was bound")
    return wire


async def _operation(ports: Ports, snapshot: Snapshot, attempt_id: UUID) -> str:
    intent = snapshot.intent
    sealed = await ports.store.payload(
        intent.tenant_id, intent.effect_id, "operation", str(attempt_id)
    )
    if sealed is None:
        raise VaultError("the reference of an accepted operation has been erased")
    return ports.vault.unseal(intent.tenant_id, intent.effect_id, "operation", sealed).decode()


def _sealed_result(
    ports: Ports, tenant_id: UUID, effect_id: UUID, answer: Answer
) -> tuple[Sealed | None, bytes | None]:
    if answer.outcome not in {Outcome.COMMITTED, Outcome.PARTIAL}:
        return None, None
    plain = result_bytes(answer)
    sealed = ports.vault.seal(tenant_id, effect_id, "result", plain)
    return sealed, hashlib.sha256(plain).digest()


def _sealed_operation(ports: Ports, call: DispatchCall, answer: Answer) -> Sealed | None:
    if answer.operation is None:
        return None
    return ports.vault.seal(call.tenant_id, call.effect_id, "operation", answer.operation.encode())


def _seconds_until(seen: View) -> float | None:
    if seen.next is not Next.WAIT or seen.at is None:
        return None
    assert seen.now is not None, "a wait was decided on the database clock"
    return max((seen.at - seen.now).total_seconds(), 0.0)


def _reload(snapshot: Snapshot, following: Next) -> View:
    intent = snapshot.intent
    return View(following, intent.version, intent.state, intent.reason, snapshot.now)


def _ended(snapshot: Snapshot) -> View:
    return _reload(snapshot, Next.END)


def _actor(ports: Ports) -> str:
    return f"worker:{ports.process.executor_id}"
