"""The evidence, sorted by operation: who called, what arrived, what was made.

What belongs to an operation at the target is found by its marker alone, never by a key or by an
id that the broker has given: those are what is judged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from effect_chaos.records import (
    MARKER,
    Answer,
    Arrival,
    Evidence,
    Invocation,
    Operation,
    TableRow,
    TargetObject,
    Verb,
)

T = TypeVar("T", Arrival, TargetObject, TableRow)

FINAL_STATES = frozenset({"succeeded", "failed_final", "cancelled", "compensated"})
DONE_STATES = frozenset({"succeeded", "compensated"})
UNDONE_STATES = frozenset({"failed_final", "cancelled"})

_VIEWS = frozenset({Verb.SUBMIT, Verb.GET})


@dataclass(frozen=True, slots=True)
class View:
    """One effect as an answer of a submit or a read showed it."""

    call: Invocation
    answer: Answer

    @property
    def final(self) -> bool:
        return self.answer.final is True

    @property
    def at_rest(self) -> bool:
        """Settled, or visibly waiting for a person."""
        return self.final or self.answer.waits_for_person is True


@dataclass(frozen=True)
class Case:
    """The evidence with its indexes. Operations are named by (tenant, operation key)."""

    evidence: Evidence
    by_name: Mapping[tuple[str, str], Operation] = field(init=False)

    def __post_init__(self) -> None:
        by_name = {(o.tenant, o.operation_key): o for o in self.evidence.operations}
        object.__setattr__(self, "by_name", by_name)

    @property
    def operations(self) -> tuple[Operation, ...]:
        return self.evidence.operations

    # -- callers ---------------------------------------------------------------------------------

    @cached_property
    def _calls(self) -> Mapping[tuple[str, str], list[Invocation]]:
        calls = defaultdict(list)
        for call in sorted(self.evidence.history, key=lambda call: call.began_at):
            calls[call.tenant, call.operation_key].append(call)
        return calls

    def calls(self, operation: Operation, *verbs: Verb) -> list[Invocation]:
        """The calls of the operation's own tenant about it, in order of their begin."""
        found = self._calls.get((operation.tenant, operation.operation_key), [])
        return [call for call in found if not verbs or call.verb in verbs]

    def views(self, operation: Operation) -> list[View]:
        """What answers showed of the effect, in order of the calls' begin."""
        return [
            View(call, call.answer)
            for call in self.calls(operation, *_VIEWS)
            if call.answer is not None and call.answer.state is not None
        ]

    def last_view(self, operation: Operation) -> View | None:
        """The view whose answer came last."""
        return max(self.views(operation), key=lambda view: view.call.ended_at, default=None)

    def acknowledged(self, operation: Operation) -> list[Invocation]:
        """The submits that were answered with success."""
        return [call for call in self.calls(operation, Verb.SUBMIT) if succeeded(call)]

    def effect_ids(self, operation: Operation) -> frozenset[str]:
        """The effect ids that the operation's submits were given; one, if all is well."""
        answers = (call.answer for call in self.acknowledged(operation))
        return frozenset(answer.effect_id or "" for answer in answers if answer is not None)

    def reported(self, operation: Operation) -> bool:
        """Whether the broker said in the end that something is wrong with the effect."""
        view = self.last_view(operation)
        if view is not None and view.answer.waits_for_person is True:
            return True
        return any(call.answer.alerts for call in self.calls(operation) if call.answer)

    @cached_property
    def owners(self) -> Mapping[str, frozenset[tuple[str, str]]]:
        """The (tenant, operation key) pairs that each effect id was given to by a submit."""
        owners = defaultdict(set)
        for call in self.evidence.history:
            if call.verb is Verb.SUBMIT and succeeded(call):
                assert call.answer is not None
                if call.answer.effect_id is not None:
                    owners[call.answer.effect_id].add((call.tenant, call.operation_key))
        return {effect_id: frozenset(names) for effect_id, names in owners.items()}

    # -- target ----------------------------------------------------------------------------------

    @cached_property
    def _by_marker(self) -> Mapping[str, Operation]:
        return {operation.marker: operation for operation in self.operations}

    def owner_names(self, text: str) -> frozenset[tuple[str, str]]:
        """The operations whose marker stands in a text."""
        found = (self._by_marker.get(marker) for marker in MARKER.findall(text))
        return frozenset((o.tenant, o.operation_key) for o in found if o is not None)

    def _sorted(self, items: Iterable[T]) -> Mapping[tuple[str, str], list[T]]:
        of = defaultdict(list)
        for item in items:
            for name in self.owner_names(item.text):
                of[name].append(item)
        return of

    @cached_property
    def _sends(self) -> Mapping[tuple[str, str], list[Arrival]]:
        return self._sorted(self.sent)

    @cached_property
    def _objects(self) -> Mapping[tuple[str, str], list[TargetObject]]:
        return self._sorted(self.evidence.objects)

    @cached_property
    def _rows(self) -> Mapping[tuple[str, str], list[TableRow]]:
        return self._sorted(self.evidence.rows)

    @property
    def sent(self) -> Iterator[Arrival]:
        """The requests that the target received and that ask for a change."""
        return (a for a in self.evidence.arrivals if a.mutating and a.received)

    def sends(self, operation: Operation) -> list[Arrival]:
        """The changing requests that the target received for the operation."""
        return self._sends.get((operation.tenant, operation.operation_key), [])

    def objects(self, operation: Operation) -> list[TargetObject]:
        """What the target did for the operation."""
        return self._objects.get((operation.tenant, operation.operation_key), [])

    def rows(self, operation: Operation) -> list[TableRow]:
        """What the transactional mutation wrote for the operation."""
        return self._rows.get((operation.tenant, operation.operation_key), [])

    def made(self, operation: Operation) -> frozenset[str]:
        """The distinct things that exist at the target for the operation, by their ids.

        An object that was written twice is one thing; each item of a batch is one.
        """
        of_target = {f"{o.kind}/{o.object_id}" for o in self.objects(operation)}
        return frozenset(of_target | {f"{r.kind}/{r.external_id}" for r in self.rows(operation)})


def succeeded(call: Invocation) -> bool:
    """Whether the call was answered with success."""
    return call.answer is not None and 200 <= call.answer.status < 300


def possible(call: Invocation) -> bool:
    """Whether the call may have been carried out: no answer, a success, or the server's error."""
    return call.answer is None or succeeded(call) or call.answer.status >= 500
