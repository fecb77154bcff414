"""Every schedule of a small world: one effect, two runs at a time, and a bounded number of faults.

The exploration is stateless: a schedule is replayed from its picks, and each pick that had other
options becomes the beginning of others. What keeps this finite and small:

* Time passes only when no process can go on, and then to the next moment at which something
  happens. A process that is slow is one that is paused; pausing is a move of its own.
* The faults of a kind are counted (`Depth`), and so are takeovers.
* A state that was reached before is not left again. Two orders of moves that do not touch each
  other lead to one state, so this also is the partial-order reduction: of every diamond of
  independent moves, one way is followed to its end.

Why that is sound. A state's fingerprint holds all that what follows can depend on: the time, the
rows, the ledger, the queue, what is left of every allowance, what the judge remembers, and for
every coroutine the step it is in with its arguments, and a digest of all that it has been shown
since that step began. The code is deterministic, so a coroutine that has been shown the same has
the same locals. States are compared by 64-bit digests: a collision could hide a state, with a
chance of about n² / 2⁶⁵ for n states.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from effect_broker.proof.simulation.choices import Choices, stripped
from effect_broker.proof.simulation.invariants import Invariant, Violation
from effect_broker.proof.simulation.processes import Actor, SimulatedProcess
from effect_broker.proof.simulation.schedule import settle, silence
from effect_broker.proof.simulation.scope import Fault, Scope, possible_faults, sample
from effect_broker.proof.simulation.world import Allowance, World
from effect_contracts.facts import SafetyClass

_FOREVER: Final = float("inf")
_MOVES_MAX: Final = 3000

TROUBLES: Final = (Fault.DEATH, Fault.PAUSE)
TAKEOVERS: Final = (Fault.TAKEOVER, Fault.HASTY_REPAIR)
STORE_FAULTS: Final = (
    Fault.STORE_AWAY,
    Fault.STORE_BUSY,
    Fault.COMMIT_UNHEARD,
    Fault.COMMIT_LOST,
)
TARGET_FAULTS: Final = (
    Fault.LOST_ANSWER,
    Fault.LATE_LANDING,
    Fault.LOST_REQUEST,
    Fault.REFUSAL,
    Fault.BUSY,
    Fault.UNREACHED,
    Fault.IN_PROGRESS,
    Fault.EXISTS,
    Fault.OPERATION,
    Fault.LAG,
    Fault.SLOW_LOOK_UP,
    Fault.FAILED_LOOK_UP,
)


@dataclass(frozen=True, slots=True)
class Depth:
    """How many faults a schedule may have.

    Attributes:
        troubles: processes that die or stop (and go on at any later moment).
        takeovers: runs that are given to a second process, or taken for dead, while they live.
        store: changes that meet trouble.
        target: what the target does other than act and answer.
        runs: runs that are under way at the same time.
    """

    troubles: int = 1
    takeovers: int = 1
    store: int = 0
    target: int = 1
    runs: int = 2


@dataclass(slots=True)
class Explored:
    """What an exploration has seen.

    Attributes:
        schedules: schedules that were begun; most end at a state that was known.
        ended: schedules that were followed until all was at rest.
        states: different states at which something could be chosen.
        complete: there is no schedule left.
        picks: of the violation, for `replay`.
    """

    schedules: int = 0
    ended: int = 0
    states: int = 0
    complete: bool = False
    violation: Violation | None = None
    picks: tuple[int, ...] = ()
    tried: Counter[Invariant] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Cell:
    """One exploration: a class, what may happen to a process, and how a second run comes about.

    With one trouble and one takeover a schedule, the cells together are the whole.
    """

    safety: SafetyClass
    trouble: Fault
    takeover: Fault

    @property
    def name(self) -> str:
        """Names the cell in reports and for a replay."""
        return f"explored-{self.safety.value}-{self.trouble.value}-{self.takeover.value}"

    @property
    def scope(self) -> Scope:
        """The world of the cell."""
        few = {"attempts_max": 2, "backoff_initial_seconds": 2}
        looks = {"initial_seconds": 40.0, "factor": 2.0, "horizon_seconds": 200.0}
        document = sample(self.safety, retry=few, probe=looks)
        faults = (self.trouble, self.takeover, *STORE_FAULTS, *TARGET_FAULTS)
        return Scope(document, possible_faults(document, faults), processes=1)


CELLS: Final = {
    cell.name: cell
    for cell in (
        Cell(safety, trouble, takeover)
        for safety in SafetyClass
        for trouble in TROUBLES
        for takeover in TAKEOVERS
    )
}


class _Known(Exception):
    """The schedule has come to a state that was there before."""


def explore(scope: Scope, depth: Depth, schedules_max: int | None = None) -> Explored:
    """Follow every schedule, depth first, until one breaks an invariant."""
    seen = Explored()
    states: set[int] = set()
    left: list[tuple[int, ...]] = [()]
    while left:
        if schedules_max is not None and seen.schedules >= schedules_max:
            return seen
        given = left.pop()
        seen.schedules += 1
        choices = Choices(given)
        world = _world(scope, depth, choices)
        try:
            _follow(world, depth, states)
            seen.ended += 1
        except _Known:
            pass
        except Violation as broken:
            seen.violation, seen.picks = broken, stripped(choices.taken)
            seen.tried.update(world.judge.tried)
            return seen
        finally:
            world.tidy()
        seen.states = len(states)
        seen.tried.update(world.judge.tried)
        taken = tuple(choices.taken)
        for at in range(len(given), len(taken)):
            beginning = taken[:at]
            left.extend((*beginning, other) for other in range(1, choices.sizes[at]))
    seen.complete = True
    return seen


def explore_cell(name: str, depth: Depth, schedules_max: int | None) -> Explored:
    """Explore the cell of this name; a task for a pool.

    Raises:
        KeyError: there is no such cell.
    """
    with silence():
        return explore(CELLS[name].scope, depth, schedules_max)


def replay(scope: Scope, depth: Depth, picks: Sequence[int]) -> tuple[Violation | None, list[str]]:
    """Run one schedule of an exploration again; return what broke, and the story."""
    world = _world(scope, depth, Choices(picks), telling=True)
    violation = None
    try:
        _follow(world, depth, None)
    except Violation as broken:
        violation = broken
        world.tell(f"BROKEN: {broken}")
    finally:
        world.tidy()
    return violation, world.story


def _world(scope: Scope, depth: Depth, choices: Choices, *, telling: bool = False) -> World:
    world = World(scope, choices, telling=telling, exploring=True)
    for faults, count in (
        (TROUBLES, depth.troubles),
        (TAKEOVERS, depth.takeovers),
        (STORE_FAULTS, depth.store),
        (TARGET_FAULTS, depth.target),
    ):
        shared = Allowance(count)
        world.allowance.update(dict.fromkeys(faults, shared))
    return world


def _follow(world: World, depth: Depth, states: set[int] | None) -> None:
    """Follow one schedule to its end.

    Raises:
        Violation: an invariant broke.
        _Known: a known state was reached.
    """
    world.start()
    choices = world.choices
    for _ in range(_MOVES_MAX):
        if states is not None and choices.replayed:
            state = hash(_fingerprint(world))
            if state in states:
                raise _Known
            states.add(state)
        moves = _moves(world, depth)
        if not moves:
            break
        moves[choices.of(len(moves))]()
    else:
        raise Violation(Invariant.NOTHING_STUCK, "the world does not come to rest")
    settle(world)


Move = Callable[[], None]


def _moves(world: World, depth: Depth) -> list[Move]:
    """Return what can happen now; the first is what happens without a fault."""
    now = world.seconds
    paused = [p for p in world.processes if p.paused_until > now]
    ready = world.ready()
    moves: list[Move] = [_going_on(world, actor) for actor in ready]
    room = len(world.actors) < depth.runs + len(paused)
    if world.queue and room:
        moves.append(lambda: _claimed(world))
    elif not ready and not world.queue and world.needs_repair():
        moves.append(lambda: _repaired(world, hasty=False))
    if not moves:
        moment = world.next_moment()
        if moment is not None and moment != _FOREVER:
            moves.append(_passing(world, moment))
    moves += [_waking(process) for process in paused]
    if not moves:
        return moves
    for actor in world.actors:
        moves += _troubles(world, actor)
    if room:
        moves += _takeovers(world)
    return moves


def _going_on(world: World, actor: Actor) -> Move:
    return lambda: world.go_on(actor)


def _claimed(world: World) -> None:
    world.claim(0, _new_process(world))


def _new_process(world: World) -> SimulatedProcess:
    """Every run has a process of its own, so that a death or a pause is of one run."""
    busy = {actor.process for actor in world.actors}
    free = [p for p in world.processes if p not in busy]
    return free[0] if free else world.start_process()


def _repaired(world: World, *, hasty: bool) -> None:
    """One tick of repair, without a stop: its guards are the plan's."""
    if hasty:
        world.use_up(Fault.HASTY_REPAIR)
    actor = world.start_repair(_new_process(world), hasty=hasty)
    while actor in world.actors:
        world.go_on(actor)


def _passing(world: World, moment: float) -> Move:
    def passing() -> None:
        world.seconds = moment

    return passing


def _waking(process: SimulatedProcess) -> Move:
    def waking() -> None:
        process.paused_until = 0.0

    return waking


def _troubles(world: World, actor: Actor) -> list[Move]:
    def killed() -> None:
        world.use_up(Fault.DEATH)
        world.kill(actor.process)

    def paused() -> None:
        world.use_up(Fault.PAUSE)
        actor.process.paused_until = _FOREVER
        world.tell(f"{actor.process.executor_id} stops")

    moves: list[Move] = []
    if actor.process.paused_until <= world.seconds:
        if world.allows(Fault.DEATH):
            moves.append(killed)
        if world.allows(Fault.PAUSE):
            moves.append(paused)
    return moves


def _takeovers(world: World) -> list[Move]:
    moves: list[Move] = []
    if world.allows(Fault.TAKEOVER):
        for known in [*world.actors, *world.ended[-1:]]:
            if known.effect_id is None or not known.generation:
                continue
            # With all that was recorded; a run that begins anew is what hasty repair gives.
            moves.append(_taking_over(world, known, len(known.recorded)))
    if world.allows(Fault.HASTY_REPAIR) and world.needs_repair(hasty=True):
        moves.append(lambda: _repaired(world, hasty=True))
    return moves


def _taking_over(world: World, known: Actor, kept: int) -> Move:
    def taking_over() -> None:
        world.use_up(Fault.TAKEOVER)
        world.take_over(known, kept, _new_process(world))

    return taking_over


def _fingerprint(world: World) -> tuple[object, ...]:
    """Return all that can matter for what follows."""
    takeovers = world.allows(Fault.TAKEOVER)
    return (
        world.seconds,
        tuple(world.store.token(effect_id) for effect_id in world.effects),
        tuple(world.queue),
        tuple(world.landings),
        tuple((s.effect_id, s.ordinal, s.identity, s.fate) for s in world.sends),
        tuple((p.number, p.paused_until, p.rate) for p in world.processes),
        tuple(_actor_print(world, actor, takeovers) for actor in world.actors),
        tuple(_recorded(actor) for actor in world.ended[-1:]) if takeovers else (),
        tuple((effect_id, a.process.number) for effect_id, a in world.locked.items()),
        tuple(each.left for each in world.allowance.values()),
        world.judge.fingerprint(),
    )


def _actor_print(world: World, actor: Actor, takeovers: bool) -> tuple[object, ...]:
    return (
        actor.process.number,
        actor.generation,
        actor.until if actor.until > world.seconds else 0.0,
        actor.moved_at if world.locked else 0.0,
        actor.step,
        actor.seen,
        actor.known_version,
        actor.superseded,
        _recorded(actor) if takeovers else (),
    )


def _recorded(actor: Actor) -> tuple[object, ...]:
    results = tuple(tuple(result.items()) for result in actor.recorded)
    return (actor.generation, results)
