"""What a guard of the protocol is (design §4), and how it is switched off alone.

A guard is worth its place only if somebody notices when it is gone. Each entry names its promise,
how it is switched off, a world in which its loss shows, and the invariants that break there. The
guards that only a real database or a real process can lose name the test that shows them.

Some guards are second locks: what they prevent is prevented by others too. Those name the others
in `beside`. A second lock is shown to hold by itself: with the others off the world is still
clean, with it off as well it is not.

Switching off replaces one function or one class of the protocol by a wrapper around itself; no
protocol code is copied here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from effect_broker.proof.simulation.exploration import Depth
from effect_broker.proof.simulation.invariants import Invariant
from effect_broker.proof.simulation.scope import Fault, Scope, sample
from effect_contracts.facts import (
    SafetyClass,
)

_F = Fault
LATEST: Final = datetime.max.replace(tzinfo=UTC)

# Faults that bring two executions of one effect together, at any moment.
CROWD: Final = frozenset({_F.DEATH, _F.PAUSE, _F.TAKEOVER, _F.HASTY_REPAIR, _F.LOST_RUN})


@dataclass(frozen=True)
class Guard:
    """One guard.

    Attributes:
        name: its name in reports.
        prevents: what would happen without it.
        switched_off: switches it off for a block; None if no simulation can.
        scope: a world in which its loss shows.
        breaks: the invariants of which one breaks there.
        depth: explore that world to this depth; without it, chance leads.
        beside: guards that hold the same promise.
        proof: the test that shows a guard which no simulation can lose.
    """

    name: str
    prevents: str
    switched_off: Callable[[], AbstractContextManager[None]] | None = None
    scope: Scope | None = None
    breaks: frozenset[Invariant] = frozenset()
    depth: Depth | None = None
    beside: tuple[str, ...] = ()
    proof: str | None = None

    @property
    def world(self) -> Scope:
        """The world in which its loss is sought.

        An invariant that only says a rule again would break before the harm is done; it is judged
        here only for guards whose loss does no other harm.
        """
        assert self.scope is not None
        unjudged = _RULES_SAID_AGAIN - self.breaks
        return replace(self.scope, unjudged=self.scope.unjudged | unjudged)


_RULES_SAID_AGAIN: Final = frozenset({Invariant.ABSENCE_IS_SETTLED})

GUARDS: Final[dict[str, Guard]] = {}


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Switch guards off while the block runs.

    Raises:
        KeyError: there is no such guard.
    """
    with ExitStack() as stack:
        for name in names:
            off = GUARDS[name].switched_off
            assert off is not None, f"{name} cannot be switched off in a simulation"
            stack.enter_context(off())
        yield


@contextmanager
def patched(*places: tuple[object, str, object]) -> Iterator[None]:
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    for owner, name, value in places:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)


def wrapping(
    owner: object, name: str, wrapper: Callable[..., Any]
) -> Callable[[], AbstractContextManager[None]]:
    """Switch off by a wrapper, which gets the original as its first argument."""

    def off() -> AbstractContextManager[None]:
        original = getattr(owner, name)

        def wrapped(*args: Any, **more: Any) -> Any:
            return wrapper(original, *args, **more)

        return patched((owner, name, wrapped))

    return off


def scope_of(safety: SafetyClass, *faults: Fault, **members: Any) -> Scope:
    sizes = {k: members.pop(k) for k in ("effects", "processes", "moves") if k in members}
    return Scope(sample(safety, **members), frozenset(faults), **sizes)


def add(name: str, prevents: str, *breaks: Invariant, **more: Any) -> None:
    assert name not in GUARDS
    GUARDS[name] = Guard(name, prevents, breaks=frozenset(breaks), **more)
