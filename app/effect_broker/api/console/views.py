"""What the page of one effect shows, put together from what the services say of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from fastapi import Request

from effect_broker.api.callers import services_of
from effect_broker.api.console import words
from effect_broker.api.console.access import Visit
from effect_broker.api.presentation import GUARANTEES
from effect_broker.clock import new_id
from effect_broker.console import SeenEvidence
from effect_broker.obstacles import obstacle
from effect_broker.protocol.ports import AttemptRow, Snapshot
from effect_broker.protocol.resolution import absence_counts_from, permitted
from effect_broker.reading import EffectDetail
from effect_broker.resolving import ProposalRecord
from effect_broker.unresolved import LastEvidence, last_evidence_of, next_step_of, reasons_of
from effect_contracts.canonical import parse_strict
from effect_contracts.facts import Conclusion, EffectState, EvidenceSource, SafetyClass
from effect_contracts.life import is_final
from effect_contracts.trace.log import EventRecord

EVENTS_SHOWN: Final = 200

# What a person can have looked at; the first is what most have.
EVIDENCE_KINDS: Final = (
    ("dashboard", "the target's dashboard or website"),
    ("api_look_up", "the target's API"),
    ("export", "an export, a report or a bank statement"),
    ("log", "a log"),
    ("person", "what a person at the target has told me"),
    ("other", "something else"),
)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a form was not taken, and what to do.

    Attributes:
        field: the name of the form's field that is meant, if one is.
    """

    what: str
    advice: str
    field: str | None = None


@dataclass(frozen=True, slots=True)
class ResolveForm:
    """The fields of the resolve form, as they are shown.

    Attributes:
        decision_id: made once with the form, so that a double click is the same decision.
        observed_at: in UTC, to the second.
    """

    decision_id: str
    expected_version: int
    conclusion: str = ""
    reason: str = ""
    kind: str = EVIDENCE_KINDS[0][0]
    reference: str = ""
    observed_at: str = ""
    external_id: str = ""


@dataclass(frozen=True, slots=True)
class JudgeForm:
    """The fields of the approval form."""

    decision_id: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """One conclusion; `why_not` is None where it can be recorded now."""

    value: str
    title: str
    meaning: str
    why_not: str | None


@dataclass(frozen=True, slots=True)
class Statement:
    """What a person has stated, for the reader."""

    reason: str
    evidence: tuple[dict[str, Any], ...]
    conclusion: str | None
    external_id: str | None


@dataclass(frozen=True, slots=True)
class Moment:
    """One line of the timeline."""

    sequence: int
    at: datetime
    what: str
    moved: str | None
    reason: str
    actor: str
    details: dict[str, str]
    statement: Statement | None


@dataclass(frozen=True, slots=True)
class Proposal:
    """What waits for a second person."""

    record: ProposalRecord
    statement: Statement
    version: int
    own: bool


@dataclass(frozen=True, slots=True)
class EffectView:
    """All that the page of one effect shows.

    Attributes:
        reasons: why it is in the queue or where it stands, and what holds it; with words for each.
        obstacle: what stood in the way of the last attempt or look-up, and what to do about it.
        following: what happens next by itself.
        learned: what was learned last.
        absence: from when on a look that finds nothing counts.
        choices: the conclusions; empty where the effect is final.
        asks_approval: the contract asks for one and it can still be given or refused.
        may_approve: None, or why this visitor may not.
        events_before: how many older events are not shown.
    """

    detail: EffectDetail
    state: str
    guarantee: str
    reasons: tuple[tuple[str, words.Words], ...]
    obstacle: words.Words | None
    following: str
    learned: str
    absence: str | None
    holds: tuple[str, ...]
    key_expires_at: datetime | None
    choices: tuple[Choice, ...]
    second_person: bool
    asks_approval: bool
    approved_at: datetime | None
    may_not_approve: str | None
    attempts: tuple[AttemptRow, ...]
    evidence: tuple[SeenEvidence, ...]
    moments: tuple[Moment, ...]
    events_before: int
    proposals: tuple[Proposal, ...]
    arguments: str
    final: bool

    @property
    def resolvable(self) -> bool:
        """Whether any conclusion can be recorded now."""
        return any(choice.why_not is None for choice in self.choices)


async def effect_view(request: Request, visit: Visit, effect_id: UUID) -> EffectView:
    """Read an effect and all that is known of it.

    Raises:
        EffectMissing, StoreError.
    """
    services, tenant_id = services_of(request), visit.session.tenant.tenant_id
    detail = await services.reads.effect(tenant_id, effect_id)
    snapshot = await services.console.snapshots.load(tenant_id, effect_id)
    version = snapshot.intent.version
    first = max(1, version - EVENTS_SHOWN + 1)
    events = await services.history.events_from(tenant_id, effect_id, first, EVENTS_SHOWN)
    evidence = await services.console.reads.evidence(tenant_id, effect_id)
    said = await services.console.reads.said(tenant_id, effect_id)
    statements = {one.decision_id: statement_of(one.content) for one in said}
    waiting = await services.resolving.store.proposals(tenant_id, effect_id)
    # One moment for all: the snapshot's, which the choices are judged by.
    detail = replace(detail, intent=snapshot.intent, parked=snapshot.parked, now=snapshot.now)
    return _view(
        visit,
        detail,
        snapshot,
        evidence,
        tuple(_moment(event, statements) for event in events),
        tuple(proposal_of(record, version, visit) for record in waiting),
    )


def _view(
    visit: Visit,
    detail: EffectDetail,
    snapshot: Snapshot,
    evidence: Sequence[SeenEvidence],
    moments: tuple[Moment, ...],
    proposals: tuple[Proposal, ...],
) -> EffectView:
    intent, now, policy = snapshot.intent, snapshot.now, snapshot.document.policy()
    final = is_final(intent.state)
    listed = reasons_of(intent, snapshot.urgency, snapshot.parked, detail.alert, now)
    held = () if final else sorted(hold.value for hold in snapshot.facts.holds)
    reasons = tuple(dict.fromkeys((*listed, intent.reason, *held)))
    following = "nothing more happens"
    if not final or intent.next_action_at is not None:
        following = words.step(
            next_step_of(snapshot), intent.reason, alert=detail.alert is not None, now=now
        )
    oversight = snapshot.document.oversight
    asks = policy.approval_valid_seconds is not None and not final and not snapshot.attempts
    own = detail.requested_by.partition(":")[2] == visit.credential
    return EffectView(
        detail=detail,
        state=words.STATES[intent.state],
        guarantee=GUARANTEES[intent.safety],
        reasons=tuple((reason, words.words(reason)) for reason in reasons),
        obstacle=_obstacle(snapshot, evidence),
        following=following,
        learned=words.learned(_last(snapshot, evidence), now),
        absence=_absence(snapshot, final),
        holds=tuple(sorted(hold.value for hold in snapshot.facts.holds)),
        key_expires_at=None if final else snapshot.urgency.key_expires_at,
        choices=() if final else choices(snapshot, following),
        second_person=oversight is not None and oversight.second_person,
        asks_approval=asks,
        approved_at=snapshot.facts.approved_at,
        may_not_approve=(
            "You have submitted it yourself. Another operator has to approve it." if own else None
        ),
        attempts=snapshot.attempts,
        evidence=tuple(evidence),
        moments=moments,
        events_before=moments[0].sequence - 1 if moments else 0,
        proposals=proposals,
        arguments=json.dumps(dict(detail.preview), ensure_ascii=False, indent=2),
        final=final,
    )


def _obstacle(snapshot: Snapshot, evidence: Sequence[SeenEvidence]) -> words.Words | None:
    if snapshot.intent.state is EffectState.SUCCEEDED:
        return None
    last = evidence[-1] if evidence else None
    looked = None
    if last is not None and last.source == EvidenceSource.PROBE:
        began = [attempt.fact.started_at for attempt in snapshot.attempts]
        looked = last.code if not began or last.began_at > began[-1] else None
    return obstacle(snapshot.document, snapshot.attempts, looked)


def _last(snapshot: Snapshot, evidence: Sequence[SeenEvidence]) -> LastEvidence | None:
    newest = None
    if evidence:
        one = evidence[-1]
        newest = LastEvidence(one.source, one.verdict, one.code, one.began_at)
    return last_evidence_of(snapshot.attempts, newest)


def choices(snapshot: Snapshot, following: str) -> tuple[Choice, ...]:
    """Return every conclusion, with why it is not possible where it is not."""
    possible = permitted(snapshot)
    intent, now = snapshot.intent, snapshot.now
    found = []
    for one, (title, meaning) in words.CONCLUSIONS.items():
        if one is Conclusion.NOT_COMMITTED and intent.safety is SafetyClass.UNSAFE:
            meaning = words.NEVER_AGAIN
        why_not = words.why_not(one, possible, intent.state, following, now)
        found.append(Choice(one.value, title, meaning, why_not))
    return tuple(found)


def _absence(snapshot: Snapshot, final: bool) -> str | None:
    """From when on it counts that nothing is there; None where that is no question."""
    after = None if final else absence_counts_from(snapshot)
    if after is None:
        return None
    past = "that is past" if after < snapshot.now else words.ago(after, snapshot.now)
    return f"{words.clock(after)} ({past})"


def _moment(record: EventRecord, statements: dict[str, Statement]) -> Moment:
    details = words.event_details(record.metadata)
    moved = None
    if record.from_state != record.to_state:
        moved = f"{record.from_state} → {record.to_state}" if record.from_state else record.to_state
    return Moment(
        sequence=record.sequence,
        at=record.at,
        what=words.event(record.kind, record.metadata),
        moved=moved,
        reason=record.reason,
        actor=record.actor,
        details=details,
        statement=statements.get(details.get("decision_id", "")),
    )


def statement_of(content: bytes) -> Statement:
    """Return what a stored statement says."""
    said: Any = parse_strict(content)
    conclusion = said.get("conclusion")
    return Statement(
        reason=str(said.get("reason", "")),
        evidence=tuple(dict(item) for item in said.get("evidence", ())),
        conclusion=words.CONCLUSIONS[Conclusion(conclusion)][0] if conclusion else None,
        external_id=said.get("external_id"),
    )


def proposal_of(record: ProposalRecord, version: int, visit: Visit) -> Proposal:
    """Return a proposal as one visitor sees it; `version` is the effect's now."""
    own = record.actor == f"operator:{visit.credential}"
    return Proposal(record, statement_of(record.content), version, own)


def new_resolve_form(view: EffectView) -> ResolveForm:
    """Return a form for the effect as it is shown, under a decision id of its own."""
    return ResolveForm(
        decision_id=new_decision_id(),
        expected_version=view.detail.intent.version,
        observed_at=f"{view.detail.now.astimezone(UTC):%Y-%m-%d %H:%M:%S}",
    )


def new_decision_id() -> str:
    """Return a name for a decision that is made in the console."""
    return f"console-{new_id()}"
