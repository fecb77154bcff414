"""Many schedules on many cores, and what they have shown.

A campaign runs seeds through several worlds: small ones, where a few steps of two executions meet
often, and larger ones with several effects under one contract. It stops nowhere: every violation
is counted, and the first of each invariant is kept with its seed.
"""

from __future__ import annotations

import gc
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from effect_broker.proof.simulation.invariants import Invariant
from effect_broker.proof.simulation.schedule import Outcome, Shown, run_picks, run_seed, silence
from effect_broker.proof.simulation.scope import BORNE, Fault, Scope, possible_faults, sample
from effect_broker.proof.simulation.shrinking import shrunk
from effect_contracts.facts import SafetyClass

# Schedules that one task of the pool runs: long enough that handing it out costs nothing.
_CHUNK: Final = 250


@cache
def worlds() -> dict[str, Scope]:
    """Return the worlds of a campaign by name."""
    found: dict[str, Scope] = {}
    for safety in SafetyClass:
        document = sample(safety)
        faults = possible_faults(document, BORNE)
        calm = faults - {Fault.MOVED_TARGET, Fault.SPOILED_REQUEST, Fault.SEND_BEFORE, Fault.DRAIN}
        found[safety.value] = Scope(document, faults)
        # Fewer kinds of trouble and attempts, so that those of the target and of two executions
        # meet more often, and attempts are used up.
        few = sample(safety, retry={"attempts_max": 2, "backoff_initial_seconds": 2})
        found[f"{safety.value}-target"] = Scope(few, calm - {Fault.HOLD, Fault.GIVE_UP})
        found[f"{safety.value}-crowd"] = Scope(document, faults, effects=3, processes=4, moves=120)
    looked_up = sample(
        SafetyClass.IDEMPOTENT,
        adapter={"kind": "simulated", "target": "target", "probes": True},
        probe={"horizon_seconds": 900},
    )
    found["idempotent-looked-up"] = Scope(looked_up, possible_faults(looked_up, BORNE))
    for safety in (SafetyClass.IDEMPOTENT, SafetyClass.RECONCILABLE, SafetyClass.UNSAFE):
        polled = sample(
            safety,
            adapter={
                "kind": "simulated",
                "target": "target",
                "probes": safety is SafetyClass.RECONCILABLE,
                "polls_operations": True,
            },
            probe={"horizon_seconds": 900},
        )
        found[f"{safety.value}-polled"] = Scope(polled, possible_faults(polled, BORNE))
    # A demand closes the gate again and again, before a first attempt and between two.
    certified = sample(SafetyClass.IDEMPOTENT, oversight={"certificate": {}})
    found["idempotent-certified"] = Scope(
        certified, possible_faults(certified, BORNE), effects=2, moves=96
    )
    # Two of three at once, and one in twenty seconds: most wait, whoever dies on the way.
    limited = sample(
        SafetyClass.IDEMPOTENT,
        limits={"concurrency_max": 2, "per_second_max": 0.05, "burst_max": 2},
        key_retention_seconds=900,
    )
    found["idempotent-limited"] = Scope(
        limited, possible_faults(limited, BORNE), effects=3, processes=4, moves=120
    )
    # The one promise that is broken here is what makes the broker freeze the contract.
    broken = sample(SafetyClass.IDEMPOTENT)
    found["idempotent-keys-ignored"] = Scope(
        broken,
        frozenset({Fault.KEYS_IGNORED, Fault.LOST_ANSWER, Fault.WEBHOOK}),
        effects=8,
        moves=120,
    )
    return found


# The larger worlds cost more and show what needs several effects; one schedule in so many.
_LARGE_ONE_IN: Final = 20


def world_of(seed: int) -> str:
    """Return the name of the world that a seed runs in."""
    names = sorted(worlds())
    small = [name for name in names if worlds()[name].effects == 1]
    large = [name for name in names if worlds()[name].effects > 1]
    if seed % _LARGE_ONE_IN == 0:
        return large[(seed // _LARGE_ONE_IN) % len(large)]
    return small[seed % len(small)]


@dataclass(frozen=True, slots=True)
class Broken:
    """A violation: the world and the picks run it again."""

    invariant: Invariant
    text: str
    world: str
    seed: int
    picks: tuple[int, ...]


@dataclass(slots=True)
class Tally:
    """What many schedules have shown."""

    schedules: int = 0
    tried: Counter[Invariant] = field(default_factory=Counter)
    broken: Counter[Invariant] = field(default_factory=Counter)
    first: dict[Invariant, Broken] = field(default_factory=dict)
    worlds: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    sends: int = 0
    late_facts: int = 0
    shown: dict[SafetyClass, Counter[Shown]] = field(default_factory=dict)

    def add(self, world: str, seed: int, outcome: Outcome) -> None:
        """Count one schedule."""
        self.schedules += 1
        self.worlds[world] += 1
        self.tried.update(outcome.tried)
        self.late_facts += outcome.late_facts
        self.shown.setdefault(worlds()[world].safety, Counter()).update(outcome.shown)
        for ending in outcome.endings:
            self.endings[f"{ending.state.value} ({ending.reason})"] += 1
            self.sends += ending.sends
        broken = outcome.violation
        if broken is not None:
            self.broken[broken.invariant] += 1
            self.first.setdefault(
                broken.invariant,
                Broken(broken.invariant, str(broken), world, seed, outcome.picks),
            )

    def merge(self, other: Tally) -> None:
        """Add what others have counted."""
        self.schedules += other.schedules
        self.sends += other.sends
        self.late_facts += other.late_facts
        self.tried.update(other.tried)
        self.broken.update(other.broken)
        self.worlds.update(other.worlds)
        self.endings.update(other.endings)
        for safety, shown in other.shown.items():
            self.shown.setdefault(safety, Counter()).update(shown)
        for invariant, broken in other.first.items():
            self.first.setdefault(invariant, broken)

    def untried(self) -> list[Invariant]:
        """Return the invariants that no schedule could have broken."""
        return [invariant for invariant in Invariant if not self.tried[invariant]]


def run_campaign(
    first_seed: int,
    schedules: int,
    *,
    processes: int = 1,
    told: Callable[[Tally], None] = lambda _: None,
) -> Tally:
    """Run so many seeds from the first; `told` is called now and then with the tally so far."""
    chunks = [
        (seed, min(_CHUNK, first_seed + schedules - seed))
        for seed in range(first_seed, first_seed + schedules, _CHUNK)
    ]
    tally = Tally()
    for part in _parts(chunks, processes):
        tally.merge(part)
        told(tally)
    return tally


def _parts(chunks: Iterable[tuple[int, int]], processes: int) -> Iterator[Tally]:
    if processes == 1:
        yield from map(_run_chunk, chunks)
        return
    # Not forked: the parent may have threads, and a child needs nothing of it.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_collect_less) as pool:
        yield from pool.map(_run_chunk, chunks)


def _collect_less() -> None:
    """Leave what is loaded out of the collector's rounds, and make them rarer.

    A schedule makes thousands of small objects that live as long as it does; to look at all of them
    again and again cost a tenth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def _run_chunk(chunk: tuple[int, int]) -> Tally:
    first, count = chunk
    tally = Tally()
    with silence():
        for seed in range(first, first + count):
            name = world_of(seed)
            tally.add(name, seed, run_seed(worlds()[name], seed))
    return tally


def shortest(scope: Scope, picks: tuple[int, ...], invariant: Invariant) -> tuple[int, ...]:
    """Return shorter picks of the same world that break the same invariant."""

    def shows(candidate: Sequence[int]) -> bool:
        broken = run_picks(scope, candidate).violation
        return broken is not None and broken.invariant is invariant

    with silence():
        return shrunk(picks, shows)
