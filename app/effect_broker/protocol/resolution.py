"""What a person concludes of an effect, as a pure function from a locked snapshot to writes.

This file owns the rules of a resolution: from where it is possible, from when an observation of
absence counts, and that it is no second way to send. A person never says "retry"; a person says
what is known, and `decide` says what follows from it under the pinned contract.

    committed        the effect exists at the target                settles as succeeded
    not_committed    it does not exist, seen late enough            what the contract then permits
    failed           it is over, whatever happened                  settles as failed_final
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from effect_broker.protocol.conclusion import View, add_fact, fact_digest_of, with_evidence
from effect_broker.protocol.ports import (
    AddEvidence,
    AddResolution,
    Change,
    EvidenceRow,
    Snapshot,
    Write,
)
from effect_contracts.decide import Action, conclusive_from, decide
from effect_contracts.facts import Conclusion, EffectState, Evidence, EvidenceSource, Verdict
from effect_contracts.life import is_final

# The states in which a person is asked; a parked effect waits for one in any state.
_RESOLVABLE = frozenset(
    {EffectState.OUTCOME_UNKNOWN, EffectState.MANUAL_REVIEW, EffectState.RECONCILING}
)


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a person says, checked for form already.

    Attributes:
        decision_id: the person's own name of this decision; saying it again changes nothing.
        expected_version: the version of the effect that the person has looked at.
        observed_at: when the observation that it rests on began (of several, the earliest).
        external_id: the target's id of the object, for `committed`.
        content: the whole statement in canonical form: reason, evidence items, conclusion.
        digest: SHA-256 of `content`.
        actor: `operator:<credential>`.
        proposed_by: the actor who said it first, where the contract asks for two persons and this
            is the second one.
    """

    decision_id: str
    conclusion: Conclusion
    expected_version: int
    observed_at: datetime
    external_id: str | None
    reason: str
    content: bytes
    digest: bytes
    actor: str
    proposed_by: str | None = None


class Refusal(StrEnum):
    """Why a resolution changed nothing."""

    FINAL = "final"
    STALE = "stale"
    NOT_YET = "not_yet"
    TOO_EARLY = "too_early"
    IN_THE_FUTURE = "in_the_future"
    NOT_PERMITTED = "not_permitted"
    NEEDS_SECOND_PERSON = "needs_second_person"


@dataclass(frozen=True, slots=True)
class Resolved:
    """The answer to a resolution.

    Attributes:
        refusal: None where it stands now.
        counts_from: for `too_early`, the moment after which the observation must begin.
        version: the effect's version on which this was judged.
    """

    refusal: Refusal | None
    version: int
    state: EffectState
    counts_from: datetime | None = None
    view: View | None = None


def resolve(
    snapshot: Snapshot, resolution: Resolution, *, evidence_id: UUID, receipt_id: UUID
) -> Change[Resolved]:
    """Record a person's conclusion and what follows from it, or say why not."""
    intent = snapshot.intent
    refusal, counts_from = _refusal(snapshot, resolution)
    if refusal is not None:
        return Change(Resolved(refusal, intent.version, intent.state, counts_from))
    fact = Evidence(
        evidence_id=str(evidence_id),
        source=EvidenceSource.OPERATOR,
        verdict=_VERDICTS[resolution.conclusion],
        began_at=resolution.observed_at,
        covers_through=len(snapshot.attempts),
        external_ids=(resolution.external_id,) if resolution.external_id else (),
    )
    after = with_evidence(snapshot, EvidenceRow(fact))
    if resolution.conclusion is Conclusion.FAILED:
        after = replace(after, facts=replace(after.facts, failed_by_operator=True))
    elif resolution.conclusion is Conclusion.NOT_COMMITTED and _changes_nothing(after):
        return Change(Resolved(Refusal.NOT_PERMITTED, intent.version, intent.state))
    oversight = snapshot.document.oversight
    if oversight is not None and oversight.second_person and resolution.proposed_by is None:
        return Change(Resolved(Refusal.NEEDS_SECOND_PERSON, intent.version, intent.state))
    evidence = AddEvidence(
        evidence_id=evidence_id,
        source=fact.source,
        verdict=fact.verdict,
        code=f"resolved_{resolution.conclusion.value}",
        began_at=fact.began_at,
        covers_through=fact.covers_through,
        external_ids=fact.external_ids,
        target_identity=None,
        response_digest=None,
        result_digest=None,
    )
    writes: tuple[Write, ...] = (
        evidence,
        AddResolution(
            decision_id=resolution.decision_id,
            evidence_id=evidence_id,
            conclusion=resolution.conclusion,
            content=resolution.content,
            digest=resolution.digest,
            actor=resolution.actor,
        ),
    )
    metadata: dict[str, str | int] = {
        "decision_id": resolution.decision_id,
        "conclusion": resolution.conclusion.value,
        "evidence_id": str(evidence_id),
        "digest": resolution.digest.hex(),
        "covers_through": fact.covers_through,
        "fact_digest": fact_digest_of(evidence),
    }
    if resolution.proposed_by is not None:
        metadata["proposed_by"] = resolution.proposed_by
    change = add_fact(after, writes, receipt_id, resolution.actor, "resolved", metadata)
    view = change.result
    return Change(Resolved(None, view.version, view.state, view=view), change.writes)


_VERDICTS = {
    Conclusion.COMMITTED: Verdict.COMMITTED,
    Conclusion.NOT_COMMITTED: Verdict.NOT_COMMITTED,
    # It says nothing of the target: the effect is over by a person's will.
    Conclusion.FAILED: Verdict.UNKNOWN,
}


def _refusal(snapshot: Snapshot, resolution: Resolution) -> tuple[Refusal | None, datetime | None]:
    intent = snapshot.intent
    if is_final(intent.state):
        return Refusal.FINAL, None
    if intent.version != resolution.expected_version:
        return Refusal.STALE, None
    if intent.state not in _RESOLVABLE and not snapshot.parked:
        return Refusal.NOT_YET, None
    if resolution.observed_at > snapshot.now:
        return Refusal.IN_THE_FUTURE, None
    if resolution.conclusion is Conclusion.NOT_COMMITTED:
        counts_from = absence_counts_from(snapshot)
    elif resolution.conclusion is Conclusion.COMMITTED:
        counts_from = _commit_counts_from(snapshot)
    else:
        counts_from = None  # by a person's will, whatever was seen
    if counts_from is not None and resolution.observed_at <= counts_from:
        return Refusal.TOO_EARLY, counts_from
    return None, None


def _commit_counts_from(snapshot: Snapshot) -> datetime:
    """Return the moment after which an observation can be of this effect, and of no earlier one.

    What a person saw before the effect was submitted is something else, or a clock read in another
    zone. The minute counts whole: that is how exactly people write down when they looked.
    """
    minute = snapshot.intent.created_at.replace(second=0, microsecond=0)
    return minute - timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Permitted:
    """A conclusion that a person may state of an effect.

    Attributes:
        observed_after: the observation has to begin after this moment; None where any will do.
    """

    conclusion: Conclusion
    observed_after: datetime | None = None


def permitted(snapshot: Snapshot) -> tuple[Permitted, ...]:
    """Return what a person may conclude of the effect as it stands; nothing where nobody is asked.

    `not_committed` is left out where the contract permits no way on from it.
    """
    intent = snapshot.intent
    resolvable = intent.state in _RESOLVABLE or snapshot.parked
    if is_final(intent.state) or not resolvable:
        return ()
    counts_from = absence_counts_from(snapshot)
    observed_at = snapshot.now
    if counts_from is not None:
        observed_at = max(observed_at, counts_from + timedelta(microseconds=1))
    absence = Evidence(
        evidence_id="",
        source=EvidenceSource.OPERATOR,
        verdict=Verdict.NOT_COMMITTED,
        began_at=observed_at,
        covers_through=len(snapshot.attempts),
    )
    then = with_evidence(replace(snapshot, now=observed_at), EvidenceRow(absence))
    found = [Permitted(Conclusion.COMMITTED)]
    if not _changes_nothing(then):
        found.append(Permitted(Conclusion.NOT_COMMITTED, counts_from))
    return (*found, Permitted(Conclusion.FAILED))


def absence_counts_from(snapshot: Snapshot) -> datetime | None:
    """Return the moment after which a person's observation of absence must begin.

    None where nothing was sent, and so anything counts. A contract without a settlement bound
    leaves it to the person, but what may still be on the wire has to have ended.
    """
    policy = snapshot.document.policy()
    if policy.settlement_bound_seconds is None:
        policy = replace(policy, settlement_bound_seconds=0.0)
    facts = snapshot.facts
    return conclusive_from(facts.attempts, policy, facts.bounds_restart_at)


def _changes_nothing(after: Snapshot) -> bool:
    """Whether the absence leaves a person waiting for the same reason as before.

    Then the contract permits no way on from there, and to accept it would look like help.
    """
    decision = decide(after.facts, after.document.policy(), after.now)
    return decision.action is Action.PARK and decision.reason == after.intent.reason
