"""A simulated world: time, store, target, processes, and everything that can happen in it.

The world offers moves; it does not choose between them. `schedule` lets chance choose, and
`exploration` tries them all. A move lets one actor go on to its next stop, lets time pass, or
makes trouble. Moves that keep the world going by itself (`quiet_move`) bring every effect to rest
once trouble has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from effect_broker import repair
from effect_broker.proof.memory_certificates import MemoryCertificate
from effect_broker.proof.simulation.choices import Choices, first_against
from effect_broker.proof.simulation.coroutines import stop
from effect_broker.proof.simulation.invariants import Invariant, Judge, Violation
from effect_broker.proof.simulation.processes import (
    Actor,
    PlainVault,
    ProcessStore,
    RunCalls,
    SimulatedProcess,
)
from effect_broker.proof.simulation.scope import Fault, Scope
from effect_broker.proof.simulation.store import (
    TENANT,
    SimulationStore,
    submissions,
    unrendered,
)
from effect_broker.proof.simulation.story import change_words
from effect_broker.proof.simulation.target import (
    TOO_LATE_SECONDS,
    Entry,
    Landing,
    Send,
    SimulatedTargetAdapter,
    objects,
)
from effect_broker.protocol.ports import Change, Ports, Snapshot, StaleWrite, StoreError, VaultError
from effect_broker.protocol.run import GENERATION_FIRST, StepResult, drive
from effect_contracts.facts import Certified, Hold, SafetyClass

TARGET_IDENTITY: Final = "simulated:target#acct_1"

# Longer than any schedule.
_CERTIFIED_SECONDS: Final = 10 * 366 * 86_400.0

EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)

# More actors than this at once show nothing new and cost time.
ACTORS_MAX: Final = 5

_LAG_WITHOUT_BOUND_SECONDS: Final = 50.0

# What an actor does that is a tick of repair.
REPAIR: Final = "repair"


@dataclass(slots=True)
class Allowance:
    """How many faults of some kinds may still happen."""

    left: int


class World:
    """One world.

    Args:
        scope: what it contains.
        choices: all its chance.
        telling: keep a story of what happens.
        exploring: keep track of what every actor has seen, for fingerprints.

    Attributes:
        seconds: the time, of which the database's clock is an offset.
        queue: the runs that the engine has not given to a process yet.
        allowance: how many faults may still happen, of each kind that is counted; kinds may share
            one. No entry means as many as chance wants.
    """

    def __init__(
        self, scope: Scope, choices: Choices, *, telling: bool = False, exploring: bool = False
    ) -> None:
        self.scope = scope
        self.exploring = exploring
        self.choices = choices
        self.telling = telling
        self.story: list[str] = []
        self.seconds = 0.0
        self.ahead_seconds = 0.0
        self.policy = scope.document.policy()
        self.on_wire = scope.safety is not SafetyClass.TRANSACTIONAL
        self.tenant_id = TENANT.tenant_id
        self.vault = PlainVault()
        self.allowance: dict[Fault, Allowance] = {}
        self.queue: list[tuple[UUID, int]] = []
        self.actors: list[Actor] = []
        self.ended: list[Actor] = []
        self.processes: list[SimulatedProcess] = []
        self.locked: dict[UUID, Actor] = {}
        self.sends: list[Send] = []
        self.landings: list[Landing] = []
        self.current: Actor | None = None
        self.store = SimulationStore(self.now, self._enqueue)
        self.judge = Judge(self)
        self.effects: list[UUID] = []
        self._now_of: tuple[float, datetime] = (-1.0, EPOCH)
        self._processes_made = 0
        self.delays = _delays(self)
        self.store.apply_contract(scope.document)
        self.certify()

    # Time -----------------------------------------------------------------------------------

    def now(self) -> datetime:
        """Return the database's clock."""
        at = self.seconds + self.ahead_seconds
        if self._now_of[0] != at:
            self._now_of = (at, EPOCH + timedelta(seconds=at))
        return self._now_of[1]

    def delay(self) -> float:
        """Choose how long something lasts."""
        return self.delays[self.choices.of(len(self.delays))]

    # Chance within the faults ------------------------------------------------------------------

    def allows(self, fault: Fault) -> bool:
        """Whether this fault may happen now."""
        if fault not in self.scope.faults:
            return False
        counted = self.allowance.get(fault)
        return counted is None or counted.left > 0

    def use_up(self, fault: Fault) -> None:
        """Count a fault that happens."""
        counted = self.allowance.get(fault)
        if counted is not None:
            counted.left -= 1

    def spend(self, fault: Fault, times: int) -> bool:
        """Let a fault happen once in so many times."""
        if self.choices.quiet or not self.allows(fault) or not self.choices.once_in(times):
            return False
        self.use_up(fault)
        return True

    def one_of(self, faults: Sequence[Fault], weight: int) -> Fault | None:
        """Choose a fault, or none: the weight of none is `weight`, that of each fault 1."""
        if self.choices.quiet:
            return None
        allowed = [fault for fault in faults if self.allows(fault)]
        if not allowed:
            return None
        picked = self.choices.weighted(first_against(weight, len(allowed)))
        if picked == 0:
            return None
        self.use_up(allowed[picked - 1])
        return allowed[picked - 1]

    def fate(self, fates: Sequence[Fault]) -> Fault | None:
        """Choose what becomes of a request."""
        return self.one_of(fates, 3)

    def store_trouble(self, faults: Sequence[Fault]) -> Fault | None:
        """Choose what becomes of a change."""
        return self.one_of(faults, 30)

    def transit(self) -> float:
        """Choose how long a late request is on its way, within the contract."""
        longest = self.policy.transit_seconds
        if self.policy.settlement_bound_seconds is not None:
            longest = min(longest, self.policy.settlement_bound_seconds)
        return longest / (1 + self.choices.of(2))

    def lag(self) -> float:
        """Choose how long an object stays unseen by look-ups, within the contract or not."""
        if self.spend(Fault.SEEN_TOO_LATE, 2):
            return TOO_LATE_SECONDS
        if not self.spend(Fault.LAG, 2):
            return 0.0
        bound = self.policy.settlement_bound_seconds
        if bound is None:
            return _LAG_WITHOUT_BOUND_SECONDS
        return max(bound - self.policy.transit_seconds, 0.0)

    # The target's ledger ------------------------------------------------------------------------

    def _retention(self) -> float | None:
        if self.scope.faults & {Fault.KEYS_IGNORED}:
            return 0.0
        if self.scope.faults & {Fault.KEYS_FORGOTTEN}:
            return (self.policy.key_retention_seconds or 0.0) / 20
        return self.policy.key_retention_seconds

    def entries(self, effect_id: UUID, identity: str, *, visible: bool = False) -> list[Entry]:
        """Return the objects of an effect in an account, or those that a look-up shows."""
        now = self.seconds
        found = [
            entry
            for entry in self._objects(effect_id)
            if entry.lands_at <= now and entry.identity == identity
        ]
        return [entry for entry in found if not visible or entry.visible_at <= now]

    def objects_in_the_end(self, effect_id: UUID) -> int:
        """Return how many objects there will be when everything on its way has landed."""
        if not self.on_wire:
            return int(self.store.snapshot(effect_id).mutation_ordinal is not None)
        return len(self._objects(effect_id))

    def _objects(self, effect_id: UUID) -> list[Entry]:
        landings = [each for each in self.landings if each.effect_id == effect_id]
        return objects(landings, self.scope.safety, self._retention())

    def record_send(self, send: Send, doubtful: bool) -> None:
        """Keep what has left the broker; it is doubtful unless the answer proves no commit."""
        self.sends.append(send)
        self.judge.landed(send.effect_id, doubtful)

    # Processes, runs and others -----------------------------------------------------------------

    def start(self) -> None:
        """Start the processes and submit the effects."""
        for _ in range(self.scope.processes):
            self.start_process()
        for submission in submissions(self.scope.document, self.scope.effects):
            if self.spend(Fault.UNRENDERED, 4):
                submission = unrendered(submission)
            self.effects.append(submission.effect_id)
            _at_once(self.store.submit(submission))
            if self.spend(Fault.SEND_BEFORE, 6):
                row = self.store._rows[submission.effect_id]
                row.send_before = self.now() + timedelta(seconds=self.delay())

    def start_process(self) -> SimulatedProcess:
        """Start a process incarnation."""
        self._processes_made += 1
        identity = TARGET_IDENTITY
        if self.spend(Fault.MOVED_TARGET, 8):
            identity = "simulated:target#acct_2"
        rate = 1.0
        if self.spend(Fault.SLOW_CLOCK, 2):
            whole = self.policy.attempt_deadline_seconds
            rate = whole / (whole + self.policy.clock_margin_seconds)
        process = SimulatedProcess(self, self._processes_made, identity, rate)
        self.processes.append(process)
        return process

    def _enqueue(self, tenant_id: UUID, effect_id: UUID, generation: int) -> None:
        self.queue.append((effect_id, generation))

    def start_run(
        self,
        process: SimulatedProcess,
        effect_id: UUID,
        generation: int,
        recorded: Sequence[StepResult] = (),
    ) -> Actor:
        """A process enters a run; steps whose results were recorded are replayed."""
        order = self.effects.index(effect_id) + 1
        actor = Actor(
            f"{process.executor_id}, run {generation} of order-{order}",
            process,
            effect_id,
            generation,
            list(recorded),
        )
        ports = Ports(
            store=ProcessStore(self, actor),
            adapters={"simulated": SimulatedTargetAdapter(self, process)},
            vault=self.vault,
            clock=process,
            process=process,
            new_id=process.new_id,
            reach=_reach,
        )
        calls = RunCalls(self, actor, ports, list(recorded))
        new = generation == GENERATION_FIRST
        return self.add_actor(actor, lambda _: drive(calls, new=new))

    def add_actor(
        self, actor: Actor, running: Callable[[Actor], Coroutine[Any, Any, object]]
    ) -> Actor:
        """Let an actor begin."""
        actor.running = running(actor)
        self.actors.append(actor)
        return actor

    def claim(self, index: int, process: SimulatedProcess) -> Actor:
        """The engine gives a queued run to a process."""
        effect_id, generation = self.queue.pop(index)
        return self.start_run(process, effect_id, generation)

    def take_over(self, known: Actor, kept: int, process: SimulatedProcess) -> Actor:
        """The engine gives a run to another process, whatever its owner does."""
        assert known.effect_id is not None
        actor = self.start_run(process, known.effect_id, known.generation, known.recorded[:kept])
        self.tell(f"is given the run of {known.name} with {kept} recorded steps", actor)
        return actor

    def kill(self, process: SimulatedProcess) -> None:
        """SIGKILL."""
        process.alive = False
        self.processes.remove(process)
        for actor in [a for a in self.actors if a.process is process]:
            self._end(actor)
        self.judge.died(process)
        self.tell(f"{process.executor_id} is killed")

    # Readiness and going on ---------------------------------------------------------------------

    def ready(self) -> list[Actor]:
        """Return the actors that can go on now."""
        now = self.seconds
        return [a for a in self.actors if a.until <= now and a.process.paused_until <= now]

    def able(self) -> list[SimulatedProcess]:
        """Return the processes that can be given work now."""
        return [p for p in self.processes if p.paused_until <= self.seconds]

    def go_on(self, actor: Actor) -> None:
        """Let an actor go on to its next stop.

        Raises:
            Violation: what the judge says, or an error that no step may let out.
        """
        self.current = actor
        if self.exploring:
            actor.saw(self.seconds, actor.process.fit)
        actor.moved_at = self.seconds
        self.judge.tried[Invariant.NO_SURPRISE] += 1
        try:
            actor.until = actor.running.send(None)
        except StopIteration:
            self._end(actor)
        except StaleWrite as problem:
            raise Violation(
                Invariant.NO_SURPRISE, "the store refused a write that was planned under its lock"
            ) from problem
        except (StoreError, VaultError) as problem:
            self.tell(f"ends with {type(problem).__name__}")
            self._end(actor)
        except Exception as problem:
            if isinstance(problem, Violation):
                raise
            raise Violation(
                Invariant.NO_SURPRISE, f"{type(problem).__name__}: {problem}"
            ) from problem
        finally:
            self.current = None
        if self.judge.violation is not None:
            raise self.judge.violation

    def _end(self, actor: Actor) -> None:
        actor.running.close()
        self.actors.remove(actor)
        if actor.effect_id is not None and actor.generation:
            self.ended.append(actor)

    def tidy(self) -> None:
        """End all coroutines that are left."""
        for actor in self.actors:
            actor.running.close()
        self.actors.clear()

    def saw(self, *what: object) -> None:
        """Note what the actor that goes on has been shown."""
        if self.exploring and self.current is not None:
            self.current.saw(what)

    # Repair -------------------------------------------------------------------------------------

    def lives(self, effect_id: UUID, generation: int) -> bool:
        """Whether a run of this generation is queued, or is in a process that goes on."""
        if (effect_id, generation) in self.queue:
            return True
        now = self.seconds
        return any(
            a.effect_id == effect_id
            and a.generation == generation
            and a.process.paused_until <= now
            for a in self.actors
        )

    def needs_repair(self, *, hasty: bool = False) -> list[repair.DueEffect]:
        """Return the due effects without a live run."""
        return [
            repair.DueEffect(i.tenant_id, i.effect_id, i.generation)
            for i in self.store.due()
            if hasty or not self.lives(i.effect_id, i.generation)
        ]

    def start_repair(self, process: SimulatedProcess, *, hasty: bool = False) -> Actor:
        """A tick of the reconcile loop begins."""
        actor = Actor(f"{process.executor_id}, repair", process, step=REPAIR)
        runs, store = _DueRuns(self, actor, hasty), ProcessStore(self, actor)
        return self.add_actor(
            actor, lambda _: repair.reconcile(runs, store, process.executor_id, _reach)
        )

    # Others who act -----------------------------------------------------------------------------

    def toggle_hold(self) -> None:
        """Pause the tenant, or let it go on."""
        if self.store.holds:
            self.store.hold(None)
            self.tell("the tenant goes on")
            return
        hold = (Hold.PAUSED, Hold.TENANT_DISABLED)[self.choices.of(2)]
        self.store.hold(hold)
        self.tell(f"the tenant is held: {hold.value}")

    def certify(self, seconds: float = _CERTIFIED_SECONDS) -> None:
        """Store a certificate of the target, if the contract demands one, good for so long."""
        demand = self.policy.certificate
        if demand is None:
            return
        now = self.now()
        said = Certified(
            certificate_id=f"certificate at {self.seconds:.3f}",
            target_identity=TARGET_IDENTITY,
            trials=demand.trials,
            # However old a certificate may be, this one is not: its age counts from its end.
            ended_at=now + timedelta(seconds=_CERTIFIED_SECONDS),
            expires_at=now + timedelta(seconds=seconds),
        )
        self.store.certificates.store(MemoryCertificate(self.scope.document.digest(), said, now))

    def toggle_certificate(self) -> None:
        """The certificate is revoked or soon expires, or another one is stored."""
        if self.store.certificates.in_force(self.scope.document.digest()):
            self.store.certificates.revoke()
            self.tell("the target's certificate is revoked")
            if self.choices.of(2):
                return
        seconds = self.delay()
        self.certify(seconds)
        self.tell(f"the target is certified for {seconds:g} s")

    def spoil(self, effect_id: UUID) -> None:
        """The stored request becomes another one."""
        snapshot = self.store.snapshot(effect_id)
        if snapshot.wire is not None:
            self.tell("the stored request becomes another one")
            wire = snapshot.wire.ciphertext
            self.store.spoil(effect_id, wire[:-1] + b', "spoiled": true}', self.vault)

    # Quiet --------------------------------------------------------------------------------------

    def quiet_move(self) -> bool:
        """Do what happens by itself; False if there is nothing left to do."""
        ready = self.ready()
        if ready:
            self.go_on(ready[0])
            return True
        able = self.able()
        if self.queue and able:
            self.claim(0, able[0])
            return True
        # A loop makes one tick after the other; one that stands still keeps nobody else waiting.
        repairs = any(a.step == REPAIR and a.process in able for a in self.actors)
        if able and not repairs and self.needs_repair():
            self.start_repair(able[0])
            return True
        moment = self.next_moment()
        if moment is None:
            return False
        self.seconds = moment
        return True

    def next_moment(self) -> float | None:
        """Return when something happens by itself next."""
        now = self.seconds
        moments = [a.until for a in self.actors if a.until > now]
        moments += [p.paused_until for p in self.processes if p.paused_until > now]
        for intent in self.store.intents():
            at = intent.next_action_at
            if at is not None:
                due = (at - EPOCH).total_seconds() - self.ahead_seconds
                if due > now:
                    # The next microsecond, since the clock's arithmetic rounds.
                    moments.append(due + 1e-6)
        return min(moments, default=None)

    def at_rest(self) -> bool:
        """Whether nothing will happen by itself any more."""
        return not self.actors and all(
            intent.next_action_at is None for intent in self.store.intents()
        )

    # The story ----------------------------------------------------------------------------------

    def tell(self, text: str, actor: Actor | None = None) -> None:
        """Add a line to the story."""
        if not self.telling:
            return
        who = actor or self.current
        name = f"{who.name}: " if who is not None else ""
        self.story.append(f"{self.seconds:10.3f}  {name}{text}")

    def tell_change(self, before: Snapshot, after: Snapshot, change: Change[Any]) -> None:
        """Add what a commit has changed to the story."""
        for line in change_words(before, after, change):
            self.tell(line)


class _DueRuns:
    """What repair asks the store about runs (`repair.RunStore`), in a simulated world."""

    def __init__(self, world: World, actor: Actor, hasty: bool) -> None:
        self._world = world
        self._actor = actor
        self._hasty = hasty

    async def due_effects(self, limit: int) -> list[repair.DueEffect]:
        """Return what is due and not alive, or is taken for dead."""
        await stop()
        due = self._world.needs_repair(hasty=self._hasty)[:limit]
        self._actor.saw(tuple(due))
        # One at a time: the judge compares the generation that was found due.
        self._actor.generation = due[0].generation if len(due) == 1 else 0
        return due

    async def release_lifted(self, limit: int) -> int:
        """Let effects go on whose hold was lifted."""
        await stop()
        store = self._world.store
        certified = await store.release_certified(limit, lambda _: TARGET_IDENTITY)
        return certified + await store.release_lifted(limit)

    async def ended_compensations(self, limit: int) -> list[repair.EndedCompensation]:
        """No effect of this world undoes another one."""
        return []

    async def settle_link(self, tenant_id: UUID, effect_id: UUID) -> None:
        """See `ended_compensations`."""

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


def _reach(_name: str) -> None:
    """No fault point is armed in a simulated world: every await is one."""


def _at_once(asking: Coroutine[Any, Any, object]) -> None:
    try:
        asking.send(None)
    except StopIteration:
        return
    raise AssertionError("the store in memory waits for nothing here")


def _delays(world: World) -> tuple[float, ...]:
    """How long things may last: about every duration that the contract gives a meaning."""
    policy = world.policy
    whole = policy.attempt_deadline_seconds + policy.clock_margin_seconds
    found = {
        0.01,
        policy.backoff_initial_seconds,
        policy.transit_seconds + 0.1,
        whole / 2,
        whole * 0.9,
        whole + 0.1,
        whole + policy.transit_seconds + 1.0,
    }
    bound = policy.settlement_bound_seconds
    if bound is not None:
        found |= {bound + 0.1, whole + bound + 1.0}
    if policy.key_retention_seconds is not None:
        found |= {policy.key_retention_seconds - whole, policy.key_retention_seconds + 1.0}
    return tuple(sorted(seconds for seconds in found if seconds > 0))
