"""The inside of a simulated world: processes, the store as one of them sees it, and their runs.

A process stands still at every await of the protocol's ports and nowhere else, so that its
scheduler can let others act, let time pass, or end it there. What it does between two awaits
happens at one moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from effect_adapters.base import Answer
from effect_broker.proof.simulation.coroutines import stop
from effect_broker.proof.simulation.scope import Fault
from effect_broker.protocol import steps
from effect_broker.protocol.conclusion import View
from effect_broker.protocol.ports import (
    Change,
    CommitUnknown,
    IdentityOf,
    Mutation,
    Plan,
    Ports,
    Sealed,
    Snapshot,
    StoreBusy,
    StoreUnavailable,
    VaultError,
)
from effect_broker.protocol.run import StepResult

if TYPE_CHECKING:
    from effect_broker.proof.simulation.world import World

T = TypeVar("T")

# The ids of a process are its number above this many bits, and a counter below.
_ID_BITS: Final = 32

# What the broker's roles set at the database: how long a lock is waited for, and after how long a
# session that stands still inside a transaction is ended.
LOCK_SECONDS: Final = 1.0
IDLE_SECONDS: Final = 2.0

_STORE_FAULTS: Final = (
    Fault.STORE_AWAY,
    Fault.STORE_BUSY,
    Fault.COMMIT_UNHEARD,
    Fault.COMMIT_LOST,
)


class PlainVault:
    """A vault without a cipher: binds what it keeps to its place, as the real one does.

    Only the simulator uses it; nothing in a simulated world is secret.
    """

    def seal(self, tenant_id: UUID, effect_id: UUID, column: str, plain: bytes) -> Sealed:
        """See `Vault.seal`."""
        return Sealed(f"{effect_id}/{column}", plain)

    def unseal(self, tenant_id: UUID, effect_id: UUID, column: str, sealed: Sealed) -> bytes:
        """See `Vault.unseal`."""
        if sealed.key_id != f"{effect_id}/{column}":
            raise VaultError("the ciphertext does not belong here")
        return sealed.ciphertext


class SimulatedProcess:
    """One process incarnation: the ports `Process` and `Clock`.

    Attributes:
        fit: it beats and does not drain.
        alive: it has not been killed.
        paused_until: it stands still before this moment.
        identity: the account of the target that it is set up for.
        rate: how fast its clock runs; its readings say nothing to other processes.
    """

    def __init__(self, world: World, number: int, identity: str, rate: float) -> None:
        self.executor_id = f"worker-{number}"
        self.number = number
        self.fit = True
        self.alive = True
        self.paused_until = 0.0
        self.identity = identity
        self.rate = rate
        self._world = world
        self._ids = number << _ID_BITS
        self._renderings = number << _ID_BITS

    def boot_seconds(self) -> float:
        """See `Clock`."""
        return self.number * 1e6 + self._world.seconds * self.rate

    async def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        await stop(self._world.seconds + seconds)

    def may_dispatch(self) -> bool:
        """See `Process`."""
        return self.fit

    async def rest(self, seconds: float) -> None:
        """See `Process`."""
        await stop(self._world.seconds + seconds if self.fit else 0.0)

    async def complete(self, work: Callable[[], Awaitable[T]]) -> T:
        """See `Process`; nobody cancels in a simulated world."""
        return await work()

    def new_id(self) -> UUID:
        """Return an id that no other process returns, whatever the order of events."""
        self._ids += 1
        return UUID(int=self._ids)

    def next_rendering(self) -> int:
        """Return a number that no other rendering has had."""
        self._renderings += 1
        return self._renderings


@dataclass(eq=False, slots=True)
class Actor:
    """One coroutine of one process: a run, a tick of repair, or somebody who acts.

    Attributes:
        effect_id: of a run; None for others.
        recorded: the results of its steps, as the engine keeps them.
        until: it waits for this moment.
        moved_at: when it last went on.
        step: the step it is in.
        known_version: the version that its present decision was made on.
        superseded: it has been shown a younger generation than its own.
        unfit: its process might not dispatch when the present step began.
        seen: a digest of all that it has been shown since its step began; with its step it
            determines what it does next.
    """

    name: str
    process: SimulatedProcess
    effect_id: UUID | None = None
    generation: int = 0
    recorded: list[StepResult] = field(default_factory=list)
    until: float = 0.0
    moved_at: float = 0.0
    step: str = ""
    known_version: int = 0
    superseded: bool = False
    unfit: bool = False
    seen: int = 0
    running: Coroutine[Any, Any, object] = field(init=False)

    def saw(self, *what: object) -> None:
        """Note what it has been shown."""
        self.seen = hash((self.seen, what))


class RunCalls:
    """The three steps of one run, as the engine calls and records them (`run.StepCalls`)."""

    def __init__(self, world: World, actor: Actor, ports: Ports, replayed: list[StepResult]):
        self._world = world
        self._actor = actor
        self._ports = ports
        self._replayed = deque(replayed)
        self._entered = 0

    async def begin(self) -> StepResult:
        """See `StepCalls`: the engine neither records it nor replays it."""
        return (await steps.begin(self._ports)).to_json()

    async def reserve(self) -> StepResult:
        """See `StepCalls`."""
        actor = self._actor
        assert actor.effect_id is not None
        return await self._step(
            "reserve",
            (),
            steps.reserve,
            self._ports,
            self._world.tenant_id,
            actor.effect_id,
            actor.generation,
        )

    async def dispatch(self, version: int, ordinal: int) -> StepResult:
        """See `StepCalls`."""
        self._actor.known_version = version
        return await self._step(
            "dispatch",
            (version, ordinal),
            steps.dispatch,
            self._ports,
            self._world.tenant_id,
            self._actor.effect_id,
            version,
            ordinal,
        )

    async def probe(self, version: int) -> StepResult:
        """See `StepCalls`."""
        return await self._step(
            "probe",
            (version,),
            steps.probe,
            self._ports,
            self._world.tenant_id,
            self._actor.effect_id,
            version,
        )

    async def _step(
        self, name: str, key: tuple[int, ...], body: Callable[..., Awaitable[View]], *args: Any
    ) -> StepResult:
        if self._replayed:
            return self._replayed.popleft()
        actor = self._actor
        self._entered += 1
        actor.step = name
        actor.unfit = not actor.process.fit
        if name == "dispatch" and actor.unfit:
            self._world.judge.entered_unfit()
        # What was before this step lives on in its arguments and in what the engine recorded.
        if self._world.exploring:
            actor.seen = hash((name, key, self._entered))
        result: StepResult = (await body(*args)).to_json()
        actor.recorded.append(result)
        return result


class ProcessStore:
    """The store as one actor sees it: slow, busy, away, and with answers that get lost."""

    def __init__(self, world: World, actor: Actor) -> None:
        self._world = world
        self._actor = actor

    async def load(self, tenant_id: UUID, effect_id: UUID) -> Snapshot:
        """See `EffectStore.load`."""
        await stop()
        world, actor = self._world, self._actor
        snapshot = await world.store.load(tenant_id, effect_id)
        if world.exploring:
            actor.saw(world.store.token(effect_id), world.seconds)
        world.judge.loaded(actor, snapshot)
        actor.known_version = snapshot.intent.version
        return snapshot

    async def payload(
        self, tenant_id: UUID, effect_id: UUID, kind: str, ref: str = ""
    ) -> Sealed | None:
        """See `EffectStore.payload`. What it reads is written once, so nobody gets in between."""
        return await self._world.store.payload(tenant_id, effect_id, kind, ref)

    async def change(
        self,
        tenant_id: UUID,
        effect_id: UUID,
        plan: Plan[T],
        paced: IdentityOf | None = None,
        *,
        new: bool = False,
    ) -> T:
        """See `EffectStore.change`."""
        world, actor = self._world, self._actor
        trouble = await self._trouble(effect_id)
        if trouble is Fault.COMMIT_LOST:
            await world.store.change(tenant_id, effect_id, lambda s: Change(plan(s).result), paced)
            await stop()
            raise CommitUnknown
        before: Snapshot | None = None
        change: Change[T] | None = None

        def planned(snapshot: Snapshot) -> Change[T]:
            nonlocal before, change
            before, change = snapshot, plan(snapshot)
            return change

        if world.exploring:
            actor.saw(world.store.token(effect_id), world.seconds)
        result = await world.store.change(tenant_id, effect_id, planned, paced)
        assert before is not None
        assert change is not None
        world.judge.changed(actor, before, change)
        if not change.writes:
            return result
        await stop()
        if trouble is Fault.COMMIT_UNHEARD:
            world.tell("does not hear that its commit stands")
            raise CommitUnknown
        return result

    async def mutate(
        self,
        tenant_id: UUID,
        effect_id: UUID,
        mutation: Mutation,
        plan: Callable[[Snapshot, Answer], Change[T]],
    ) -> T:
        """See `EffectStore.mutate`: others who want the effect meanwhile find it locked."""
        world, actor = self._world, self._actor
        trouble = await self._trouble(effect_id)
        before: Snapshot | None = None
        change: Change[T] | None = None

        def planned(snapshot: Snapshot, answer: Answer) -> Change[T]:
            nonlocal before, change
            before, change = snapshot, plan(snapshot, answer)
            # The whole transaction is lost with its commit, the mutation and all.
            return Change(change.result) if trouble is Fault.COMMIT_LOST else change

        if world.exploring:
            actor.saw(world.store.token(effect_id), world.seconds)
        ready = await self._mutated(effect_id, mutation)
        result = await world.store.mutate(tenant_id, effect_id, ready, planned)
        if trouble is Fault.COMMIT_LOST:
            await stop()
            raise CommitUnknown
        assert before is not None
        assert change is not None
        world.judge.changed(actor, before, change)
        await stop()
        if trouble is Fault.COMMIT_UNHEARD:
            world.tell("does not hear that its commit stands")
            raise CommitUnknown
        return result

    async def _mutated(self, effect_id: UUID, mutation: Mutation) -> Mutation:
        """Run the mutation while the effect is locked; return it with its answer.

        Raises:
            StoreUnavailable: the database has ended the session of a process that stood still.
        """
        world, actor = self._world, self._actor
        taken = world.store.snapshot(effect_id).mutation_ordinal is not None
        if taken or mutation.ordinal in world.store.fences(effect_id):
            return mutation  # the store answers for it
        world.locked[effect_id] = actor
        try:
            answer = await mutation.run(None)
        finally:
            holds = world.locked.get(effect_id) is actor
            if holds:
                del world.locked[effect_id]
        if not holds:
            world.tell("has lost its session, and its transaction with it")
            raise StoreUnavailable

        async def ready(_connection: object) -> Answer:
            return answer

        return Mutation(mutation.ordinal, ready)

    async def _trouble(self, effect_id: UUID) -> Fault | None:
        """Wait for the lock; return what will become of the commit.

        Raises:
            StoreBusy, StoreUnavailable.
        """
        await stop()
        world = self._world
        if effect_id in world.locked:
            await stop(world.seconds + LOCK_SECONDS)
            holder = world.locked.get(effect_id)
            if holder is not None and holder.moved_at + IDLE_SECONDS < world.seconds:
                del world.locked[effect_id]
            elif holder is not None:
                self._actor.saw("busy", world.seconds)
                raise StoreBusy
        trouble = world.store_trouble(_STORE_FAULTS)
        if trouble is None:
            return None
        self._actor.saw(trouble, world.seconds)
        if world.telling:
            world.tell(f"meets trouble: {trouble.value.replace('_', ' ')}")
        if trouble is Fault.STORE_AWAY:
            raise StoreUnavailable
        if trouble is Fault.STORE_BUSY:
            raise StoreBusy
        return trouble
