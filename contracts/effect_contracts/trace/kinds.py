"""The kinds of events: who may write each, and which members its metadata has.

One table, so that a new kind is one entry here and one arm in `replay`. Metadata is canonical
JSON; members that do not stand here are refused, since nothing would check them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from effect_contracts.canonical import canonical_bytes
from effect_contracts.errors import InvalidPayload
from effect_contracts.facts import EvidenceSource
from effect_contracts.trace.findings import Rule, require
from effect_contracts.trace.log import EventRecord


class EventKind(StrEnum):
    """What an event tells."""

    SUBMITTED = "submitted"
    ATTEMPT_STARTED = "attempt_started"
    ATTEMPT_EXTENDED = "attempt_extended"
    OUTCOME_RECORDED = "outcome_recorded"
    PROBE_STARTED = "probe_started"
    EVIDENCE_ADDED = "evidence_added"
    RESOLVED = "resolved"
    RECONCILE_ASKED = "reconcile_asked"
    CANCELLED = "cancelled"
    APPROVED = "approved"
    DENIED = "denied"
    COMPENSATED = "compensated"
    ACKNOWLEDGED = "acknowledged"
    WAIT = "wait"
    PARK = "park"
    SETTLE = "settle"
    PARKED = "parked"
    LATE_FACT = "late_fact"
    COUNT_STARTED = "count_started"
    COUNTED = "counted"
    DUPLICATE_DETECTED = "duplicate_detected"
    COUNT_GIVEN_UP = "count_given_up"


@dataclass(frozen=True, slots=True)
class KindRule:
    """How an event of one kind looks.

    Attributes:
        roles: the part of the actor before its colon; empty where the fact says who may.
        members: of the metadata, all of them required.
        further: members that may stand there too.
    """

    roles: frozenset[str]
    members: frozenset[str]
    further: frozenset[str] = frozenset()


_WORKER: Final = frozenset({"worker"})
_BROKER: Final = frozenset({"worker", "reconciler"})
_CALLER: Final = frozenset({"caller", "operator"})
# A caller that is elected is the sender of its attempt.
_SENDER: Final = frozenset({"worker", "caller"})
# Whoever asks to be elected writes what has become due meanwhile.
_DECIDER: Final = _BROKER | frozenset({"caller"})

OUTCOME_MEMBERS: Final = frozenset({"ordinal", "outcome", "code", "late"})
EVIDENCE_MEMBERS: Final = frozenset({"source", "verdict", "code", "covers_through"})
RESOLUTION_MEMBERS: Final = frozenset(
    {"decision_id", "conclusion", "evidence_id", "digest", "covers_through"}
)
APPROVAL_MEMBERS: Final = frozenset({"decision_id", "digest"})
# The id of the drill that a new effect has met. Its first run is left to the drill's worker for a
# while, at most so long; no drill can be armed with more.
DRILL_MEMBER: Final = "drill_id"
DRILL_TAKEOVER_SECONDS_MAX: Final = 600

# What binds rows to the chain. Optional, since the first releases' events did not have them; an
# event that has one cannot lose it without breaking the chain.
WIRE_MEMBER: Final = "wire_digest"
FACT_MEMBER: Final = "fact_digest"
EVIDENCE_ID_MEMBER: Final = "evidence_id"
RECEIPT_MEMBER: Final = "receipt_digest"
# Until when an extended lease lasts, as `receipt_time` spells it.
DEADLINE_MEMBER: Final = "deadline_at"
# The certificate on which an attempt was granted, and until when it would have fitted.
CERTIFICATE_MEMBER: Final = "certificate_id"
CERTIFIED_MEMBER: Final = "certified_until"
# The turn at a limited target that an effect waits for, as `receipt_time` spells it.
TURN_MEMBER: Final = "turn_at"
_TURN: Final = frozenset({TURN_MEMBER})
_FACT: Final = frozenset({FACT_MEMBER})
_SEEN: Final = frozenset({FACT_MEMBER, EVIDENCE_ID_MEMBER})
_SETTLING: Final = frozenset({RECEIPT_MEMBER})

_ROW: Final = frozenset({"row"})
_LATE: Final = frozenset({"contradicts"})

KINDS: Final[Mapping[EventKind, KindRule]] = {
    EventKind.SUBMITTED: KindRule(
        _CALLER, frozenset({"contract_digest", "request_hash"}), frozenset({DRILL_MEMBER})
    ),
    EventKind.ATTEMPT_STARTED: KindRule(
        _SENDER,
        frozenset({"ordinal", "attempt_id"}),
        frozenset({WIRE_MEMBER, CERTIFICATE_MEMBER, CERTIFIED_MEMBER}),
    ),
    EventKind.ATTEMPT_EXTENDED: KindRule(
        frozenset({"caller"}), frozenset({"ordinal", DEADLINE_MEMBER})
    ),
    EventKind.OUTCOME_RECORDED: KindRule(
        _SENDER, OUTCOME_MEMBERS | _ROW, _FACT | _SETTLING | _TURN
    ),
    EventKind.PROBE_STARTED: KindRule(_WORKER, frozenset({"covers_through"})),
    EventKind.EVIDENCE_ADDED: KindRule(
        frozenset(), EVIDENCE_MEMBERS | _ROW, _SEEN | _SETTLING | _TURN
    ),
    EventKind.RESOLVED: KindRule(
        frozenset({"operator"}),
        RESOLUTION_MEMBERS | _ROW,
        frozenset({"proposed_by"}) | _FACT | _SETTLING | _TURN,
    ),
    EventKind.RECONCILE_ASKED: KindRule(_CALLER, _ROW, _SETTLING | _TURN),
    EventKind.CANCELLED: KindRule(_CALLER, _ROW, _SETTLING),
    EventKind.APPROVED: KindRule(
        frozenset({"operator"}), APPROVAL_MEMBERS | _ROW, _SETTLING | _TURN
    ),
    EventKind.DENIED: KindRule(frozenset({"operator"}), APPROVAL_MEMBERS | _ROW, _SETTLING),
    EventKind.COMPENSATED: KindRule(_BROKER, frozenset({"by"})),
    EventKind.ACKNOWLEDGED: KindRule(frozenset({"operator"}), frozenset({"alert"})),
    EventKind.WAIT: KindRule(_DECIDER, _ROW, _TURN),
    EventKind.PARK: KindRule(_DECIDER, _ROW),
    EventKind.SETTLE: KindRule(_DECIDER, _ROW, _SETTLING),
    EventKind.PARKED: KindRule(_BROKER, frozenset({"generation"})),
    # Facts after the end: an outcome or evidence, told apart by their members.
    EventKind.LATE_FACT: KindRule(frozenset(), _LATE, _SEEN),
    EventKind.COUNTED: KindRule(_WORKER, EVIDENCE_MEMBERS | _LATE, _SEEN),
    EventKind.DUPLICATE_DETECTED: KindRule(frozenset(), _LATE, _SEEN),
    EventKind.COUNT_STARTED: KindRule(_WORKER, frozenset({"covers_through"})),
    EventKind.COUNT_GIVEN_UP: KindRule(_BROKER, frozenset({"why", "generation"})),
}

# What may follow the end of an effect.
AFTER_END: Final = frozenset(
    {
        EventKind.LATE_FACT,
        EventKind.COUNT_STARTED,
        EventKind.COUNTED,
        EventKind.DUPLICATE_DETECTED,
        EventKind.COUNT_GIVEN_UP,
        EventKind.COMPENSATED,
        EventKind.ACKNOWLEDGED,
    }
)

# Kinds that hold either fact.
_EITHER_FACT: Final = frozenset({EventKind.LATE_FACT, EventKind.DUPLICATE_DETECTED})

# Who may tell what.
SOURCE_ROLES: Final[Mapping[EvidenceSource, frozenset[str]]] = {
    EvidenceSource.PROBE: _WORKER,
    # A caller's too: of a transaction of its own.
    EvidenceSource.TRANSACTION: _SENDER,
    EvidenceSource.WEBHOOK: frozenset({"webhook", "caller"}),
    EvidenceSource.OPERATOR: frozenset({"operator", "caller"}),
}


@dataclass(frozen=True, slots=True)
class ReadEvent:
    """An event whose kind, actor and metadata are of the right form."""

    record: EventRecord
    kind: EventKind
    role: str
    metadata: Mapping[str, Any]

    def of_outcome(self) -> bool:
        """Whether the fact that it tells is an attempt's outcome."""
        return "outcome" in self.metadata

    def number(self, member: str) -> int:
        """Return a member that is a whole number.

        Raises:
            Broken: it is something else; true is no number.
        """
        value = self.metadata[member]
        require(type(value) is int, Rule.KIND, f"{member} is no whole number")
        assert isinstance(value, int)
        return value


def read_event(record: EventRecord) -> ReadEvent:
    """Return the event, understood.

    Raises:
        Broken: an unknown kind, a role that does not do this, or other members.
    """
    try:
        kind = EventKind(record.kind)
    except ValueError:
        require(False, Rule.KIND, "an unknown kind of event")
        raise
    role, colon, name = record.actor.partition(":")
    require(bool(colon and name), Rule.ACTOR, "the actor has no role and name")
    metadata = _metadata(record.metadata)
    rule = KINDS[kind]
    members = rule.members
    if kind in _EITHER_FACT:
        members |= OUTCOME_MEMBERS if "outcome" in metadata else EVIDENCE_MEMBERS
    told = metadata.keys() - rule.further
    require(told == members, Rule.KIND, f"{kind} has other members than these")
    if rule.roles:
        require(role in rule.roles, Rule.ACTOR, f"{kind} is not written by such an actor")
    return ReadEvent(record, kind, role, metadata)


def _metadata(text: str) -> dict[str, Any]:
    try:
        value: Any = json.loads(text)
        canonical = canonical_bytes(value) == text.encode()
    except (ValueError, RecursionError, InvalidPayload):
        value, canonical = None, False
    require(canonical and isinstance(value, dict), Rule.KIND, "its metadata is not canonical")
    assert isinstance(value, dict)
    return value
