"""The judge of a cell: what was seen, against its expectation and against what holds for all.

It knows nothing of how the cell was run. What it is given comes from the target's own ledger and
from the API, as a caller sees it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from effect_broker.proof.matrix.axes import Cell, Fault, TargetClass
from effect_broker.proof.matrix.expected import (
    Expected,
    Situation,
    expected,
    expected_meanwhile,
    situation,
)
from effect_contracts.counting import counted
from effect_contracts.facts import Alert, SafetyClass

# A duplicate by the target's lie is found by the later count, or by the late word of the process
# that made the first one.
_DUPLICATE_ALERTS: Final = frozenset({Alert.DUPLICATE_DETECTED.value, "late_contradiction"})


@dataclass(frozen=True, slots=True)
class Seen:
    """How an effect stands at one moment.

    Attributes:
        attempts: granted so far.
        requests: received by the target; keys and bodies are the distinct ones among them.
        effects: held by the target.
        frozen: nothing is sent under its contract any more.
        rests: final, or waiting for a person.
    """

    state: str
    reason: str
    alert: str | None
    final: bool
    rests: bool
    receipt: bool
    attempts: int
    requests: int
    effects: int
    keys: int = 1
    bodies: int = 1
    frozen: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """All that one cell has shown.

    Attributes:
        end: how the effect stands in the end.
        meanwhile: how it stood while the stopped process had not come back.
        struck: whether the fault was seen to happen.
        same_effect: whether a resubmit in the end gave the same effect.
        remarks: what went wrong on the way, in words.
    """

    end: Seen
    meanwhile: Seen | None = None
    struck: bool = True
    same_effect: bool = True
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What did not hold, in words.

    Attributes:
        broken: guarantees of every cell; one is enough, however it came to it.
        unexpected: another end than expected, within all guarantees. On a machine that has no
            time it may be an honest one (a deadline that passed before the answer was read).
    """

    broken: tuple[str, ...]
    unexpected: tuple[str, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.broken, *self.unexpected)


def verdict(cell: Cell, observation: Observation) -> Verdict:
    """Judge what a cell has shown."""
    wanted = expected_meanwhile(cell)
    unexpected = list(_unexpected("", expected(cell), observation.end))
    broken = list(_guarantees(cell, observation.end))
    if wanted is not None and observation.meanwhile is not None:
        unexpected += _unexpected("before the process came back: ", wanted, observation.meanwhile)
        broken += _guarantees(cell, observation.meanwhile)
    if not observation.struck:
        unexpected.append("the fault did not strike")
    if not observation.same_effect:
        broken.append("a resubmit did not give the same effect")
    return Verdict((*observation.remarks, *dict.fromkeys(broken)), tuple(unexpected))


def _unexpected(when: str, wanted: Expected, seen: Seen) -> Iterator[str]:
    if (seen.state, seen.requests, seen.effects) != (wanted.state, wanted.requests, wanted.effects):
        yield (
            f"{when}expected {wanted.state} with {counted(wanted.requests, 'request')} and "
            f"{counted(wanted.effects, 'effect')}"
        )
    if wanted.duplicate and not (seen.alert and seen.frozen):
        yield f"{when}expected an alert and a frozen contract"
    if wanted.reason is not None and seen.reason != wanted.reason:
        yield f"{when}expected the reason {wanted.reason}"


def _guarantees(cell: Cell, seen: Seen) -> Iterator[str]:
    """What holds for every cell, whatever its expectation says."""
    if seen.effects > 1 and not _may_duplicate(cell):
        yield "a duplicate where the class forbids it"
    # Sent again on the word of a look-up that was false, or came too early: a count finds it.
    misled = cell.target.safety is SafetyClass.RECONCILABLE and seen.attempts > 1
    if misled and seen.effects > 1 and seen.alert not in _DUPLICATE_ALERTS:
        yield "the duplicate was not detected"
    if seen.keys > 1 or seen.bodies > 1:
        yield "not the same key and bytes on every request"
    if cell.fault is not Fault.TWICE and seen.requests > seen.attempts:
        yield "more requests than attempts"
    if seen.receipt != seen.final:
        yield "a receipt belongs to every settled effect and to no other"
    if not seen.rests:
        yield "neither final nor visibly waiting"
    if seen.state == "succeeded" and not seen.effects:
        yield "a success without an effect"
    if seen.state in {"failed_final", "cancelled"} and seen.effects:
        yield "a failure although the target holds the effect"


def _may_duplicate(cell: Cell) -> bool:
    """Where two effects are the target's doing, the network's, or of a process that was stopped
    behind its last gate, and no broker can prevent it."""
    lied = cell.target is TargetClass.RECONCILABLE_LYING
    late = situation(cell) is Situation.SENDS_LATE
    keyed = cell.target in {TargetClass.IDEMPOTENT, TargetClass.IDEMPOTENT_EXPIRING}
    if late and cell.target.safety is SafetyClass.RECONCILABLE:
        return True
    return lied or (cell.fault is Fault.TWICE and not keyed)
