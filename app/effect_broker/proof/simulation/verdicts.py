"""What a contract document gives under each fault: can it duplicate, omit or park?

The contract's own numbers and class are run by the shipped protocol against the simulated target.
Faults that the broker has to bear are taken one at a time. A fault that breaks a promise is taken
together with the usual troubles (lost answers, deaths, pauses), since a promise matters only when
something else has gone wrong. What was found has a story; what was not found was not found in so
many schedules, which is no proof.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from effect_broker.proof.simulation.schedule import (
    Ending,
    Outcome,
    run_picks,
    run_seed,
    silence,
)
from effect_broker.proof.simulation.scope import (
    BORNE,
    BROKEN_PROMISES,
    Fault,
    Scope,
    possible_faults,
    stand_in,
)
from effect_broker.proof.simulation.shrinking import shrunk
from effect_contracts.document import ContractDocument
from effect_contracts.facts import EffectState
from effect_contracts.life import is_final

# What goes wrong anyway, wherever a promise is broken.
USUAL: Final = frozenset(
    {Fault.LOST_ANSWER, Fault.LOST_REQUEST, Fault.DEATH, Fault.PAUSE, Fault.TAKEOVER}
)

# A story is for reading; the last possible cut is not worth the wait.
_SHRINK_TRIES: Final = 400

# The reasons of an end without an object that somebody asked for.
_ASKED_FOR: Final = frozenset({"rejected", "expired", "cancelled", "failed_by_operator"})


class Harm(StrEnum):
    """What can become of an effect, other than one object and a true receipt."""

    DUPLICATE = "duplicate"
    OMISSION = "omission"
    PARKED = "parked"
    FALSE_RECEIPT = "false_receipt"


@dataclass(frozen=True, slots=True)
class Found:
    """A harm that is possible, with its shortest story."""

    picks: tuple[int, ...]
    story: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found under one fault.

    Attributes:
        fault: None for a world without any.
        harms: the harms that were found.
        broken: an invariant of the broker itself broke: a bug of the broker.
    """

    fault: Fault | None
    schedules: int
    harms: dict[Harm, Found]
    broken: tuple[str, ...] = ()

    @property
    def breaks_promise(self) -> bool:
        """Whether the fault is one that nobody promised to bear."""
        return self.fault in BROKEN_PROMISES


def scope_of(document: ContractDocument, fault: Fault | None) -> Scope:
    """Return the world of one row.

    Raises:
        ContractInvalid: the contract has no simulated stand-in.
    """
    simulated = stand_in(document)
    faults: frozenset[Fault] = frozenset()
    if fault is not None:
        faults = frozenset({fault})
    if fault is Fault.FORGOTTEN_OPERATION:
        faults |= {Fault.OPERATION}
    if fault in BROKEN_PROMISES:
        faults |= USUAL
    if fault is Fault.EAGER_OPERATOR:
        faults |= {Fault.OPERATOR, Fault.LATE_LANDING}
    return Scope(simulated, possible_faults(simulated, faults), processes=2, moves=60)


def faults_of(document: ContractDocument) -> tuple[Fault | None, ...]:
    """Return the faults that mean something for the contract, in order; first none at all."""
    possible = possible_faults(stand_in(document), BORNE | BROKEN_PROMISES)
    return (None, *(fault for fault in Fault if fault in possible))


def verdicts(document: ContractDocument, schedules: int, first_seed: int) -> Iterator[Verdict]:
    """Judge the contract under each fault, one row after the other.

    Raises:
        ContractInvalid: the contract has no simulated stand-in.
    """
    for fault in faults_of(document):
        yield verdict(document, fault, schedules, first_seed)


def verdict(
    document: ContractDocument, fault: Fault | None, schedules: int, first_seed: int
) -> Verdict:
    """Judge the contract under one fault."""
    scope = scope_of(document, fault)
    if not scope.faults:
        schedules = min(schedules, 50)  # two processes that have no trouble meet soon
    shown: dict[Harm, tuple[int, ...]] = {}
    broken: tuple[str, ...] = ()
    with silence():
        for seed in range(first_seed, first_seed + schedules):
            outcome = run_seed(scope, seed)
            if outcome.violation is not None and not broken:
                broken = tuple(run_picks(scope, outcome.picks, telling=True).story)
            for harm in harms_of(outcome):
                if harm not in shown or len(outcome.picks) < len(shown[harm]):
                    shown[harm] = outcome.picks
        harms = {harm: _found(scope, harm, shown[harm]) for harm in Harm if harm in shown}
    return Verdict(fault, schedules, harms, broken)


def harms_of(outcome: Outcome) -> set[Harm]:
    """Return the harms that a schedule has shown."""
    if outcome.violation is not None:
        return set()
    return {harm for ending in outcome.endings for harm in _harms(ending)}


def _harms(ending: Ending) -> Iterator[Harm]:
    if ending.objects > 1:
        yield Harm.DUPLICATE
    if not is_final(ending.state):
        yield Harm.PARKED
    if ending.objects == 0 and ending.reason not in _ASKED_FOR:
        yield Harm.OMISSION
    succeeded = ending.state is EffectState.SUCCEEDED
    failed = ending.state is EffectState.FAILED_FINAL and ending.reason != "failed_by_operator"
    if (succeeded and ending.objects == 0) or (failed and ending.objects > 0):
        yield Harm.FALSE_RECEIPT


def _found(scope: Scope, harm: Harm, picks: tuple[int, ...]) -> Found:
    def shows(candidate: Sequence[int]) -> bool:
        return harm in harms_of(run_picks(scope, candidate))

    short = shrunk(picks, shows, _SHRINK_TRIES)
    return Found(short, tuple(run_picks(scope, short, telling=True).story))


def replayed(document: ContractDocument, fault: Fault | None, picks: tuple[int, ...]) -> Outcome:
    """Run one schedule of a row again, with its story."""
    with silence():
        return run_picks(scope_of(document, fault), picks, telling=True)
