"""How one effect is shown to a person: a row of a list, and the page of `effects inspect`.

Nothing here is shown that the contract calls sensitive: arguments appear as the stored preview,
answers as digests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from effect_broker.api.presentation import effect_body, moment
from effect_broker.cli.effect_wait import next_step, overdue_seconds
from effect_broker.cli.next_commands import Command, confirmations, holds_of, next_commands
from effect_broker.cli.output import console, print_line, print_table
from effect_broker.cli.reasons import words_of
from effect_broker.clock import new_id
from effect_broker.obstacles import obstacle
from effect_broker.protocol.ports import AttemptRow, EvidenceRow, Snapshot
from effect_broker.reading import EffectDetail, EventRecord
from effect_broker.resolving import ProposalRecord
from effect_contracts.counting import counted, span
from effect_contracts.decide import conclusive_from
from effect_contracts.facts import Alert, EffectState, EvidenceSource, SafetyClass
from effect_contracts.life import is_final

COLUMNS: Final = ("id", "state", "reason", "tool", "operation key", "age", "next action")
FIRST_TO_GO: Final = ("age", "next action", "tool", "reason")

_ATTEMPT_COLUMNS: Final = (
    "attempt", "started", "deadline", "recorded", "outcome", "code", "external id", "executor",
)  # fmt: skip
_EVIDENCE_COLUMNS: Final = ("source", "says", "began", "covers attempts", "external ids")
_EVENT_COLUMNS: Final = ("#", "at", "what", "state", "reason", "by", "details")

# After its deadline an effect is somebody's to act on; a run needs a moment to do so.
_QUIET_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Inspection:
    """All that is read of one effect for its page.

    Attributes:
        proposals: what one person has concluded and a second one has to confirm.
    """

    tenant: str
    detail: EffectDetail
    snapshot: Snapshot
    events: tuple[EventRecord, ...]
    proposals: tuple[ProposalRecord, ...]


def row(detail: EffectDetail) -> tuple[object, ...]:
    """Return the cells of `COLUMNS`."""
    intent = detail.intent
    if is_final(intent.state):
        following = ""
    elif intent.next_action_at is None:
        following = "a person"
    else:
        late = overdue_seconds(detail)
        following = "now" if abs(late) < 1 else f"{span(abs(late))} {'ago' if late > 0 else ''}"
    age = (detail.now - intent.created_at).total_seconds()
    return (
        intent.effect_id, intent.state.value, intent.reason, intent.tool, intent.operation_key,
        span(age), following.strip(),
    )  # fmt: skip


def body(inspection: Inspection) -> dict[str, Any]:
    """Return the page as JSON: what the API says of an effect, and what a person is told."""
    words = words_of(inspection.detail.intent.reason)
    snapshot = inspection.snapshot
    return effect_body(inspection.detail, attempts=True) | {
        "tenant": inspection.tenant,
        "downstream_key": inspection.detail.intent.downstream_key,
        "target_identity": inspection.detail.intent.target_identity,
        "generation": inspection.detail.intent.generation,
        "meaning": words.meaning,
        "next_step": next_step(inspection.detail),
        "what_you_can_do": list(advice(inspection)),
        "commands": [{"for": one.says, "command": one.line} for one in commands(inspection)],
        "holds": sorted(hold.value for hold in snapshot.facts.holds),
        "probes_since_attempt": snapshot.facts.probes_since_attempt,
        "absence_counts_from": moment(_absence_counts_from(snapshot)),
        "evidence": [_evidence_body(one) for one in snapshot.evidence],
        "events": [_event_body(event) for event in inspection.events],
    }


def show(inspection: Inspection) -> None:
    """Print the page."""
    detail, snapshot = inspection.detail, inspection.snapshot
    intent = detail.intent
    words = words_of(intent.reason)
    out = console()
    out.print(f"{intent.state.value.upper()}  {words.meaning}")
    out.print(f"next       {next_step(detail)}")
    for line in advice(inspection):
        out.print(f"you        {line}")
    for one in commands(inspection):
        out.print(f"  {one.says}:")
        print_line(f"    {one.line}")
    out.print()
    rows: list[tuple[str, object]] = [
        ("effect", intent.effect_id),
        ("tenant", inspection.tenant),
        ("operation key", intent.operation_key),
        ("tool", f"{intent.tool} ({intent.contract_name} {intent.contract_version})"),
        ("safety", intent.safety.value),
        ("reason", intent.reason),
        ("downstream key", intent.downstream_key),
        ("target", intent.target_identity or "not sent to yet"),
        ("asked by", detail.requested_by),
        ("trace", detail.trace_id),
        ("created", _clock(intent.created_at)),
        ("changed", _clock(intent.updated_at)),
        ("version", f"{intent.version}, run {intent.generation}"),
        ("arguments", json.dumps(dict(detail.preview), ensure_ascii=False)),
        ("receipt", detail.receipt_digest.hex() if detail.receipt_digest else ""),
        ("alert", detail.alert),
    ]
    if snapshot.facts.holds:
        rows.insert(6, ("held by", ", ".join(sorted(h.value for h in snapshot.facts.holds))))
    print_table("effect", ("what", "value"), rows)
    if detail.attempts:
        print_table("attempts", _ATTEMPT_COLUMNS, [_attempt_row(a) for a in detail.attempts])
    if snapshot.evidence or snapshot.facts.probes_since_attempt:
        looks = counted(snapshot.facts.probes_since_attempt, "look-up")
        title = f"evidence ({looks} since the last attempt)"
        print_table(title, _EVIDENCE_COLUMNS, [_evidence_row(one) for one in snapshot.evidence])
    print_table("events", _EVENT_COLUMNS, [_event_row(event) for event in inspection.events])


def advice(inspection: Inspection) -> Iterator[str]:
    """Yield what a person can do now; nothing where the broker goes on by itself."""
    detail, snapshot = inspection.detail, inspection.snapshot
    intent = detail.intent
    words = words_of(intent.reason)
    late = overdue_seconds(detail)
    if detail.alert is Alert.DUPLICATE_DETECTED:
        yield "ALERT: the target holds more than one object of this effect. Undo what is too much."
    elif detail.alert is Alert.LATE_CONTRADICTION:
        yield "ALERT: the target has contradicted the receipt since. Look there and compare."
    stands = obstacle(snapshot.document, snapshot.attempts, _looked(inspection))
    if stands is not None and intent.state is not EffectState.SUCCEEDED:
        yield f"{stands.meaning} {stands.remedy or ''}".strip()
    holds = frozenset() if is_final(intent.state) else holds_of(snapshot)
    for hold in sorted(holds - {intent.reason}):
        held = words_of(hold.value)
        yield f"{held.meaning} {held.remedy or ''}".strip()
    if not detail.parked and not is_final(intent.state):
        if late > _QUIET_SECONDS:
            yield (
                f"It should have moved {span(late)} ago. See that a worker runs: "
                "`effect-broker doctor`."
            )
        elif stands is not None:
            yield _what_is_left(snapshot)
        elif words.remedy is not None:
            yield words.remedy
        elif not holds:
            yield "Nothing to do: the broker goes on by itself."
        return
    if words.remedy is not None:
        yield words.remedy
    for proposal in inspection.proposals:
        yield (
            f"{proposal.actor} has concluded something that a second person has to confirm "
            f"(decision {proposal.decision_id})."
        )
    counts_from = _absence_counts_from(snapshot)
    if detail.parked and counts_from is not None:
        yield (
            "That it has NOT happened counts only if you looked after "
            f"{_clock(counts_from)}" + (" (which is past)." if counts_from <= detail.now else ".")
        )
    if detail.parked and intent.safety is SafetyClass.UNSAFE and detail.attempts:
        yield "It is never sent again under this operation key, whatever you record."


def commands(inspection: Inspection) -> tuple[Command, ...]:
    """Return the lines with which a person goes on; none where the broker does by itself."""
    found = next_commands(inspection.tenant, inspection.detail, inspection.snapshot, new_id)
    return (*confirmations(inspection.tenant, inspection.detail, inspection.proposals), *found)


def _what_is_left(snapshot: Snapshot) -> str:
    """What the broker does about it meanwhile."""
    if any(attempt.fact.may_have_sent for attempt in snapshot.attempts):
        return "The broker goes on trying by itself; once that is mended there is nothing to do."
    left = snapshot.document.policy().attempts_max - len(snapshot.attempts)
    return (
        f"Nothing was sent so far. The broker tries {counted(left, 'more time')} by itself; then "
        "it ends as failed (never_sent)."
    )


def _looked(inspection: Inspection) -> str | None:
    """The code of the latest look-up, unless an attempt came after it."""
    for event in reversed(inspection.events):
        if event.kind == "attempt_started":
            return None
        if event.kind == "evidence_added":
            metadata: dict[str, str | None] = json.loads(event.metadata)
            if metadata.get("source") == EvidenceSource.PROBE:
                return metadata.get("code")
    return None


def _absence_counts_from(snapshot: Snapshot) -> datetime | None:
    """The moment after which "it did not happen" can be observed; None where nothing was sent,
    or where the contract states no bound."""
    facts = snapshot.facts
    return conclusive_from(facts.attempts, snapshot.document.policy(), facts.bounds_restart_at)


def _attempt_row(attempt: AttemptRow) -> tuple[object, ...]:
    fact = attempt.fact
    return (
        fact.ordinal, _clock(fact.started_at), _clock(fact.deadline_at), _clock(fact.recorded_at),
        fact.outcome.value if fact.outcome else "open", fact.code, fact.external_id,
        attempt.executor_id,
    )  # fmt: skip


def _evidence_row(evidence: EvidenceRow) -> tuple[object, ...]:
    fact = evidence.fact
    return (
        fact.source.value, fact.verdict.value, _clock(fact.began_at),
        f"1 to {fact.covers_through}" if fact.covers_through > 1 else fact.covers_through,
        ", ".join(fact.external_ids),
    )  # fmt: skip


def _event_row(event: EventRecord) -> tuple[object, ...]:
    try:
        metadata = json.loads(event.metadata)
        details = ", ".join(f"{k}={v}" for k, v in metadata.items() if not _is_digest(v))
    except (ValueError, AttributeError):
        details = ""
    moved = event.to_state if event.from_state in (None, event.to_state) else (
        f"{event.from_state} -> {event.to_state}"
    )  # fmt: skip
    return event.sequence, _clock(event.at), event.kind, moved, event.reason, event.actor, details


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64  # hex of SHA-256


def _evidence_body(evidence: EvidenceRow) -> dict[str, Any]:
    fact = evidence.fact
    return {
        "evidence_id": fact.evidence_id,
        "source": fact.source.value,
        "verdict": fact.verdict.value,
        "began_at": moment(fact.began_at),
        "covers_through": fact.covers_through,
        "external_ids": list(fact.external_ids),
    }


def _event_body(event: EventRecord) -> dict[str, Any]:
    return {
        "sequence": event.sequence,
        "kind": event.kind,
        "event": event.event,
        "from_state": event.from_state,
        "to_state": event.to_state,
        "reason": event.reason,
        "actor": event.actor,
        "at": moment(event.at),
        "metadata": json.loads(event.metadata),
        "digest": event.digest.hex(),
    }


def _clock(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}Z" if at else ""
