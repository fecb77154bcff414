"""History: an effect as it stood after any of its events, folded from the stored events alone.

The fold asks nobody and decides nothing: it repeats what was written. Kinds, actors and members are
read by `effect_contracts.trace.kinds`, as the trace check reads them. What an event says depends on
the version it was written in; `UPCASTERS` lead from each version to the next, and the fold knows
the last one only, so that the oldest effect is read like the newest.

    1   everything so far; the member `event_schema` is absent
    2   the form that is folded: `fact` names what the event tells, `drill_id` stands in each submit

An event that cannot be read, of a newer release or altered, does not stop the fold: its move, its
reason and its actor are columns and still count. It is listed in `unread`, and what it told is not
known. Whether the events are those that were written, `ChainCheck` says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from effect_contracts.canonical import JsonValue
from effect_contracts.events import FIRST_PREVIOUS_DIGEST, Event, event_digest
from effect_contracts.facts import FINAL_STATES, Outcome
from effect_contracts.trace.findings import Broken
from effect_contracts.trace.kinds import DRILL_MEMBER, EventKind, read_event
from effect_contracts.trace.log import EventRecord

# The version that the fold reads.
SCHEMA_VERSION: Final = 2
# The member of an event's metadata that names the version it was written in; absent for the first.
SCHEMA_MEMBER: Final = "event_schema"
_FIRST_VERSION: Final = 1

Members = Mapping[str, Any]


class Fact(StrEnum):
    """What an event adds to the knowledge of an effect."""

    SUBMIT = "submit"
    ATTEMPT = "attempt"
    OUTCOME = "outcome"
    LOOK_UP = "look_up"
    EVIDENCE = "evidence"
    RESOLUTION = "resolution"
    NOTHING = "nothing"


_BEGIN_LOOK_UPS: Final = frozenset({EventKind.PROBE_STARTED, EventKind.COUNT_STARTED})


def _name_the_fact(kind: EventKind, members: Members) -> Members:
    """1 to 2. Until then two kinds held an outcome or evidence, told apart by their members."""
    fact = Fact.NOTHING
    if kind is EventKind.SUBMITTED:
        return {DRILL_MEMBER: None, **members, "fact": Fact.SUBMIT}
    if kind in _BEGIN_LOOK_UPS:
        fact = Fact.LOOK_UP
    elif "conclusion" in members:
        fact = Fact.RESOLUTION
    elif "attempt_id" in members:
        fact = Fact.ATTEMPT
    elif "outcome" in members:
        fact = Fact.OUTCOME
    elif "verdict" in members:
        fact = Fact.EVIDENCE
    return {**members, "fact": fact}


# From a version to the next; one entry for each version that was ever written.
UPCASTERS: Final[Mapping[int, Callable[[EventKind, Members], Members]]] = MappingProxyType(
    {1: _name_the_fact}
)


class EventUnreadable(Exception):
    """An event whose members cannot be understood; the text says why and holds no value of it."""


def upcast(record: EventRecord) -> tuple[EventKind, Members]:
    """Return an event's kind and its members in the version that is folded.

    Raises:
        EventUnreadable: a newer version, an unknown kind, or members that do not belong to it.
    """
    version = _version(record.metadata)
    if version > SCHEMA_VERSION:
        raise EventUnreadable("it was written by a newer release")
    try:
        read = read_event(record)
    except Broken as broken:
        raise EventUnreadable(broken.what) from None
    members: Members = {k: v for k, v in read.metadata.items() if k != SCHEMA_MEMBER}
    for at in range(version, SCHEMA_VERSION):
        members = UPCASTERS[at](read.kind, members)
    return read.kind, members


def _version(metadata: str) -> int:
    try:
        value: Any = json.loads(metadata)
    except (ValueError, RecursionError):
        raise EventUnreadable("its metadata is not JSON") from None
    version = value.get(SCHEMA_MEMBER, _FIRST_VERSION) if isinstance(value, dict) else None
    if type(version) is not int or version < _FIRST_VERSION:
        raise EventUnreadable("it names no version")
    return version


# What was known ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttemptThen:
    """An attempt as it was known; `outcome` is None while nothing was told of it."""

    ordinal: int
    attempt_id: str
    actor: str
    started_at: datetime
    outcome: str | None = None
    code: str | None = None
    told_at: datetime | None = None
    late: bool = False


@dataclass(frozen=True, slots=True)
class EvidenceThen:
    """Evidence as its event told of it."""

    source: str
    verdict: str
    code: str
    covers_through: int
    actor: str
    at: datetime


@dataclass(frozen=True, slots=True)
class ResolutionThen:
    """What a person had concluded."""

    decision_id: str
    conclusion: str
    covers_through: int
    actor: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Deed:
    """Who did what, one for each event."""

    at: datetime
    actor: str
    kind: str
    from_state: str | None
    to_state: str
    reason: str


@dataclass(frozen=True, slots=True)
class EffectThen:
    """An effect as it stood after an event.

    Attributes:
        begins_at: the first event that was kept; above 1 what came before was pruned.
        look_ups: how many were begun.
        contradicted: a fact after the end has contradicted the receipt, and nobody has dealt with
            it.
        unread: events whose members could not be read.
        deeds: by the event's number.
    """

    sequence: int
    begins_at: int
    at: datetime
    state: str
    reason: str
    actor: str
    submitted_by: str | None = None
    drill_id: str | None = None
    attempts: Mapping[int, AttemptThen] = field(default_factory=dict)
    evidence: Mapping[int, EvidenceThen] = field(default_factory=dict)
    resolutions: Mapping[int, ResolutionThen] = field(default_factory=dict)
    look_ups: int = 0
    contradicted: bool = False
    unread: tuple[int, ...] = ()
    deeds: Mapping[int, Deed] = field(default_factory=dict)

    @property
    def final(self) -> bool:
        """Whether it had ended."""
        return self.state in {state.value for state in FINAL_STATES}

    def to_json(self) -> dict[str, JsonValue]:
        """Return it as the API shows it."""
        return {
            "sequence": self.sequence,
            "at": _moment(self.at),
            "complete": self.begins_at == 1 and not self.unread,
            "state": self.state,
            "final": self.final,
            "reason": self.reason,
            "actor": self.actor,
            "submitted_by": self.submitted_by,
            "drill_id": self.drill_id,
            "look_ups": self.look_ups,
            "contradicted": self.contradicted,
            "attempts": [_json(one) for _, one in sorted(self.attempts.items())],
            "evidence": _numbered(self.evidence),
            "resolutions": _numbered(self.resolutions),
            "deeds": _numbered(self.deeds),
            "unread": list(self.unread),
        }


class Fold:
    """Folds events in order of their sequence.

    Args:
        lost: by ordinal, when an attempt was presumed lost. No event tells of it by itself; it is
            a column that is written once, in the transaction of the event of that moment.
    """

    def __init__(self, lost: Mapping[int, datetime] | None = None) -> None:
        self._lost = dict(lost or {})
        self._begins_at: int | None = None
        self._latest: EventRecord | None = None
        self._submitted_by: str | None = None
        self._drill_id: str | None = None
        self._attempts: dict[int, AttemptThen] = {}
        self._evidence: dict[int, EvidenceThen] = {}
        self._resolutions: dict[int, ResolutionThen] = {}
        self._look_ups = 0
        self._contradicted = False
        self._unread: list[int] = []
        self._deeds: dict[int, Deed] = {}

    def add(self, record: EventRecord) -> None:
        """Take the next event."""
        if self._begins_at is None:
            self._begins_at = record.sequence
        self._latest = record
        self._deeds[record.sequence] = Deed(
            record.at, record.actor, record.kind, record.from_state, record.to_state, record.reason
        )
        self._presume_lost(record.at)
        try:
            _, members = upcast(record)
            self._learn(record, members)
        except (EventUnreadable, KeyError, TypeError):
            self._unread.append(record.sequence)

    def then(self) -> EffectThen:
        """Return the effect as it stood after the latest event; at least one was added."""
        latest = self._latest
        assert latest is not None, "there is an event"
        assert self._begins_at is not None
        return EffectThen(
            sequence=latest.sequence,
            begins_at=self._begins_at,
            at=latest.at,
            state=latest.to_state,
            reason=latest.reason,
            actor=latest.actor,
            submitted_by=self._submitted_by,
            drill_id=self._drill_id,
            attempts=dict(self._attempts),
            evidence=dict(self._evidence),
            resolutions=dict(self._resolutions),
            look_ups=self._look_ups,
            contradicted=self._contradicted,
            unread=tuple(self._unread),
            deeds=dict(self._deeds),
        )

    def _presume_lost(self, at: datetime) -> None:
        for ordinal, lost_at in list(self._lost.items()):
            known = self._attempts.get(ordinal)
            if known is None or lost_at > at:
                continue
            del self._lost[ordinal]
            if known.outcome is None:
                self._attempts[ordinal] = _told(
                    known, Outcome.PRESUMED_AMBIGUOUS.value, None, lost_at, late=False
                )

    def _learn(self, record: EventRecord, members: Members) -> None:
        number, at, actor = record.sequence, record.at, record.actor
        match members["fact"]:
            case Fact.SUBMIT:
                self._submitted_by, self._drill_id = actor, members[DRILL_MEMBER]
            case Fact.ATTEMPT:
                ordinal = members["ordinal"]
                self._attempts[ordinal] = AttemptThen(ordinal, members["attempt_id"], actor, at)
            case Fact.OUTCOME:
                ordinal = members["ordinal"]
                # Its start may have been pruned.
                known = self._attempts.get(ordinal) or AttemptThen(ordinal, "", actor, at)
                self._attempts[ordinal] = _told(
                    known, members["outcome"], members["code"], at, late=members["late"]
                )
            case Fact.LOOK_UP:
                self._look_ups += 1
            case Fact.EVIDENCE:
                self._evidence[number] = EvidenceThen(
                    members["source"], members["verdict"], members["code"],
                    members["covers_through"], actor, at,
                )  # fmt: skip
            case Fact.RESOLUTION:
                self._resolutions[number] = ResolutionThen(
                    members["decision_id"], members["conclusion"], members["covers_through"],
                    actor, at,
                )  # fmt: skip
            case _:
                pass
        self._contradicted |= members.get("contradicts") is True
        if record.kind == EventKind.ACKNOWLEDGED.value:
            self._contradicted = False


def _told(
    known: AttemptThen, outcome: str, code: str | None, at: datetime, *, late: bool
) -> AttemptThen:
    return AttemptThen(
        known.ordinal, known.attempt_id, known.actor, known.started_at, outcome, code, at, late
    )


# Two moments ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs between two moments, by its place; None where it was not there."""

    place: str
    before: JsonValue
    after: JsonValue

    def to_json(self) -> dict[str, JsonValue]:
        """Return it as the API shows it."""
        return {"place": self.place, "before": self.before, "after": self.after}


# They differ between any two moments, and say nothing of the effect.
_NOT_COMPARED: Final = frozenset({"sequence", "at", "deeds", "actor"})


def compare(one: EffectThen, other: EffectThen) -> tuple[Difference, ...]:
    """Return what changed from the earlier of two moments to the later, place by place."""
    earlier, later = sorted((one, other), key=lambda then: then.sequence)
    before, after = dict(_places(earlier)), dict(_places(later))
    return tuple(
        Difference(place, before.get(place), after.get(place))
        for place in sorted(before.keys() | after.keys())
        if before.get(place) != after.get(place)
    )


def deeds_between(one: EffectThen, other: EffectThen) -> list[JsonValue]:
    """Return who did what after the earlier of two moments, up to the later."""
    earlier, later = sorted((one, other), key=lambda then: then.sequence)
    return _numbered({n: d for n, d in later.deeds.items() if n > earlier.sequence})


def _places(then: EffectThen) -> Iterator[tuple[str, JsonValue]]:
    for name, value in then.to_json().items():
        if name in _NOT_COMPARED:
            continue
        if not isinstance(value, list) or name == "unread":
            yield name, value
            continue
        for one in value:
            assert isinstance(one, dict), "each list holds objects"
            number = one.get("ordinal", one.get("sequence"))
            for inner, part in one.items():
                yield f"{name}.{number}.{inner}", part


# The chain --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChainReport:
    """Whether events are those that were written.

    Attributes:
        begins_at: the first event that was looked at; None without any.
        ends_at: the last.
        broken_at: the first that does not fit; None for a chain that is intact.
        what: in words.
    """

    begins_at: int | None
    ends_at: int | None
    broken_at: int | None
    what: str | None

    @property
    def intact(self) -> bool:
        """Whether every digest follows from its event and the digest before."""
        return self.what is None

    def to_json(self) -> dict[str, JsonValue]:
        """Return it as the API shows it."""
        return {
            "intact": self.intact,
            "from_sequence": self.begins_at,
            "through_sequence": self.ends_at,
            "broken_at_sequence": self.broken_at,
            "what": self.what,
        }


class ChainCheck:
    """Computes the digests of events again, in order of their sequence.

    Args:
        before: number and digest of the event before the first that is looked at. Without it the
            chain begins where it begins; where the oldest events were pruned, the first that was
            kept is believed in what it says of the one before.
    """

    def __init__(
        self, tenant_id: UUID, effect_id: UUID, before: tuple[int, bytes] | None = None
    ) -> None:
        self._ids = (tenant_id, effect_id)
        self._before = before
        self._begins_at: int | None = None
        self._broken: tuple[int | None, str] | None = None

    def add(self, record: EventRecord) -> None:
        """Look at the next event; after the first that is broken nothing more is said."""
        if self._begins_at is None:
            self._begins_at = record.sequence
        if self._broken is None and (what := self._fault(record)) is not None:
            self._broken = (record.sequence, what)
        self._before = (record.sequence, bytes.fromhex(record.digest))

    def end(self, version: int, digest: bytes) -> None:
        """Compare with what the effect's own row keeps as the head of its chain."""
        if self._broken is None and self._before != (version, digest):
            what = f"the effect names another last event, {version}, than the chain has"
            self._broken = (None, what)

    def report(self) -> ChainReport:
        """Return what was seen."""
        ends_at = None if self._begins_at is None or self._before is None else self._before[0]
        broken_at, what = self._broken or (None, None)
        return ChainReport(self._begins_at, ends_at, broken_at, what)

    def _fault(self, record: EventRecord) -> str | None:
        told = bytes.fromhex(record.previous_digest)
        expected = FIRST_PREVIOUS_DIGEST if record.sequence == 1 else None
        if self._before is not None:
            number, expected = self._before
            if record.sequence != number + 1:
                return f"event {number} is followed by {record.sequence}"
        if expected is not None and told != expected:
            return "it does not bear the digest of the event before"
        computed = event_digest(
            told,
            Event(
                *self._ids, record.sequence, record.kind, record.event, record.from_state,
                record.to_state, record.reason, record.actor, record.at, record.metadata,
            ),
        )  # fmt: skip
        if computed.hex() != record.digest:
            return "its digest does not fit its content"
        return None


# Shapes -----------------------------------------------------------------------------------------

_Row = AttemptThen | EvidenceThen | ResolutionThen | Deed


def _numbered(rows: Mapping[int, Any]) -> list[JsonValue]:
    return [{"sequence": number, **_json(row)} for number, row in sorted(rows.items())]


def _json(row: _Row) -> dict[str, JsonValue]:
    values = {name: getattr(row, name) for name in type(row).__slots__}
    return {n: _moment(v) if isinstance(v, datetime) else v for n, v in values.items()}


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).isoformat()
