"""What a store tells of its work to whoever counts or traces it; it never waits for an answer.

Everything that becomes of an effect is a committed change, so this one place sees all of it,
whoever made the change: a step, an operator, a webhook, the repair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from effect_broker.protocol.ports import Change, Snapshot, StoreError


class StoreObserver(Protocol):
    """Is told what a store has done. Must be quick, and must not raise."""

    def loaded(self, snapshot: Snapshot) -> None:
        """An effect was read without a lock."""

    def changed(self, snapshot: Snapshot, change: Change[Any]) -> None:
        """A change was committed as planned on `snapshot`; one without writes changed nothing."""

    def failed(self, problem: StoreError) -> None:
        """A transaction failed."""


class Observers:
    """Tells several observers, in order; with none, nobody."""

    def __init__(self, observers: Sequence[StoreObserver] = ()) -> None:
        self._observers = tuple(observers)

    def loaded(self, snapshot: Snapshot) -> None:
        """Tell each of a read."""
        for observer in self._observers:
            observer.loaded(snapshot)

    def changed(self, snapshot: Snapshot, change: Change[Any]) -> None:
        """Tell each of a change."""
        for observer in self._observers:
            observer.changed(snapshot, change)

    def failed(self, problem: StoreError) -> None:
        """Tell each of a failure."""
        for observer in self._observers:
            observer.failed(problem)


UNOBSERVED = Observers()
