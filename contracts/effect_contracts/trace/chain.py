"""The chain of one effect's events: gapless, unbroken, in time, and each move a legal one.

The events may begin later than at 1: pruning removes the oldest. What is left must still be one
chain, from the digest that the first kept event bears to the one that the intent keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise

from effect_contracts.events import Event, event_digest
from effect_contracts.facts import EffectState
from effect_contracts.life import IllegalTransition, LifeEvent, move
from effect_contracts.trace.findings import Finding, Rule
from effect_contracts.trace.log import EffectLine, EventRecord

# The first event of every effect; it makes no move, so `LifeEvent` does not know it.
SUBMITTED = "submitted"


def chain_findings(line: EffectLine, exported_at: datetime) -> Iterator[Finding]:
    """Yield what is wrong with the events as a chain, and with the intent as its head."""
    yield from _sequence_findings(line.events)
    yield from _digest_findings(line)
    yield from _time_findings(line, exported_at)
    yield from _life_findings(line.events)
    yield from _head_findings(line)


def _sequence_findings(events: tuple[EventRecord, ...]) -> Iterator[Finding]:
    if events and events[0].sequence < 1:
        yield Finding(Rule.SEQUENCE, "the first event is numbered below 1", events[0].sequence)
    for before, event in pairwise(events):
        if event.sequence != before.sequence + 1:
            what = f"event {before.sequence} is followed by {event.sequence}"
            yield Finding(Rule.SEQUENCE, what, event.sequence)


def _digest_findings(line: EffectLine) -> Iterator[Finding]:
    previous: str | None = None
    for record in line.events:
        if previous is None and record.sequence == 1:
            previous = ""
        if previous is not None and record.previous_digest != previous:
            what = "it does not bear the digest of the event before"
            yield Finding(Rule.CHAIN, what, record.sequence)
        computed = event_digest(bytes.fromhex(record.previous_digest), _event(line, record)).hex()
        if computed != record.digest:
            yield Finding(Rule.CHAIN, "its digest does not fit its content", record.sequence)
        previous = record.digest


def _event(line: EffectLine, record: EventRecord) -> Event:
    return Event(
        tenant_id=line.intent.tenant_id,
        effect_id=line.intent.effect_id,
        sequence=record.sequence,
        kind=record.kind,
        event=record.event,
        from_state=record.from_state,
        to_state=record.to_state,
        reason=record.reason,
        actor=record.actor,
        at=record.at,
        metadata=record.metadata,
    )


def _time_findings(line: EffectLine, exported_at: datetime) -> Iterator[Finding]:
    for before, event in pairwise(line.events):
        if event.at < before.at:
            yield Finding(Rule.TIME, "it is older than the event before", event.sequence)
    if line.events and line.events[-1].at > exported_at:
        yield Finding(Rule.TIME, "it is younger than the export", line.events[-1].sequence)
    if line.intent.updated_at > exported_at:
        yield Finding(Rule.TIME, "the intent was changed after the export")


def _life_findings(events: tuple[EventRecord, ...]) -> Iterator[Finding]:
    before: EventRecord | None = None
    for event in events:
        if before is not None and event.from_state != before.to_state:
            what = f"it leaves {_shown(event.from_state)}, the event before led elsewhere"
            yield Finding(Rule.LIFE, what, event.sequence)
        if event.sequence == 1:
            begins = (event.event, event.from_state, event.to_state)
            if begins != (SUBMITTED, None, EffectState.PREPARED.value):
                yield Finding(Rule.LIFE, "an effect does not begin like this", event.sequence)
        elif (wrong := _wrong_move(event)) is not None:
            yield Finding(Rule.LIFE, wrong, event.sequence)
        before = event


def _wrong_move(event: EventRecord) -> str | None:
    try:
        target = move(EffectState(event.from_state or ""), LifeEvent(event.event))
    except ValueError:
        return "an unknown state or move"
    except IllegalTransition as illegal:
        return str(illegal)
    if target.value != event.to_state:
        return f"{event.event} leads to {target}, not to {_shown(event.to_state)}"
    return None


def _shown(state: str | None) -> str:
    """A state, or that it is none: a forged word is not repeated."""
    return state if state in set(EffectState) else "an unknown state"


def _head_findings(line: EffectLine) -> Iterator[Finding]:
    if not line.events:
        return
    intent, last = line.intent, line.events[-1]
    stands = {
        "version": (intent.version, last.sequence),
        "event_digest": (intent.event_digest, last.digest),
        "state": (intent.state.value, last.to_state),
        "reason": (intent.reason, last.reason),
    }
    for name, (stored, told) in stands.items():
        if stored != told:
            what = f"the intent's {name} is not that of the last event"
            yield Finding(Rule.HEAD, what, last.sequence)
    if intent.updated_at < last.at:
        yield Finding(Rule.HEAD, "the intent was changed before its last event", last.sequence)
