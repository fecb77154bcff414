"""A small deterministic world for the steps: one store, one target, one clock, some processes.

Only time, chance and trouble are made here. The steps, the plans, the decisions and the store are
the real ones. Time moves when a part sleeps or when a test says so, never by itself.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Any, TypeVar
from uuid import UUID, uuid4

from effect_adapters.base import Answer, DispatchCall, Finding, ProbeCall
from effect_adapters.simulated import LedgerEntry, LedgerTarget, SimulatedAdapter
from effect_broker import repair
from effect_broker.intake import EffectRequest, Intake, Tenant
from effect_broker.keyring import AesVault, KeyRing, new_key_ring, parse_key_ring
from effect_broker.proof.memory_store import MemoryStore
from effect_broker.protocol import changes, steps
from effect_broker.protocol.conclusion import View
from effect_broker.protocol.ports import (
    Change,
    CommitUnknown,
    EffectStore,
    Mutation,
    Plan,
    Ports,
    Sealed,
    Snapshot,
    StoreBusy,
    StoreError,
    StoreUnavailable,
)
from effect_broker.protocol.run import StepResult, drive
from effect_broker.protocol.submission import Submission, Submitted
from effect_contracts.canonical import JsonValue
from effect_contracts.document import ContractDocument
from effect_contracts.facts import EvidenceSource, Outcome, Verdict

T = TypeVar("T")

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
TENANT = Tenant(UUID(int=7), "hmac", "caller:test")
# An exchange takes time, as everywhere: nothing happens at the very moment of something else.
EXCHANGE_SECONDS = 2**-10
ARGUMENTS: Mapping[str, JsonValue] = {"amount": 5}
RING: KeyRing = parse_key_ring(
    new_key_ring("hmac", development=True), source="test", production=False
)


def contract(safety: str, **changes: Any) -> ContractDocument:
    """A contract of the simulated target, one for each class."""
    fields: dict[str, Any] = {
        "name": safety,
        "version": "1",
        "tool": f"tool.{safety}",
        "safety": safety,
        "account": "acct_1",
        "arguments": {"type": "object"},
        "adapter": {"kind": "simulated", "target": "ledger", "probes": safety == "reconcilable"},
        "attempt_deadline_seconds": 30,
    }
    if safety == "idempotent":
        fields["key_retention_seconds"] = 86400
    if safety == "reconcilable":
        fields["settlement_bound_seconds"] = 60
    return ContractDocument.parse_yaml(json.dumps({**fields, **changes}))


# Time and process --------------------------------------------------------------------------------


@dataclass
class WorldClock:
    """The boot clock and the database's clock, which a test may move apart."""

    seconds: float = 0.0
    database_ahead_seconds: float = 0.0
    slept: list[float] = field(default_factory=list)

    def boot_seconds(self) -> float:
        """The process's clock."""
        return self.seconds

    def now(self) -> datetime:
        """The database's clock."""
        return EPOCH + timedelta(seconds=self.seconds + self.database_ahead_seconds)

    async def sleep(self, seconds: float) -> None:
        """Let the time pass."""
        self.slept.append(seconds)
        self.seconds += seconds


class WorldProcess:
    """A process that dispatches until it is told not to."""

    def __init__(self, name: str, clock: WorldClock) -> None:
        self.executor_id = name
        self.fit = True
        self.rested: list[float] = []
        self._clock = clock

    def may_dispatch(self) -> bool:
        """Whether it beats and does not drain."""
        return self.fit

    async def rest(self, seconds: float) -> None:
        """Let the time pass, unless the process drains."""
        self.rested.append(seconds)
        if self.fit:
            self._clock.seconds += seconds

    async def complete(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run it; nobody cancels in this world."""
        return await work()


# The store's troubles ----------------------------------------------------------------------------


class Trouble(Enum):
    """What happens to one change."""

    NONE = auto()
    UNAVAILABLE = auto()  # nothing was committed
    BUSY = auto()  # a lock was not granted
    LOST_COMMITTED = auto()  # committed, and the answer to COMMIT is lost
    LOST_UNDONE = auto()  # not committed, and nobody knows
    BUG = auto()  # an SQLSTATE that nobody has thought of


_RAISED: Mapping[Trouble, type[StoreError]] = {
    Trouble.UNAVAILABLE: StoreUnavailable,
    Trouble.BUSY: StoreBusy,
    Trouble.LOST_COMMITTED: CommitUnknown,
    Trouble.LOST_UNDONE: CommitUnknown,
    Trouble.BUG: StoreError,
}


class TroubledStore:
    """A store in which changes meet scripted trouble.

    Attributes:
        troubles: used up by the next changes and mutations, one by one.
        before, after: called once, before the next change begins or after it has been committed,
            while no lock is held: here others get in between.
    """

    def __init__(self, inner: EffectStore) -> None:
        self.inner = inner
        self.troubles: deque[Trouble] = deque()
        self.before: Callable[[], Awaitable[None]] | None = None
        self.after: Callable[[], Awaitable[None]] | None = None
        self.changes = 0

    def lose_next_answer(self, after: int = 0) -> None:
        """Let the commit of the next change, or of one that follows `after` others, go unheard."""
        self.troubles.extend([*[Trouble.NONE] * after, Trouble.LOST_COMMITTED])

    async def load(self, tenant_id: UUID, effect_id: UUID) -> Snapshot:
        """Untroubled."""
        return await self.inner.load(tenant_id, effect_id)

    async def change(
        self, tenant_id: UUID, effect_id: UUID, plan: Plan[T], paced: Any = None, new: bool = False
    ) -> T:
        """Meet the next trouble."""
        trouble = await self._next()
        if trouble is Trouble.LOST_UNDONE:
            await self.inner.change(tenant_id, effect_id, lambda s: Change(plan(s).result), paced)
        if trouble in {Trouble.NONE, Trouble.LOST_COMMITTED}:
            result = await self.inner.change(tenant_id, effect_id, plan, paced, new=new)
            if (after := self.after) is not None:
                self.after = None
                await after()
            if trouble is Trouble.NONE:
                return result
        raise _RAISED[trouble]("scripted")

    async def mutate(
        self,
        tenant_id: UUID,
        effect_id: UUID,
        mutation: Mutation,
        plan: Callable[[Snapshot, Answer], Change[T]],
    ) -> T:
        """Meet the next trouble."""
        trouble = await self._next()
        if trouble in {Trouble.NONE, Trouble.LOST_COMMITTED}:
            result = await self.inner.mutate(tenant_id, effect_id, mutation, plan)
            if trouble is Trouble.NONE:
                return result
        raise _RAISED[trouble]("scripted")

    async def payload(
        self, tenant_id: UUID, effect_id: UUID, kind: str, ref: str = ""
    ) -> Sealed | None:
        """Untroubled."""
        return await self.inner.payload(tenant_id, effect_id, kind, ref)

    async def _next(self) -> Trouble:
        self.changes += 1
        if (before := self.before) is not None:
            self.before = None
            await before()
        return self.troubles.popleft() if self.troubles else Trouble.NONE


# The target --------------------------------------------------------------------------------------


class WatchedTarget(LedgerTarget):
    """A ledger target that shows what was sent, and lets a test act while a request is out.

    Attributes:
        sent: the stored request of every call that passed the last gate, byte for byte.
        while_sending, while_looking: called once, in the middle of the next exchange.
        answers, findings: what the next calls say, whatever the ledger holds.
    """

    def __init__(self, clock: WorldClock, *, deduplicates: bool) -> None:
        super().__init__(deduplicates=deduplicates)
        self._clock = clock
        self.sent: list[tuple[int, str, bytes]] = []
        self.looked: list[ProbeCall] = []
        self.while_sending: Callable[[], Awaitable[None]] | None = None
        self.while_looking: Callable[[], Awaitable[None]] | None = None
        self.answers: deque[Answer] = deque()
        self.findings: deque[Finding] = deque()

    async def receive(self, key: str, arguments: JsonValue, call: DispatchCall) -> Answer:
        """See `SimulatedTarget`."""
        self.sent.append((call.ordinal, key, call.wire))
        self._clock.seconds += EXCHANGE_SECONDS
        if (act := self.while_sending) is not None:
            self.while_sending = None
            await act()
        told = self.answers.popleft() if self.answers else None
        return told or await super().receive(key, arguments, call)

    async def look_up(self, call: ProbeCall) -> Finding:
        """See `SimulatedTarget`."""
        self.looked.append(call)
        self._clock.seconds += EXCHANGE_SECONDS
        if (act := self.while_looking) is not None:
            self.while_looking = None
            await act()
        told = self.findings.popleft() if self.findings else None
        return told or await super().look_up(call)


class NamedAdapter(SimulatedAdapter):
    """The simulated adapter, whose target can become another one, and whose renderings count."""

    def __init__(self, target: WatchedTarget) -> None:
        super().__init__({"ledger": target})
        self.moved_to: str | None = None
        self.renderings = 0

    def identity(self, document: ContractDocument) -> str:
        """See `Adapter.identity`."""
        return self.moved_to or super().identity(document)

    def render(
        self, document: ContractDocument, arguments: JsonValue, downstream_key: str
    ) -> bytes:
        """See `Adapter.render`; every rendering differs, so that none can pass for another."""
        self.renderings += 1
        wire = json.loads(super().render(document, arguments, downstream_key))
        return json.dumps({**wire, "rendering": self.renderings}).encode()


# All together ------------------------------------------------------------------------------------


class SeenCalls:
    """The steps of one run; records results as the engine does, and replays those it was given."""

    def __init__(
        self,
        ports: Ports,
        effect_id: UUID,
        generation: int,
        recorded: list[StepResult],
        *,
        tenant_id: UUID = TENANT.tenant_id,
    ) -> None:
        self._ports = ports
        self._tenant_id = tenant_id
        self._effect_id = effect_id
        self._generation = generation
        self._replayed = deque(recorded)
        self.recorded = recorded
        self.names: list[str] = []

    async def begin(self) -> StepResult:
        self.names.append("begin")  # neither recorded nor replayed
        return (await steps.begin(self._ports)).to_json()

    async def reserve(self) -> StepResult:
        """See `StepCalls`."""
        return await self._step(
            "reserve",
            lambda: steps.reserve(self._ports, self._tenant_id, self._effect_id, self._generation),
        )

    async def dispatch(self, version: int, ordinal: int) -> StepResult:
        """See `StepCalls`."""
        return await self._step(
            f"dispatch {ordinal}",
            lambda: steps.dispatch(self._ports, self._tenant_id, self._effect_id, version, ordinal),
        )

    async def probe(self, version: int) -> StepResult:
        """See `StepCalls`."""
        return await self._step(
            "probe",
            lambda: steps.probe(self._ports, self._tenant_id, self._effect_id, version),
        )

    async def _step(self, name: str, body: Callable[[], Awaitable[View]]) -> StepResult:
        self.names.append(name)
        if self._replayed:
            return self._replayed.popleft()
        result: StepResult = json.loads(json.dumps((await body()).to_json()))
        self.recorded.append(result)
        return result


class World:
    """A broker without an engine: runs are started by hand, in the order that a test wants."""

    def __init__(self, safety: str = "idempotent", **changes: Any) -> None:
        self.clock = WorldClock()
        self.queue: list[tuple[UUID, int]] = []
        self.memory = MemoryStore(self.clock.now, lambda _t, e, g: self.queue.append((e, g)))
        self.store = TroubledStore(self.memory)
        self.document = contract(safety, **changes)
        self.memory.apply_contract(self.document)
        self.target = WatchedTarget(self.clock, deduplicates=safety == "idempotent")
        self.adapter = NamedAdapter(self.target)
        self.vault = AesVault(RING)
        self.reached: list[str] = []
        self.on_reach: dict[str, Callable[[], None]] = {}
        self.process = self.new_process("worker-1")
        self.ports = self.ports_of(self.process)
        self.effect_id = UUID(int=0)

    def new_process(self, name: str) -> WorldProcess:
        """Another worker."""
        return WorldProcess(name, self.clock)

    def ports_of(self, process: WorldProcess, store: EffectStore | None = None) -> Ports:
        """What the steps of a process run on."""
        return Ports(
            store=store or self.store,
            adapters={"simulated": self.adapter},
            vault=self.vault,
            clock=self.clock,
            process=process,
            new_id=uuid4,
            reach=self._reach,
        )

    def _reach(self, name: str) -> None:
        self.reached.append(name)
        if (act := self.on_reach.pop(name, None)) is not None:
            act()

    # What a test does to the world ---------------------------------------------------------------

    def let_pass(self, seconds: float) -> None:
        """Let the time pass."""
        self.clock.seconds += seconds

    def break_wire(self) -> None:
        """Spoil the stored request: its key is gone, or a disk has lied."""
        self._put("wire", Sealed("hmac", b"\0" * 64))

    def replace_wire(self, wire: bytes) -> None:
        """Put another request in its place, well sealed."""
        self._put("wire", self.vault.seal(TENANT.tenant_id, self.effect_id, "wire", wire))

    def erase(self, kind: str) -> None:
        """Erase ciphertext, as retention does."""
        del self.memory.payloads_of(self.effect_id)[kind, ""]

    def _put(self, kind: str, sealed: Sealed) -> None:
        self.memory.payloads_of(self.effect_id)[kind, ""] = sealed

    async def submit_unrendered(self, key: str = "unrendered") -> None:
        """Submit as a caller's own transaction does: without a wire request."""
        taken: list[Submission] = []

        class Taking(MemoryStore):
            async def submit(self, submission: Submission) -> Submitted:
                taken.append(submission)
                raise StoreUnavailable

        store = Taking(self.clock.now)
        store.apply_contract(self.document)
        intake = Intake(store, {"simulated": SimulatedAdapter({})}, RING, self.vault, self._reach)
        with suppress(StoreUnavailable):
            await intake.submit(TENANT, EffectRequest(key, self.document.tool, ARGUMENTS))
        bare = replace(taken[0], wire=None, wire_digest=None)
        self.effect_id = (await self.memory.submit(bare)).intent.effect_id

    async def record_again(self, attempt_id: UUID, outcome: Outcome) -> View:
        """Run transaction 2 of an attempt once more, with another answer."""

        def planned(snapshot: Snapshot) -> Change[View]:
            return changes.record_outcome(
                snapshot,
                attempt_id=attempt_id,
                answer=Answer(outcome, "again"),
                result=None,
                result_digest=None,
                operation=None,
                receipt_id=uuid4(),
                executor_id="worker-1",
            )

        return await self.memory.change(TENANT.tenant_id, self.effect_id, planned)

    def entry(self) -> LedgerEntry:
        """The effect as the target holds it."""
        key = self.snapshot.intent.downstream_key
        return LedgerEntry("sim_1", key, dict(ARGUMENTS))

    # What a caller and an engine do ---------------------------------------------------------------

    async def submit(self, key: str = "order-1", **more: Any) -> UUID:
        """Submit an effect; the steps below are about the latest."""
        intake = Intake(self.memory, {"simulated": self.adapter}, RING, self.vault, self._reach)
        request = EffectRequest(key, self.document.tool, ARGUMENTS, **more)
        self.effect_id = (await intake.submit(TENANT, request)).intent.effect_id
        return self.effect_id

    async def reserve(self, generation: int = 1, ports: Ports | None = None) -> View:
        """Enter the step."""
        return await steps.reserve(
            ports or self.ports, TENANT.tenant_id, self.effect_id, generation
        )

    async def dispatch(self, version: int, ordinal: int, ports: Ports | None = None) -> View:
        """Enter the step."""
        return await steps.dispatch(
            ports or self.ports, TENANT.tenant_id, self.effect_id, version, ordinal
        )

    async def probe(self, version: int, ports: Ports | None = None) -> View:
        """Enter the step."""
        return await steps.probe(ports or self.ports, TENANT.tenant_id, self.effect_id, version)

    def calls(
        self,
        generation: int = 1,
        ports: Ports | None = None,
        recorded: list[StepResult] | None = None,
    ) -> SeenCalls:
        """The steps of a run as an engine calls them."""
        return SeenCalls(
            ports or self.ports,
            self.effect_id,
            generation,
            recorded if recorded is not None else [],
        )

    async def run(self, generation: int = 1, ports: Ports | None = None) -> SeenCalls:
        """Drive a run to its end."""
        calls = self.calls(generation, ports)
        await drive(calls)
        return calls

    async def requeue_due(self) -> int:
        """One tick of the reconcile loop, for effects whose runs have all ended."""
        return await repair.reconcile(self, self.store, "worker:test", self._reach)

    async def due_effects(self, limit: int) -> list[repair.DueEffect]:
        """Return what is due; no run is ever alive between two calls of a test."""
        due = [repair.DueEffect(i.tenant_id, i.effect_id, i.generation) for i in self.memory.due()]
        return due[:limit]

    async def ended_compensations(self, limit: int) -> list[repair.EndedCompensation]:
        return []

    async def settle_link(self, tenant_id: UUID, effect_id: UUID) -> None:
        raise AssertionError("no effect of these worlds undoes another one")

    async def release_lifted(self, limit: int) -> int:
        """Let effects go on whose hold was lifted."""
        return await self.memory.release_lifted(limit)

    async def beat(self, executor_id: str, ttl_seconds: float) -> None:
        """No process of this world is watched."""

    async def dead_executors(self) -> list[str]:
        """None is."""
        return []

    async def pending_runs(self, executor_id: str, older_than_seconds: float) -> list[str]:
        """None is."""
        return []

    async def queue_registered(self) -> bool:
        """There is none to lose."""
        return True

    async def run_until_at_rest(self, steps_max: int = 60) -> None:
        """Let time pass and runs start until the effect is final or waits for a person."""
        for _ in range(steps_max):
            intent = self.snapshot.intent
            if intent.next_action_at is None:
                return
            wait = (intent.next_action_at - self.clock.now()).total_seconds()
            self.clock.seconds += max(wait, 0.0)
            await self.requeue_due()
            await self.run(self.snapshot.intent.generation)
        raise AssertionError(f"not at rest: {self.snapshot.intent}")

    # What a test looks at -------------------------------------------------------------------------

    @property
    def snapshot(self) -> Snapshot:
        """The effect as it stands."""
        return self.memory.snapshot(self.effect_id)

    @property
    def state(self) -> tuple[str, str]:
        """State and reason."""
        intent = self.snapshot.intent
        return intent.state.value, intent.reason

    @property
    def outcomes(self) -> list[str | None]:
        """The outcomes of all attempts."""
        return [a.outcome and a.outcome.value for a in self.snapshot.facts.attempts]

    @property
    def receipt(self) -> dict[str, Any] | None:
        """The content of the receipt."""
        receipt = self.memory.receipt(self.effect_id)
        content: dict[str, Any] | None = json.loads(receipt.content) if receipt else None
        return content

    def result(self, ref: str | None) -> dict[str, Any]:
        """What a receipt's reference leads to."""
        assert ref is not None
        return json.loads(self._result(ref))  # type: ignore[no-any-return]

    def digest_of(self, ref: str | None) -> str:
        """The digest of what a receipt's reference leads to."""
        assert ref is not None
        return hashlib.sha256(self._result(ref)).hexdigest()

    def _result(self, ref: str) -> bytes:
        sealed = self.memory.payloads_of(self.effect_id)["result", ref]
        return self.vault.unseal(TENANT.tenant_id, self.effect_id, "result", sealed)

    async def evidence(
        self, verdict: Verdict, *ids: str, source: EvidenceSource = EvidenceSource.OPERATOR
    ) -> View:
        """Somebody else has learned something now."""

        def planned(snapshot: Snapshot) -> Change[View]:
            return changes.add_evidence(
                snapshot,
                evidence_id=uuid4(),
                source=source,
                finding=Finding(verdict, "told", ids),
                began_at=snapshot.now,
                covers_through=len(snapshot.attempts),
                target_identity=None,
                result=None,
                result_digest=None,
                receipt_id=uuid4(),
                actor="operator:test",
            )

        return await self.memory.change(TENANT.tenant_id, self.effect_id, planned)


def lost_answer() -> Answer:
    """The target has been asked and nothing came back."""
    return Answer(Outcome.AMBIGUOUS, "closed_without_answer")


def not_sent() -> Answer:
    """No byte left."""
    return Answer(Outcome.NOT_SENT, "connect_refused", bytes_may_have_left=False)
