"""How every change ends: from facts to a decision, and from a decision to the writes it needs.

This file owns what is written for a decision: the state (by `life.move`), the reason, the next
action, the receipt of a settlement, the freeze of a contract that was violated, and the event. It
also owns `View`, the little that a run gets to know of all this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import assert_never
from uuid import UUID

from effect_broker.protocol.ports import (
    AddEvidence,
    AddReceipt,
    Advance,
    AttemptRow,
    Change,
    EvidenceRow,
    FreezeContract,
    LoseAttempt,
    RecordOutcome,
    Snapshot,
    Write,
)
from effect_contracts.audit import first_count_at, late_count_at, next_count_at
from effect_contracts.certified import of_target, standing_certificate
from effect_contracts.decide import Action, Decision, Reason, decide
from effect_contracts.fact_digests import evidence_digest, outcome_digest
from effect_contracts.facts import (
    Alert,
    Attempt,
    EffectState,
    Evidence,
    EvidenceSource,
    Facts,
    Hold,
    Policy,
    Verdict,
)
from effect_contracts.life import LifeEvent, is_final, move
from effect_contracts.receipts import receipt_content, receipt_digest, receipt_time

Metadata = Mapping[str, str | int | float | bool | None]


class Next(StrEnum):
    """What a run does after a step."""

    DISPATCH = "dispatch"
    PROBE = "probe"
    RELOAD = "reload"
    WAIT = "wait"
    END = "end"


@dataclass(frozen=True, slots=True)
class View:
    """What a step tells the workflow: ids, ordinals, states and codes only.

    Attributes:
        next: what the run does next.
        version: the version on which that was decided.
        now: the database clock of the decision; None where nothing was read for it.
        at: for `wait`, when to ask again.
        alert: a person has to know of what the step has found; the engine's module says so.
    """

    next: Next
    version: int
    state: EffectState
    reason: str
    now: datetime | None
    ordinal: int | None = None
    at: datetime | None = None
    alert: Alert | None = None

    def to_json(self) -> dict[str, str | int | None]:
        """Return the form that a step hands to the engine."""
        return {
            "next": self.next.value,
            "version": self.version,
            "state": self.state.value,
            "reason": self.reason,
            "now": self.now.isoformat() if self.now else None,
            "ordinal": self.ordinal,
            "at": self.at.isoformat() if self.at else None,
            "alert": self.alert.value if self.alert else None,
        }


def view(snapshot: Snapshot, identity: str) -> tuple[View, Decision | None]:
    """Decide on a snapshot without writing; the decision is None for a final effect."""
    intent = snapshot.intent
    if is_final(intent.state):
        at = intent.next_action_at
        return _final_view(snapshot, intent.version, intent.state, intent.reason, at), None
    decision = decide(held_facts(snapshot, identity), snapshot.document.policy(), snapshot.now)
    return view_of(snapshot, decision, intent.version, intent.state), decision


def _final_view(
    snapshot: Snapshot, version: int, state: EffectState, reason: str, at: datetime | None
) -> View:
    """What is left to do for a final effect: nothing, or to count it at its target at `at`."""
    if at is None:
        return View(Next.END, version, state, reason, snapshot.now)
    following = Next.WAIT if snapshot.now < at else Next.PROBE
    return View(following, version, state, reason, snapshot.now, at=at)


def needs_writing(snapshot: Snapshot, decision: Decision) -> bool:
    """Whether the stored row says something else than the decision.

    A run that comes early, or again, finds that all is written already and ends without a trace.
    """
    if decision.action in {Action.DISPATCH, Action.PROBE}:
        return False  # their own steps write
    if decision.lost or decision.action is Action.SETTLE:
        return True
    intent = snapshot.intent
    return (
        move(intent.state, decision.event) is not intent.state
        or intent.reason != decision.reason
        or intent.next_action_at != decision.at
    )


def held_facts(snapshot: Snapshot, identity: str) -> Facts:
    """Return the facts as they are for who would send to this target: its own holds and
    certificates. Every attempt is granted on these."""
    facts = snapshot.facts
    if facts.certificates:
        demand = snapshot.document.policy().certificate
        facts = replace(facts, certificates=of_target(facts.certificates, demand, identity))
    bound = snapshot.intent.target_identity
    if bound is None or bound == identity:
        return facts
    return replace(facts, holds=facts.holds | {Hold.TARGET_CHANGED})


def certificate_named(facts: Facts, policy: Policy, now: datetime) -> Metadata:
    """Return what the event of an attempt says of the certificate that it was granted on."""
    if policy.certificate is None:
        return {}
    standing = standing_certificate(facts.certificates, policy.certificate, now)
    assert standing is not None, "no attempt is granted without the certificate that is demanded"
    certificate, until = standing
    return {
        "certificate_id": certificate.certificate_id,
        "certified_until": receipt_time(until),
    }


def with_attempt(snapshot: Snapshot, row: AttemptRow) -> Snapshot:
    rows = tuple(row if a.attempt_id == row.attempt_id else a for a in snapshot.attempts)
    facts = replace(snapshot.facts, attempts=tuple(a.fact for a in rows))
    return replace(snapshot, attempts=rows, facts=facts)


def with_evidence(snapshot: Snapshot, row: EvidenceRow) -> Snapshot:
    facts = snapshot.facts
    # As the next reader counts them: a look-up that began before the latest attempt says nothing
    # about it, and must not move the schedule of those that will.
    since_attempt = bool(snapshot.attempts) and (
        row.fact.began_at > snapshot.attempts[-1].fact.started_at
    )
    if row.fact.source is EvidenceSource.PROBE and since_attempt:
        began_at = max(row.fact.began_at, facts.probe_began_at or row.fact.began_at)
        facts = replace(
            facts, probes_since_attempt=facts.probes_since_attempt + 1, probe_began_at=began_at
        )
    if not row.fact.decisive:
        return replace(snapshot, facts=facts)
    rows = (*snapshot.evidence, row)
    facts = replace(facts, evidence=(*facts.evidence, row.fact))
    return replace(snapshot, evidence=rows, facts=facts)


def rows_removed(snapshot: Snapshot) -> bool:
    """Whether retention has removed the attempts of a settled effect: a target is bound by the
    first of them and by nothing else. Its receipt then stands in for what they said."""
    return snapshot.intent.target_identity is not None and not snapshot.attempts


def add_fact(
    after: Snapshot,
    writes: tuple[Write, ...],
    receipt_id: UUID,
    actor: str,
    kind: str,
    metadata: Metadata,
    sighting: Sighting | None = None,
    *,
    may_have_sent: bool = False,
) -> Change[View]:
    """Write a fact and what follows from it; `after` already contains the fact.

    `sighting` is what a look-up saw, where the fact is one; `may_have_sent` says of an attempt's
    own word that it proves no absence.
    """
    intent = after.intent
    if is_final(intent.state):
        return _late_fact(after, writes, actor, metadata, sighting, may_have_sent)
    # The target of the facts is the one that was bound; a changed target is found by the run.
    decision = decide(after.facts, after.document.policy(), after.now)
    change = write_decision(after, after.facts, decision, receipt_id, actor, kind, metadata)
    return Change(change.result, (*writes, *change.writes))


@dataclass(frozen=True, slots=True)
class Sighting:
    """What one look-up at the target saw, or what the target has told unasked.

    Attributes:
        counts: it began late enough after the end to count the effect's objects.
        several: there is more than one object under our key.
        told: the target has told it unasked. It counts nothing, but an object that is not as it
            was sent, and a failure of what has succeeded, are the target's word against the
            receipt.
        failure: it tells of a failure.
    """

    verdict: Verdict
    counts: bool
    several: bool
    told: bool = False
    failure: bool = False


def _late_fact(
    after: Snapshot,
    writes: tuple[Write, ...],
    actor: str,
    metadata: Metadata,
    sighting: Sighting | None,
    may_have_sent: bool,
) -> Change[View]:
    """A fact on a final effect. It rewrites nothing; what it says against the receipt is an alert.

    A target that has made two objects of one key, or one that its look-up denied, breaks its
    contract, and the effects that are still to come must not trust it either.
    """
    intent, policy = after.intent, after.document.policy()
    decision = decide(after.facts, policy, after.now)
    # What was undone was there; that it is gone now contradicts nothing.
    succeeded = intent.state in {EffectState.SUCCEEDED, EffectState.COMPENSATED}
    differs = (decision.event is LifeEvent.COMMIT_PROVED) != succeeded
    if succeeded and rows_removed(after):
        differs = False  # the commit is in the receipt, and no longer among the facts
    undone = intent.state is EffectState.COMPENSATED
    counts = sighting is not None and sighting.counts and not undone
    alert: Alert | None = None
    kind, at = "late_fact", intent.next_action_at
    if sighting is not None and counts:
        # `decide` knows a receipt's commit whatever the look-up says; here the look-up is judged.
        there = sighting.verdict in {Verdict.COMMITTED, Verdict.MISMATCH}
        differs |= sighting.verdict is not Verdict.UNKNOWN and there is not succeeded
        differs |= sighting.verdict is Verdict.MISMATCH
        kind = "counted"
        at = next_count_at(after.facts, policy, intent.state, sighting.verdict, after.now)
    if sighting is not None and sighting.told:
        differs |= sighting.verdict is Verdict.MISMATCH or (sighting.failure and succeeded)
    if decision.freezes or (sighting is not None and sighting.several):
        alert, kind = Alert.DUPLICATE_DETECTED, Alert.DUPLICATE_DETECTED.value
    elif differs:
        alert = Alert.LATE_CONTRADICTION
    broken = decision.freezes or alert is Alert.DUPLICATE_DETECTED
    if may_have_sent and not broken:
        # Sent after whatever was looked at so far, for all that its sender knows.
        at = late_count_at(after.facts, policy, intent.state, after.now) or at
    denied = counts and not succeeded and differs
    freezes = (FreezeContract(Reason.CONTRACT_VIOLATION),) if broken or denied else ()
    advance = Advance(
        event=LifeEvent.LATE_FACT,
        state=move(intent.state, LifeEvent.LATE_FACT),
        reason=intent.reason,
        next_action_at=at,
        parked=False,
        actor=actor,
        kind=kind,
        metadata={**metadata, "contradicts": alert is not None},
        # Two objects are never hidden behind a later word.
        alert=alert and (after.alert if after.alert is Alert.DUPLICATE_DETECTED else alert),
    )
    seen = _final_view(after, intent.version + 1, intent.state, intent.reason, at)
    return Change(replace(seen, alert=alert), (*writes, *freezes, advance))


def write_decision(
    snapshot: Snapshot,
    facts: Facts,
    decision: Decision,
    receipt_id: UUID | None,
    actor: str,
    kind: str,
    metadata: Metadata,
) -> Change[View]:
    """The writes of a decision: losses, receipt, freeze, and the state with its next action."""
    intent = snapshot.intent
    event = _resting_event(decision)
    state = move(intent.state, event)
    version, at = intent.version + 1, _next_action_at(snapshot, facts, decision, state)
    writes: list[Write] = [*losses(decision)]
    if decision.reason is Reason.TARGET_BUSY and decision.at is not None:
        metadata = {**metadata, "turn_at": receipt_time(decision.at)}
    if decision.action is Action.SETTLE:
        assert receipt_id is not None, "a settlement has a receipt"
        receipt = _receipt(snapshot, decision, state, receipt_id)
        metadata = {**metadata, "receipt_digest": receipt.digest.hex()}
        writes.append(receipt)
    if decision.freezes:
        writes.append(FreezeContract(decision.reason))
    writes.append(
        Advance(
            event=event,
            state=state,
            reason=decision.reason,
            next_action_at=at,
            parked=decision.action is Action.PARK,
            actor=actor,
            kind=kind,
            metadata={**metadata, "row": decision.row},
        )
    )
    seen = view_of(snapshot, decision, version, state)
    if decision.action is Action.SETTLE:
        seen = _final_view(snapshot, version, state, decision.reason, at)
    return Change(seen, tuple(writes))


def _resting_event(decision: Decision) -> LifeEvent:
    """The move of a decision that is written now and acted on by a later step."""
    if decision.action is not Action.DISPATCH:
        return decision.event
    match decision.reason:
        case Reason.FIRST_ATTEMPT:
            return LifeEvent.NOTHING_SENT
        case Reason.NO_COMMIT_PROVED:
            return LifeEvent.NO_COMMIT_PROVED
        case Reason.SAME_KEY_AGAIN:
            return LifeEvent.OUTCOME_LOST
        case _:
            raise AssertionError(f"no dispatch has the reason {decision.reason}")


def _next_action_at(
    snapshot: Snapshot, facts: Facts, decision: Decision, state: EffectState
) -> datetime | None:
    match decision.action:
        case Action.WAIT:
            return decision.at
        case Action.DISPATCH | Action.PROBE:
            return snapshot.now
        case Action.SETTLE:
            return first_count_at(facts, snapshot.document.policy(), state, snapshot.now)
        case Action.PARK:
            return None
        case never:
            assert_never(never)


def losses(decision: Decision) -> tuple[Write, ...]:
    return tuple(LoseAttempt(ordinal) for ordinal in decision.lost)


def view_of(snapshot: Snapshot, decision: Decision, version: int, state: EffectState) -> View:
    match decision.action:
        case Action.DISPATCH:
            following = Next.DISPATCH
        case Action.PROBE:
            following = Next.PROBE
        case Action.WAIT:
            following = Next.WAIT
        case Action.PARK | Action.SETTLE:
            following = Next.END
        case never:
            assert_never(never)
    return View(
        next=following,
        version=version,
        state=state,
        reason=decision.reason,
        now=snapshot.now,
        ordinal=decision.ordinal,
        at=decision.at,
    )


def outcome_digest_of(write: RecordOutcome, ordinal: int) -> str:
    """Return what the event of this outcome holds of it."""
    return outcome_digest(
        attempt_id=write.attempt_id,
        ordinal=ordinal,
        outcome=write.outcome,
        code=write.code,
        recorded_at=write.recorded_at,
        external_id=write.external_id,
        retry_after_seconds=write.retry_after_seconds,
        operation=write.operation,
        result_digest=hex_of(write.result_digest),
    )


def fact_digest_of(write: AddEvidence) -> str:
    """Return what the event of this evidence holds of it."""
    return evidence_digest(
        evidence_id=write.evidence_id,
        source=write.source,
        verdict=write.verdict,
        code=write.code,
        began_at=write.began_at,
        covers_through=write.covers_through,
        external_ids=write.external_ids,
        target_identity=write.target_identity,
        result_digest=hex_of(write.result_digest),
    )


def hex_of(digest: bytes | None) -> str | None:
    """Return a digest as events and traces spell it."""
    return None if digest is None else digest.hex()


def _receipt(
    snapshot: Snapshot, decision: Decision, state: EffectState, receipt_id: UUID
) -> AddReceipt:
    intent = snapshot.intent
    source, external_id, result_digest, result_ref = _winner(snapshot, decision)
    content = receipt_content(
        {
            "receipt_id": str(receipt_id),
            "effect_id": str(intent.effect_id),
            "tenant_id": str(intent.tenant_id),
            "operation_key": intent.operation_key,
            "tool": intent.tool,
            "request_hash": intent.request_hash.hex(),
            "contract": {
                "name": intent.contract_name,
                "version": intent.contract_version,
                "digest": intent.contract_digest.hex(),
            },
            "safety": intent.safety.value,
            "downstream_key_digest": _text_digest(intent.downstream_key),
            "state": state.value,
            "reason": decision.reason.value,
            "source": source,
            "external_id": external_id,
            "result_digest": result_digest.hex() if result_digest else None,
            "attempts": len(snapshot.attempts),
            "settled_at": receipt_time(snapshot.now),
        }
    )
    return AddReceipt(receipt_id, content, receipt_digest(content), result_ref)


def _winner(
    snapshot: Snapshot, decision: Decision
) -> tuple[str, str | None, bytes | None, str | None]:
    """Return source, external id, result digest and result reference of the winning fact."""
    match decision.winner:
        case None:
            return ("decision", None, None, None)
        case Attempt(ordinal=ordinal):
            row = next(a for a in snapshot.attempts if a.fact.ordinal == ordinal)
            ref = str(row.attempt_id) if row.result_digest else None
            return ("response", row.fact.external_id, row.result_digest, ref)
        case Evidence(evidence_id=evidence_id):
            found = next(e for e in snapshot.evidence if e.fact.evidence_id == evidence_id)
            ref = evidence_id if found.result_digest else None
            ids = found.fact.external_ids
            return (found.fact.source.value, ids[0] if ids else None, found.result_digest, ref)


def _text_digest(text: str) -> str:
    return receipt_digest(text.encode()).hex()
