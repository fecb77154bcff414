"""Where an effect stands: the intent's row against what its events and rows have led to."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from effect_contracts import keys
from effect_contracts.decision import Reason
from effect_contracts.document import ContractDocument
from effect_contracts.election import CALLER_PREFIX
from effect_contracts.errors import InvalidOperationKey
from effect_contracts.facts import (
    FINAL_STATES,
    Conclusion,
    EvidenceSource,
    Hold,
    Outcome,
    SafetyClass,
    Verdict,
)
from effect_contracts.trace.findings import Finding, Rule
from effect_contracts.trace.log import EffectLine, IntentRecord
from effect_contracts.trace.replay import NOTHING, Replay

# A requeue writes no event. It moves the next action by at most the longest wait between runs
# that bring nothing new.
REQUEUE_WAIT_SECONDS_MAX: Final = 900.0
# A target that has changed stays changed; every other hold is lifted some day.
_HOLDS: Final = frozenset(hold.value for hold in Hold if hold is not Hold.TARGET_CHANGED)


def identity_findings(intent: IntentRecord, document: ContractDocument) -> Iterator[Finding]:
    """Yield what does not fit between an intent, its operation key and its contract."""
    try:
        fits = keys.effect_id(intent.tenant_id, intent.operation_key) == intent.effect_id
    except InvalidOperationKey:
        fits = False
    if not fits:
        yield Finding(Rule.IDENTITY, "the effect's id does not follow from its operation key")
    bound = {
        "tool": (intent.tool, document.tool),
        "name": (intent.contract_name, document.name),
        "version": (intent.contract_version, document.version),
        "safety class": (intent.safety, document.safety),
    }
    for name, (stored, told) in bound.items():
        if stored != told:
            yield Finding(Rule.CONTRACT, f"the intent and its contract differ in the {name}")


def row_findings(line: EffectLine) -> Iterator[Finding]:
    """Yield what does not fit among the rows, whatever the events say."""
    intent = line.intent
    ordinals = [row.ordinal for row in line.attempts]
    if ordinals != list(range(1, len(ordinals) + 1)):
        yield Finding(Rule.FACTS, "the attempts are not numbered from 1, each once")
    if intent.latest_ordinal != len(ordinals):
        yield Finding(Rule.FACTS, f"the intent counts {intent.latest_ordinal} attempts")
    if len({row.attempt_id for row in line.attempts}) != len(ordinals):
        yield Finding(Rule.FACTS, "two attempts share an id")
    if intent.retention_stage and intent.state not in FINAL_STATES:
        yield Finding(Rule.PRUNED, "something of it was removed, and it is not settled")
    resolutions = line.resolutions
    if len({r.decision_id for r in resolutions} | {r.evidence_id for r in resolutions}) != 2 * len(
        resolutions
    ):
        yield Finding(Rule.FACTS, "two resolutions share a decision or their evidence")
    if len({row.evidence_id for row in line.evidence}) != len(line.evidence):
        yield Finding(Rule.FACTS, "two pieces of evidence share an id")
    if (intent.target_identity is not None) != bool(ordinals):
        yield Finding(Rule.TARGET, "a target is bound by the first attempt and by nothing else")
    # What a caller performs is rendered by the caller.
    by_workers = [r for r in line.attempts if not r.executor_id.startswith(CALLER_PREFIX)]
    if by_workers and intent.wire_digest is None:
        yield Finding(Rule.TARGET, "it was sent and no request is bound to it")
    for row in line.attempts:
        if row.target_identity != intent.target_identity:
            yield Finding(Rule.TARGET, f"attempt {row.ordinal} went to another target")
    for evidence in line.evidence:
        asked = evidence.source in {EvidenceSource.PROBE, EvidenceSource.TRANSACTION}
        same = evidence.target_identity == intent.target_identity
        if not same and (asked or evidence.target_identity is not None):
            yield Finding(Rule.TARGET, f"evidence {evidence.evidence_id} is of another target")
    given_up = [r.recorded_at for r in line.resolutions if r.conclusion is Conclusion.FAILED]
    if (intent.failed_by_operator_at is not None) != bool(given_up):
        yield Finding(Rule.FACTS, "the intent was given up, or not, by no resolution")
    yield from _mutation_findings(line)


def _mutation_findings(line: EffectLine) -> Iterator[Finding]:
    mutated = [m.ordinal for m in line.mutations if m.kind == "mutation"]
    fenced = {m.ordinal for m in line.mutations if m.kind == "fence"}
    if line.intent.safety is not SafetyClass.TRANSACTIONAL:
        if line.mutations:
            yield Finding(Rule.MUTATION, "an effect of this class has no mutation key")
        return
    if len(mutated) > 1:
        yield Finding(Rule.MUTATION, "the mutation was committed more than once")
    if len({m.ordinal for m in line.mutations}) != len(line.mutations):
        yield Finding(Rule.MUTATION, "an attempt is both mutation and fence, or either twice")
    committed = [a.ordinal for a in line.attempts if a.outcome is Outcome.COMMITTED]
    own = [e for e in line.evidence if e.source is EvidenceSource.TRANSACTION]
    if committed != mutated and (committed or not any(_commits(e.verdict) for e in own)):
        yield Finding(Rule.MUTATION, "a commit without its mutation key, or a key without it")
    if any(_commits(e.verdict) for e in own) and not mutated:
        yield Finding(Rule.MUTATION, "the mutation key that was seen is not there")
    covered = [e.covers_through for e in own if e.verdict is Verdict.NOT_COMMITTED]
    if fenced != set(range(1, max(covered, default=0) + 1)):
        yield Finding(Rule.MUTATION, "the fences are not those that the evidence stands on")


def _commits(verdict: Verdict) -> bool:
    return verdict is Verdict.COMMITTED


def standing_findings(line: EffectLine, replay: Replay) -> Iterator[Finding]:
    """Yield what the intent's row says and the replayed events do not."""
    intent = line.intent
    final = intent.state in FINAL_STATES
    waits = intent.next_action_at is not None
    if intent.parked and (final or waits):
        yield Finding(Rule.NEXT_ACTION, "it is parked, and final or due as well")
    if not final and not waits and not intent.parked:
        yield Finding(Rule.NEXT_ACTION, "it is not final, not parked, and nothing is to come")
    if replay.next_action is not None:
        yield from _next_action_findings(line, replay)
    if line.events and not replay.bears(intent.alert):
        yield Finding(Rule.HEAD, "the intent's alert is not the one that was raised")


def _next_action_findings(line: EffectLine, replay: Replay) -> Iterator[Finding]:
    intent, expected = line.intent, replay.next_action
    assert expected is not None
    touched = intent.updated_at > line.events[-1].at
    at = intent.next_action_at
    if touched and intent.reason in _HOLDS and at is not None and at <= intent.updated_at:
        return  # the hold was lifted, which writes no event of an effect
    if intent.parked is not replay.parked:
        yield Finding(Rule.NEXT_ACTION, "the intent is parked, or not, unlike its last event")
        return
    if expected == NOTHING:
        if at is not None:
            yield Finding(Rule.NEXT_ACTION, "something is to come, and the last event left nothing")
        return
    earliest, latest = expected.earliest_at, expected.latest_at
    assert earliest is not None
    assert latest is not None
    if touched and intent.reason == Reason.TARGET_BUSY and at is not None:
        return  # a turn that came in vain, and a place that is free, move it and write no event
    if touched:
        wait = timedelta(seconds=REQUEUE_WAIT_SECONDS_MAX)
        latest = max(latest, intent.updated_at + wait)
    if at is None or not earliest <= at <= latest:
        yield Finding(Rule.NEXT_ACTION, "the next action is not due when the last event says")
