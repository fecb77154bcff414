"""One schedule: a world that chance leads for a while, and quiet until all is at rest.

The same scope and seed are the same schedule, and so are the same scope and picks.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from effect_broker.proof.simulation.choices import Chance, Choices, Weights, stripped
from effect_broker.proof.simulation.invariants import Invariant, Violation
from effect_broker.proof.simulation.others import start_other
from effect_broker.proof.simulation.scope import Fault, Scope
from effect_broker.proof.simulation.target import TOO_LATE_SECONDS
from effect_broker.proof.simulation.world import ACTORS_MAX, World
from effect_contracts.facts import EffectState

# Far more than any contract needs to come to rest; a world that goes on longer never will.
_QUIET_MOVES_MAX: Final = 4000

# What chance does with a move. The first is what happens by itself.
_QUIET, _GO_ON, _TIME, _DEATH, _PAUSE, _TAKEOVER, _REPAIR, _LOST_RUN, _DRAIN, _OTHERS = range(10)
_WEIGHTS: Final = {
    _QUIET: 25,
    _GO_ON: 45,
    _TIME: 9,
    _DEATH: 4,
    _PAUSE: 5,
    _TAKEOVER: 5,
    _REPAIR: 5,
    _LOST_RUN: 1,
    _DRAIN: 2,
    _OTHERS: 5,
}
_FAULT_OF_MOVE: Final = {
    _DEATH: Fault.DEATH,
    _PAUSE: Fault.PAUSE,
    _TAKEOVER: Fault.TAKEOVER,
    _LOST_RUN: Fault.LOST_RUN,
    _DRAIN: Fault.DRAIN,
}
_OTHER_FAULTS: Final = (
    Fault.HOLD,
    Fault.UNCERTIFIED,
    Fault.OPERATOR,
    Fault.GIVE_UP,
    Fault.WEBHOOK,
    Fault.CANCEL,
    Fault.LOOK,
    Fault.SPOILED_REQUEST,
    Fault.FAST_DATABASE,
    Fault.STRANGE_NOTICE,
)


# What a schedule has gone through: `event`, `move`, `reason`, `outcome`, `evidence`, `resolution`,
# and which.
Shown = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Ending:
    """How one effect of a schedule came to rest.

    Attributes:
        objects: what the target holds of it.
        doubtful_sends: requests that may have made an object.
    """

    state: EffectState
    reason: str
    objects: int
    sends: int


@dataclass(slots=True)
class Outcome:
    """What one schedule showed.

    Attributes:
        picks: all its chance; replays it.
        violation: the invariant that broke, if one did.
        tried: how often each invariant could have been broken.
        shown: what the effects' rows and events hold, as kind and word (`Shown`).
    """

    picks: tuple[int, ...]
    violation: Violation | None
    endings: tuple[Ending, ...]
    tried: Counter[Invariant]
    shown: Counter[Shown] = field(default_factory=Counter)
    late_facts: int = 0
    story: list[str] = field(default_factory=list)


def run_seed(scope: Scope, seed: int) -> Outcome:
    """Run the schedule of a seed."""
    return _run(scope, Choices((), Chance(seed)), telling=False)


def run_picks(scope: Scope, picks: Sequence[int], *, telling: bool = False) -> Outcome:
    """Run the schedule of a list of picks."""
    return _run(scope, Choices(picks), telling=telling)


def _run(scope: Scope, choices: Choices, *, telling: bool) -> Outcome:
    world = World(scope, choices, telling=telling)
    violation: Violation | None = None
    try:
        world.start()
        weights = _weights(scope.faults)
        for _ in range(scope.moves):
            _move(world, weights)
        settle(world)
    except Violation as broken:
        violation = broken
        world.tell(f"BROKEN: {broken}")
    finally:
        world.tidy()
    shown = shown_by(world)
    return Outcome(
        stripped(choices.taken),
        violation,
        endings_of(world),
        world.judge.tried,
        shown,
        late_facts=shown["event", "late_fact"],
        story=world.story,
    )


def endings_of(world: World) -> tuple[Ending, ...]:
    """Return how the effects of a world stand."""
    found = []
    for effect_id in world.effects:
        intent = world.store.snapshot(effect_id).intent
        sends = sum(send.effect_id == effect_id for send in world.sends)
        objects = world.objects_in_the_end(effect_id)
        found.append(Ending(intent.state, intent.reason, objects, sends))
    return tuple(found)


def shown_by(world: World) -> Counter[Shown]:
    """Return what the effects of a world have gone through."""
    shown: Counter[Shown] = Counter()
    for effect_id in world.effects:
        snapshot = world.store.snapshot(effect_id)
        for event in world.store.events(effect_id):
            write = event.advance
            shown["event", write.kind] += 1
            shown["move", write.event.value] += 1
            shown["reason", str(write.reason)] += 1
        for attempt in snapshot.attempts:
            shown["outcome", str(attempt.fact.outcome)] += 1
        for row in snapshot.evidence:
            shown["evidence", f"{row.fact.source} {row.fact.verdict}"] += 1
        for resolution in world.store.resolutions(effect_id):
            shown["resolution", resolution.conclusion.value] += 1
    return shown


def settle(world: World) -> None:
    """Let everything come to rest without further trouble, and judge the end.

    Raises:
        Violation.
    """
    world.choices.quiet = True
    world.tell("— from here on nothing goes wrong any more —")
    world.store.hold(None)
    world.certify()
    for process in world.processes:
        process.fit = True
    if not world.processes:
        world.start_process()
    world.start_repair(world.processes[0])  # what was held and is so no more
    for _ in range(_QUIET_MOVES_MAX):
        if not world.quiet_move() and world.at_rest():
            break
    else:
        raise Violation(Invariant.NOTHING_STUCK, "the world does not come to rest")
    world.seconds += 2 * TOO_LATE_SECONDS
    for effect_id in world.effects:
        world.judge.end(effect_id)


@lru_cache(maxsize=256)
def _weights(faults: frozenset[Fault]) -> Weights:
    weights = dict(_WEIGHTS)
    for move, fault in _FAULT_OF_MOVE.items():
        if fault not in faults:
            weights[move] = 0
    if not faults & set(_OTHER_FAULTS):
        weights[_OTHERS] = 0
    return Weights.of(*weights.values())


def _move(world: World, weights: Weights) -> None:
    move = world.choices.weighted(weights)
    if move == _QUIET:
        world.quiet_move()
    elif move == _GO_ON:
        _go_on(world)
    elif move == _TIME:
        _let_pass(world)
    elif move == _REPAIR:
        _repair(world)
    elif move == _TAKEOVER:
        _take_over(world)
    elif move == _OTHERS:
        _others_act(world)
    else:
        _harm(world, move)


def _go_on(world: World) -> None:
    choices, ready = world.choices, world.ready()
    able = world.able()
    queued = len(world.queue) if able and len(world.actors) < ACTORS_MAX else 0
    if not ready and not queued:
        return
    picked = choices.of(len(ready) + queued)
    if picked < len(ready):
        world.go_on(ready[picked])
    else:
        world.claim(picked - len(ready), able[choices.of(len(able))])


def _let_pass(world: World) -> None:
    """Time passes although somebody could go on: everybody is slow."""
    moment = world.next_moment()
    if moment is not None and world.choices.of(3) == 0:
        world.seconds = moment
    elif Fault.PAUSE in world.scope.faults:
        world.seconds += world.delay()
    else:
        world.seconds += world.delays[0]


def _repair(world: World) -> None:
    able = world.able()
    if not able or len(world.actors) >= ACTORS_MAX:
        return
    hasty = world.spend(Fault.HASTY_REPAIR, 3)
    if world.needs_repair(hasty=hasty):
        world.start_repair(able[world.choices.of(len(able))], hasty=hasty)


def _take_over(world: World) -> None:
    able = world.able()
    known = [a for a in [*world.actors, *world.ended[-4:]] if a.generation and a.effect_id]
    if not able or not known or len(world.actors) >= ACTORS_MAX:
        return
    choices = world.choices
    actor = known[choices.of(len(known))]
    kept = choices.of(len(actor.recorded) + 1)
    world.take_over(actor, kept, able[choices.of(len(able))])


def _harm(world: World, move: int) -> None:
    choices = world.choices
    if move == _LOST_RUN:
        if world.queue:
            del world.queue[choices.of(len(world.queue))]
            world.tell("the engine loses a queued run")
        return
    process = world.processes[choices.of(len(world.processes))]
    if move == _DEATH:
        world.kill(process)
        world.start_process()
    elif move == _PAUSE:
        process.paused_until = world.seconds + world.delay()
        world.tell(f"{process.executor_id} stops until {process.paused_until:.3f}")
    else:
        process.fit = not process.fit
        world.tell(f"{process.executor_id} {'may' if process.fit else 'may not'} dispatch")


def _others_act(world: World) -> None:
    choices = world.choices
    fault = world.one_of(_OTHER_FAULTS, 1)
    if fault is None:
        return
    if fault is Fault.SPOILED_REQUEST and not choices.once_in(8):
        return
    able = world.able()
    effect_id = world.effects[choices.of(len(world.effects))]
    if fault is Fault.HOLD:
        world.toggle_hold()
    elif fault is Fault.UNCERTIFIED:
        world.toggle_certificate()
    elif fault is Fault.SPOILED_REQUEST:
        world.spoil(effect_id)
    elif fault is Fault.FAST_DATABASE:
        world.ahead_seconds += world.delay()
        world.tell("the database's clock jumps ahead")
    elif fault in {Fault.GIVE_UP, Fault.CANCEL} and not choices.once_in(3):
        return
    elif able and len(world.actors) < ACTORS_MAX:
        start_other(world, fault, able[0], effect_id)


@contextmanager
def silence() -> Iterator[None]:
    """Keep repair's warnings of simulated trouble out of the log while the block runs."""
    log = logging.getLogger("effect_broker.repair")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
