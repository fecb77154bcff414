"""A seeded walk over the schedules of one effect: who runs when, and what goes wrong.

The real steps run as coroutines that stop at every await; the walk decides which of them goes on,
lets time pass, kills processes between any two awaits, lets stopped ones wake up late, hands runs
to other processes while their owner still lives, and loses answers. The target is the truth: what
it holds at the end is what happened. One seed is one schedule.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass, field
from types import coroutine
from typing import Any, TypeVar
from uuid import UUID

from effect_adapters.base import Answer, DispatchCall, Finding, ProbeCall
from effect_adapters.simulated import SimulatedAdapter
from effect_broker.intake import EffectRequest, Intake
from effect_broker.keyring import AesVault
from effect_broker.proof.memory_store import MemoryStore
from effect_broker.protocol import changes, conclusion
from effect_broker.protocol.conclusion import Next, View
from effect_broker.protocol.ports import (
    Change,
    CommitUnknown,
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
from effect_contracts.canonical import JsonValue
from effect_contracts.document import ContractDocument
from effect_contracts.facts import EffectState, Outcome, Verdict
from effect_contracts.life import is_final
from protocol.world import ARGUMENTS, RING, TENANT, SeenCalls, WorldClock, contract

T = TypeVar("T")

TRANSIT_SECONDS = 4.0  # below the contract's 5
LAG_SECONDS = 50.0  # transit and lag stay below the settlement bound of 60
ACTORS_MAX = 4

DOCUMENTS: dict[str, ContractDocument] = {
    safety: contract(safety, retry={"attempts_max": 4, "backoff_initial_seconds": 2})
    for safety in ("idempotent", "reconcilable", "unsafe", "transactional")
}


@coroutine
def stop(until_seconds: float = 0.0) -> Generator[float, None, None]:
    """Let the walk decide when this process goes on, not before the given time."""
    yield until_seconds


# The outside --------------------------------------------------------------------------------------


@dataclass
class Landing:
    """A request on its way, or the effect that it has become."""

    lands_at: float
    visible_at: float
    key: str


class Ledger:
    """A target whose look-up is truthful within the settlement bound.

    Attributes:
        sends: attempt id and fate of everything that has left.
    """

    def __init__(self, safety: str, clock: WorldClock, chance: random.Random) -> None:
        self.safety = safety
        self.sends: list[tuple[UUID, str]] = []
        self.wires: set[bytes] = set()
        self.calm = False
        self._landings: list[Landing] = []
        self._clock = clock
        self._chance = chance

    def entries(self, *, visible: bool = False) -> list[Landing]:
        """Return the effects there are now, or those that a look-up shows."""
        now, found = self._clock.seconds, list[Landing]()
        for landing in sorted(self._landings, key=lambda each: each.lands_at):
            if landing.lands_at > now:
                continue
            if self.safety == "idempotent" and found:
                continue  # the same key
            found.append(landing)
        return [e for e in found if not visible or e.visible_at <= now]

    async def receive(self, key: str, arguments: JsonValue, call: DispatchCall) -> Answer:
        """See `SimulatedTarget`: no stop before the request is on its way."""
        fates = ["lands"] if self.calm else [
            "lands", "lands", "lost answer", "late", "never", "refused", "busy", "unreached",
        ]  # fmt: skip
        fate = self._chance.choice(fates)
        self.sends.append((call.attempt_id, fate))
        self.wires.add(call.wire)
        now = self._clock.seconds
        if fate in {"lands", "lost answer", "late"} and self.safety != "transactional":
            lands_at = now + (self._chance.uniform(0, TRANSIT_SECONDS) if fate == "late" else 0)
            visible_at = lands_at + self._chance.choice([0.0, 1.0, LAG_SECONDS])
            self._landings.append(Landing(lands_at, visible_at, key))
        await stop()
        match fate:
            case "refused":
                return Answer(Outcome.REJECTED, "refused")
            case "busy":
                return Answer(Outcome.RETRYABLE, "busy")
            case "unreached":
                return Answer(Outcome.NOT_SENT, "connect_refused", bytes_may_have_left=False)
            case "lands":
                return Answer(Outcome.COMMITTED, "committed", "sim_1")
        if self.safety == "transactional":
            return Answer(Outcome.COMMITTED, "committed", "sim_1")
        await stop(now + self._chance.choice([0.0, max(call.budget.remaining_seconds(), 0.0)]))
        return Answer(Outcome.AMBIGUOUS, "deadline")

    async def look_up(self, call: ProbeCall) -> Finding:
        """See `SimulatedTarget`."""
        await stop()
        found = self.entries(visible=True)  # what is true at some moment of the exchange
        await stop()
        if not self.calm and self._chance.random() < 0.2:
            return Finding(Verdict.UNKNOWN, "unmatched_status_503")
        if not found:
            return Finding(Verdict.NOT_COMMITTED, "absent")
        if len(found) > 1:
            return Finding(Verdict.MISMATCH, "several_matches", ("sim_1", "sim_2"))
        return Finding(Verdict.COMMITTED, "found", ("sim_1",))


class StoppingAdapter(SimulatedAdapter):
    """Stops before the last gate, where a process may be paused for any time."""

    async def dispatch(self, call: DispatchCall) -> Answer:
        """See `Adapter.dispatch`."""
        await stop()
        return await super().dispatch(call)


# The inside ---------------------------------------------------------------------------------------


class StoppingStore:
    """The store as one process sees it: slow, busy, away, and with answers that get lost."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk

    async def load(self, tenant_id: UUID, effect_id: UUID) -> Snapshot:
        """See `EffectStore.load`."""
        await stop()
        return await self._walk.memory.load(tenant_id, effect_id)

    async def payload(
        self, tenant_id: UUID, effect_id: UUID, kind: str, ref: str = ""
    ) -> Sealed | None:
        """See `EffectStore.payload`."""
        await stop()
        return await self._walk.memory.payload(tenant_id, effect_id, kind, ref)

    async def change(self, tenant_id: UUID, effect_id: UUID, plan: Plan[T]) -> T:
        """See `EffectStore.change`."""
        memory, trouble = self._walk.memory, await self._trouble()
        if trouble == "lost, undone":
            await memory.change(tenant_id, effect_id, lambda s: Change(plan(s).result))
            raise CommitUnknown
        wrote = False

        def planned(snapshot: Snapshot) -> Change[T]:
            nonlocal wrote
            change = plan(snapshot)
            wrote = bool(change.writes)
            return change

        result = await memory.change(tenant_id, effect_id, planned)
        self._walk.check_written(result if wrote else None)
        await stop()
        if trouble == "lost, committed":
            raise CommitUnknown
        return result

    async def mutate(
        self,
        tenant_id: UUID,
        effect_id: UUID,
        mutation: Mutation,
        plan: Callable[[Snapshot, Answer], Change[T]],
    ) -> T:
        """See `EffectStore.mutate`."""
        trouble = await self._trouble()
        if trouble == "lost, undone":
            raise CommitUnknown
        self._walk.mutating = True
        try:
            result = await self._walk.memory.mutate(tenant_id, effect_id, mutation, plan)
        finally:
            self._walk.mutating = False
        await stop()
        if trouble == "lost, committed":
            raise CommitUnknown
        return result

    async def _trouble(self) -> str:
        await stop()
        chance = self._walk.chance
        if self._walk.mutating:
            raise StoreBusy  # its transaction holds the effect's row
        if self._walk.ledger.calm or chance.random() > 0.12:
            return ""
        trouble = chance.choice(["away", "busy", "lost, committed", "lost, undone"])
        if trouble == "away":
            raise StoreUnavailable
        if trouble == "busy":
            raise StoreBusy
        return trouble


class WalkProcess:
    """One process; its clock is everybody's, its rests are the walk's to end."""

    def __init__(self, name: str, walk: Walk) -> None:
        self.executor_id = name
        self._walk = walk

    def boot_seconds(self) -> float:
        """See `Clock`."""
        return self._walk.clock.seconds

    async def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        await stop(self._walk.clock.seconds + seconds)

    def may_dispatch(self) -> bool:
        """Whether it beats and does not drain."""
        return self._walk.ledger.calm or self._walk.chance.random() > 0.03

    async def rest(self, seconds: float) -> None:
        """See `Process`."""
        await stop(self._walk.clock.seconds + seconds)

    async def complete(self, work: Callable[[], Awaitable[T]]) -> T:
        """See `Process`."""
        return await work()


@dataclass
class Actor:
    """One execution of one generation's run, by one process."""

    generation: int
    recorded: list[StepResult]
    running: Coroutine[Any, Any, str]
    until_seconds: float = 0.0


@dataclass
class Walk:
    """One schedule.

    Args:
        safety: the class of the effect.
        seed: of all chance.
    """

    safety: str
    seed: int
    mutating: bool = False
    actors: list[Actor] = field(default_factory=list)
    ended: list[Actor] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.clock = WorldClock()
        self.ledger = Ledger(self.safety, self.clock, self.chance)
        self.memory = MemoryStore(self.clock.now, lambda _t, _e, g: self.start(g, []))
        self.memory.apply_contract(DOCUMENTS[self.safety])
        self.adapter = StoppingAdapter({"ledger": self.ledger})
        self.vault = AesVault(RING)
        self.effect_id = UUID(int=0)
        self._ids = 0
        self._processes = 0

    # The schedule ---------------------------------------------------------------------------------

    def run(self, steps_max: int = 90) -> None:
        """Walk; then let everything that is left come to rest.

        Raises:
            AssertionError: a promise is broken.
        """
        self._submit()
        for _ in range(steps_max):
            self._step()
        self.ledger.calm = True
        for _ in range(3000):
            if not self.actors and self.intent.next_action_at is None:
                break
            self._calm_step()
        else:
            raise AssertionError(f"stuck: {self.intent}")
        self.clock.seconds += 10**4
        self._check_the_end()

    def _submit(self) -> None:
        intake = Intake(
            self.memory, {"simulated": self.adapter}, RING, self.vault, lambda _name: None
        )
        request = EffectRequest("order-1", DOCUMENTS[self.safety].tool, ARGUMENTS)
        submitting = intake.submit(TENANT, request)
        try:
            submitting.send(None)
        except StopIteration as done:
            self.effect_id = done.value.intent.effect_id
        for actor in self.actors:
            actor.running.close()
        self.actors.clear()  # started before the id was known
        self.start(1, [])

    def start(self, generation: int, recorded: list[StepResult]) -> None:
        """A process enters a run; it replays the steps whose results were recorded."""
        self._processes += 1
        process = WalkProcess(f"worker-{self._processes}", self)
        ports = Ports(
            store=StoppingStore(self),
            adapters={"simulated": self.adapter},
            vault=self.vault,
            clock=process,
            process=process,
            new_id=self._new_id,
            reach=lambda _name: None,
        )
        calls = SeenCalls(ports, self.effect_id, generation, recorded)
        self.actors.append(Actor(generation, calls.recorded, drive(calls)))

    def _new_id(self) -> UUID:
        self._ids += 1
        return UUID(int=self._ids)

    def _step(self) -> None:
        dice = self.chance.random()
        if dice < 0.70 and self._go_on():
            return
        if dice < 0.82:
            self.clock.seconds += self.chance.choice([0.01, 0.5, 2.0, 7.0, 31.0, 70.0])
        elif dice < 0.87 and self.actors:
            self._end(self.chance.choice(self.actors), "killed")
        elif dice < 0.94:
            # Now and then a run is taken for dead that lives: its process was only slow.
            self._requeue(although_alive=self.chance.random() < 0.3)
        elif len(self.actors) < ACTORS_MAX:
            known = [*self.actors, *self.ended]
            if known:  # the engine hands a run to another process, with what it has recorded
                actor = self.chance.choice(known)
                kept = self.chance.randint(0, len(actor.recorded))
                self.start(actor.generation, list(actor.recorded[:kept]))

    def _go_on(self) -> bool:
        ready = [a for a in self.actors if a.until_seconds <= self.clock.seconds]
        if ready:
            self._send(self.chance.choice(ready))
        return bool(ready)

    def _send(self, actor: Actor) -> None:
        self.clock.seconds += 0.001
        try:
            actor.until_seconds = actor.running.send(None)
        except StopIteration:
            self._end(actor, "ended")
        except StoreError:
            self._end(actor, "store error")

    def _end(self, actor: Actor, how: str) -> None:
        actor.running.close()
        self.actors.remove(actor)
        self.ended.append(actor)
        self.trace.append(f"{self.clock.seconds:.3f} generation {actor.generation} {how}")

    def _requeue(self, *, although_alive: bool = False) -> None:
        intent = self.intent
        alive = any(a.generation == intent.generation for a in self.actors)
        if self.mutating or (alive and not although_alive) or len(self.actors) >= ACTORS_MAX:
            return
        change = self.memory.change(
            TENANT.tenant_id,
            self.effect_id,
            lambda s: changes.requeue(s, expected_generation=intent.generation, actor="walk"),
        )
        try:
            change.send(None)
        except StopIteration:
            return
        raise AssertionError("a change of the memory store stops nowhere")

    def _calm_step(self) -> None:
        if self._go_on():
            return
        self._requeue()
        if self._go_on():
            return
        moments = [a.until_seconds for a in self.actors]
        if (due_at := self.intent.next_action_at) is not None:
            moments.append(self.clock.seconds + (due_at - self.clock.now()).total_seconds())
        self.clock.seconds = max(min(moments, default=0.0), self.clock.seconds + 0.001)

    # What must hold -------------------------------------------------------------------------------

    @property
    def intent(self) -> Any:
        """The effect's row."""
        return self.memory.snapshot(self.effect_id).intent

    def check_written(self, result: object) -> None:
        """What a change has told its run is what the next reader finds."""
        if not isinstance(result, View):
            return
        snapshot = self.memory.snapshot(self.effect_id)
        fresh, decision = conclusion.view(snapshot, snapshot.intent.target_identity or "")
        told = (result.next, result.version, result.state, result.ordinal, result.at)
        assert told == (fresh.next, fresh.version, fresh.state, fresh.ordinal, fresh.at)
        assert decision is None or not conclusion.needs_writing(snapshot, decision)
        if fresh.next in {Next.DISPATCH, Next.PROBE}:
            assert snapshot.intent.next_action_at is not None
            assert snapshot.intent.next_action_at <= snapshot.now

    def _check_the_end(self) -> None:
        snapshot = self.memory.snapshot(self.effect_id)
        intent, ledger = snapshot.intent, self.ledger
        sent = [attempt_id for attempt_id, _ in ledger.sends]
        assert len(sent) == len(set(sent)), "an attempt is sent once"
        assert set(sent) <= {a.attempt_id for a in snapshot.attempts}, "no byte without a row"
        assert len(ledger.wires) <= 1, "the same bytes on every attempt"
        effects = len(ledger.entries())
        if self.safety == "transactional":
            effects = int(snapshot.mutation_ordinal is not None)
        assert effects <= 1, "at most one effect"
        if self.safety == "unsafe":
            doubtful = [
                f for _, f in ledger.sends if f in {"lands", "lost answer", "late", "never"}
            ]
            assert len(doubtful) <= 1, "an unsafe effect is never sent again after doubt"
        if intent.state is EffectState.SUCCEEDED:
            assert effects == 1, "success is true"
        if intent.state is EffectState.FAILED_FINAL:
            assert effects == 0, "failure is true"
        assert is_final(intent.state) or self.memory.parked(self.effect_id), "nothing is stuck"
        assert is_final(intent.state) == (self.memory.receipt(self.effect_id) is not None)
        events = self.memory.events(self.effect_id)
        assert [e.sequence for e in events] == list(range(2, intent.version + 1))
