"""Rows against each other and against the end of a replay: each rule asked alone.

No store of ours writes most of these rows. A trace that was tampered with may hold them, and an
account is read without trust in whoever wrote it.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from effect_contracts.document import ContractDocument
from effect_contracts.facts import (
    Alert,
    Conclusion,
    EffectState,
    EvidenceSource,
    Hold,
    Outcome,
    Policy,
    SafetyClass,
    Verdict,
)
from effect_contracts.keys import effect_id
from effect_contracts.trace.findings import Rule
from effect_contracts.trace.log import (
    AttemptRecord,
    EffectLine,
    EventRecord,
    MutationRecord,
    ResolutionRecord,
)
from effect_contracts.trace.replay import NextAction, Replay
from effect_contracts.trace.standing import identity_findings, row_findings, standing_findings
from effect_contracts.trace.timeline import Timeline
from trace_check.asked_alone import BEGAN_AT, TICK, after, attempt, evidence, nothing_known

Found = list[tuple[Rule, str]]


def line(*attempts: AttemptRecord, intent: dict[str, Any] | None = None, **rows: Any) -> EffectLine:
    """The account of an effect with these attempts, which fit their intent unless it is said."""
    bound = "t" if attempts else None
    usual = {
        "latest_ordinal": len(attempts), "target_identity": bound,
        "wire_digest": "4" * 64 if attempts else None,
    }  # fmt: skip
    empty = nothing_known()
    record = empty.intent.model_copy(update=usual | (intent or {}))
    return empty.model_copy(update={"intent": record, "attempts": attempts, **rows})


def rows_of(made: EffectLine) -> Found:
    return [(finding.rule, finding.what) for finding in row_findings(made)]


def resolution(decision: str = "d-1", **members: Any) -> ResolutionRecord:
    usual: dict[str, Any] = {
        "decision_id": decision, "evidence_id": uuid4(), "conclusion": Conclusion.NOT_COMMITTED,
        "digest": "5" * 64, "actor": "operator:o", "recorded_at": after(1),
    }  # fmt: skip
    return ResolutionRecord(**usual | members)


# Identity ----------------------------------------------------------------------------------------


def _contract() -> ContractDocument:
    return ContractDocument.parse_yaml(
        json.dumps(
            {
                "name": "charge", "version": "1", "tool": "charge", "safety": "reconcilable",
                "account": "acct_1", "arguments": {"type": "object"},
                "settlement_bound_seconds": 60,
                "adapter": {"kind": "simulated", "target": "ledger", "probes": True},
            }
        )
    )  # fmt: skip


def identity_of(**members: Any) -> Found:
    intent = nothing_known().intent
    named = effect_id(intent.tenant_id, intent.operation_key)
    made = intent.model_copy(update={"effect_id": named} | members)
    return [(finding.rule, finding.what) for finding in identity_findings(made, _contract())]


def test_an_intent_is_that_of_its_key_and_of_its_contract() -> None:
    assert identity_of() == []
    wrong = (Rule.IDENTITY, "the effect's id does not follow from its operation key")
    assert identity_of(effect_id=UUID(int=3)) == [wrong]
    assert identity_of(operation_key="another") == [wrong]
    # What is no key names no effect at all.
    assert identity_of(operation_key="not a key") == [wrong]


@pytest.mark.parametrize(
    ("member", "value", "words"),
    [
        ("tool", "x", "tool"),
        ("contract_name", "x", "name"),
        ("contract_version", "2", "version"),
        ("safety", SafetyClass.UNSAFE, "safety class"),
    ],
)
def test_an_intent_differs_from_its_contract_in_nothing(
    member: str, value: Any, words: str
) -> None:
    what = f"the intent and its contract differ in the {words}"
    assert identity_of(**{member: value}) == [(Rule.CONTRACT, what)]


# Rows --------------------------------------------------------------------------------------------


def test_rows_that_fit_each_other_are_no_finding() -> None:
    assert rows_of(line()) == []
    two = (attempt(1, Outcome.AMBIGUOUS, recorded=1), attempt(2, Outcome.COMMITTED, recorded=2))
    seen = evidence(Verdict.COMMITTED).model_copy(update={"target_identity": "t"})
    told = evidence(Verdict.COMMITTED, EvidenceSource.OPERATOR)
    assert rows_of(line(*two, evidence=(seen, told), resolutions=(resolution(),))) == []


@pytest.mark.parametrize("ordinals", [(2,), (0,), (1, 3), (1, 1), (2, 1)])
def test_attempts_are_numbered_from_one_each_once(ordinals: tuple[int, ...]) -> None:
    rows = [attempt(n, Outcome.NOT_SENT, recorded=1) for n in ordinals]
    assert rows_of(line(*rows)) == [(Rule.FACTS, "the attempts are not numbered from 1, each once")]


@pytest.mark.parametrize("counted", [0, 1, 3])
def test_an_intent_counts_its_attempts(counted: int) -> None:
    rows = [attempt(n, Outcome.NOT_SENT, recorded=1) for n in (1, 2)]
    found = rows_of(line(*rows, intent={"latest_ordinal": counted}))
    assert found == [(Rule.FACTS, f"the intent counts {counted} attempts")]


def test_no_two_rows_share_an_id() -> None:
    one, two = (attempt(n, Outcome.NOT_SENT, recorded=1) for n in (1, 2))
    twin = two.model_copy(update={"attempt_id": one.attempt_id})
    assert rows_of(line(one, twin)) == [(Rule.FACTS, "two attempts share an id")]
    seen = evidence(Verdict.UNKNOWN, EvidenceSource.OPERATOR)
    doubled = rows_of(line(evidence=(seen, seen)))
    assert doubled == [(Rule.FACTS, "two pieces of evidence share an id")]


def test_each_resolution_has_a_decision_and_evidence_of_its_own() -> None:
    what = (Rule.FACTS, "two resolutions share a decision or their evidence")
    one = resolution()
    assert rows_of(line(resolutions=(one, resolution("d-2"), resolution("d-3")))) == []
    assert rows_of(line(resolutions=(one, resolution()))) == [what]
    assert rows_of(line(resolutions=(one, resolution("d-2", evidence_id=one.evidence_id)))) == [
        what
    ]


@pytest.mark.parametrize("stage", [1, 2])
def test_nothing_is_removed_of_what_has_not_settled(stage: int) -> None:
    what = (Rule.PRUNED, "something of it was removed, and it is not settled")
    assert rows_of(line(intent={"retention_stage": stage})) == [what]
    settled = {"retention_stage": stage, "state": EffectState.CANCELLED}
    assert rows_of(line(intent=settled)) == []


def test_a_target_is_bound_by_the_first_attempt_and_by_nothing_else() -> None:
    what = (Rule.TARGET, "a target is bound by the first attempt and by nothing else")
    assert rows_of(line(intent={"target_identity": "t"})) == [what]
    one = attempt(1, Outcome.NOT_SENT, recorded=1)
    assert what in rows_of(line(one, intent={"target_identity": None}))


def test_what_a_worker_sent_has_a_request_bound_to_it() -> None:
    what = (Rule.TARGET, "it was sent and no request is bound to it")
    sent = attempt(1, Outcome.NOT_SENT, recorded=1)
    performed = attempt(2, Outcome.NOT_SENT, recorded=1, executor_id="caller:c")
    assert rows_of(line(sent, intent={"wire_digest": None})) == [what]
    assert rows_of(line(sent, performed, intent={"wire_digest": None})) == [what]
    only = performed.model_copy(update={"ordinal": 1})
    assert rows_of(line(only, intent={"wire_digest": None})) == []


def test_all_attempts_went_to_the_target_that_was_bound() -> None:
    one = attempt(1, Outcome.NOT_SENT, recorded=1)
    for other in ("s", "u"):
        two = attempt(2, Outcome.NOT_SENT, recorded=1, target_identity=other)
        assert rows_of(line(one, two)) == [(Rule.TARGET, "attempt 2 went to another target")]


@pytest.mark.parametrize("source", EvidenceSource)
@pytest.mark.parametrize("named", [None, "s", "t", "u"])
def test_what_was_asked_was_asked_of_the_target_that_was_bound(
    source: EvidenceSource, named: str | None
) -> None:
    """A person or a delivery need not name a target; whoever asks one does."""
    seen = evidence(Verdict.UNKNOWN, source).model_copy(update={"target_identity": named})
    found = rows_of(line(attempt(1, Outcome.AMBIGUOUS, recorded=1), evidence=(seen,)))
    asks = source in {EvidenceSource.PROBE, EvidenceSource.TRANSACTION}
    fits = named == "t" or (named is None and not asks)
    what = (Rule.TARGET, f"evidence {seen.evidence_id} is of another target")
    assert found == ([] if fits else [what])


def test_an_effect_is_given_up_by_a_resolution_and_by_nothing_else() -> None:
    what = (Rule.FACTS, "the intent was given up, or not, by no resolution")
    given_up = {"failed_by_operator_at": after(1)}
    assert rows_of(line(intent=given_up)) == [what]
    assert rows_of(line(resolutions=(resolution(conclusion=Conclusion.FAILED),))) == [what]
    both = line(intent=given_up, resolutions=(resolution(conclusion=Conclusion.FAILED),))
    assert rows_of(both) == []
    other = line(intent=given_up, resolutions=(resolution(conclusion=Conclusion.COMMITTED),))
    assert rows_of(other) == [what]


# Mutations ---------------------------------------------------------------------------------------


def mutated(*mutations: tuple[int, str], rows: Any = (), **more: Any) -> Found:
    intent = {"safety": more.pop("safety", SafetyClass.TRANSACTIONAL)}
    records = tuple(MutationRecord(ordinal=n, kind=cast(Any, kind)) for n, kind in mutations)
    return rows_of(line(*rows, intent=intent, mutations=records, **more))


def own(verdict: Verdict, through: int = 1) -> Any:
    seen = evidence(verdict, EvidenceSource.TRANSACTION, through=through)
    return seen.model_copy(update={"target_identity": "t"})


DONE = attempt(1, Outcome.COMMITTED, recorded=1)
LOST = attempt(1, Outcome.PRESUMED_AMBIGUOUS, lost_at=after(40))
UNDONE = attempt(1, Outcome.NOT_SENT, recorded=1)
AGAIN = attempt(2, Outcome.COMMITTED, recorded=1)
KEYLESS = (Rule.MUTATION, "a commit without its mutation key, or a key without it")
NO_KEY_SEEN = (Rule.MUTATION, "the mutation key that was seen is not there")
NO_FENCES = (Rule.MUTATION, "the fences are not those that the evidence stands on")


@pytest.mark.parametrize("kind", ["mutation", "fence"])
@pytest.mark.parametrize("safety", [s for s in SafetyClass if s is not SafetyClass.TRANSACTIONAL])
def test_only_a_transactional_effect_has_mutation_keys(kind: str, safety: SafetyClass) -> None:
    found = mutated((1, kind), rows=(DONE,), safety=safety)
    assert found == [(Rule.MUTATION, "an effect of this class has no mutation key")]
    assert mutated(rows=(DONE,), safety=safety) == []


def test_a_mutation_has_its_key_and_a_key_its_mutation() -> None:
    assert mutated((1, "mutation"), rows=(DONE,)) == []
    assert mutated(rows=(DONE,)) == [KEYLESS]
    assert mutated((1, "mutation"), rows=(UNDONE,)) == [KEYLESS]
    assert mutated((1, "mutation"), rows=(UNDONE, AGAIN)) == [KEYLESS]
    assert mutated((2, "mutation"), rows=(UNDONE, AGAIN)) == []


def test_a_lost_mutation_is_shown_by_its_key() -> None:
    seen = (own(Verdict.COMMITTED),)
    assert mutated((1, "mutation"), rows=(LOST,), evidence=seen) == []
    assert mutated(rows=(LOST,), evidence=seen) == [NO_KEY_SEEN]
    # A person's word is no look at the key.
    word = (evidence(Verdict.COMMITTED, EvidenceSource.OPERATOR),)
    assert mutated(rows=(LOST,), evidence=word) == []
    assert mutated((1, "mutation"), rows=(LOST,), evidence=word) == [KEYLESS]
    # What was seen of the lost one says nothing of one that is recorded.
    both = mutated((1, "mutation"), rows=(LOST, AGAIN), evidence=seen)
    assert both == [KEYLESS]


def test_a_mutation_is_committed_once() -> None:
    found = mutated((1, "mutation"), (2, "mutation"), rows=(DONE, AGAIN))
    assert found == [(Rule.MUTATION, "the mutation was committed more than once")]


@pytest.mark.parametrize("kinds", [("mutation", "fence"), ("mutation", "mutation")])
def test_an_attempt_is_mutation_or_fence_and_once(kinds: tuple[str, str]) -> None:
    found = mutated(*((1, kind) for kind in kinds), rows=(DONE,))
    what = (Rule.MUTATION, "an attempt is both mutation and fence, or either twice")
    assert what in found


def test_absence_stands_on_a_fence_for_each_attempt() -> None:
    two = (LOST, attempt(2, Outcome.PRESUMED_AMBIGUOUS, lost_at=after(40)))
    absent = (own(Verdict.NOT_COMMITTED, through=2),)
    assert mutated((1, "fence"), (2, "fence"), rows=two, evidence=absent) == []
    for fences in ((), (1,), (2,), (1, 2, 3)):
        found = mutated(*((n, "fence") for n in fences), rows=two, evidence=absent)
        assert found == [NO_FENCES], fences
    assert mutated((1, "fence"), rows=two) == [NO_FENCES]
    # The widest look counts, in whatever order they stand.
    looks = (absent[0], own(Verdict.NOT_COMMITTED, through=1))
    assert mutated((1, "fence"), (2, "fence"), rows=two, evidence=looks) == []
    unknown = (own(Verdict.UNKNOWN, through=2),)
    assert mutated(rows=two, evidence=unknown) == []


# Where it stands ---------------------------------------------------------------------------------


def ended(
    next_action: NextAction | None,
    *,
    parked: bool = False,
    alert: Alert | None = None,
    pruned: bool = False,
) -> Replay:
    """A replay that has left this behind."""
    replay = Replay(Timeline(nothing_known(), Policy(SafetyClass.RECONCILABLE), None))
    if pruned:
        replay.begin_before(after(0))
    replay.next_action, replay.parked, replay.alert = next_action, parked, alert
    return replay


def _event(at: datetime) -> EventRecord:
    return EventRecord(
        sequence=1, kind="wait", event="e", from_state=None, to_state="prepared", reason="r",
        actor="a", at=at, metadata="{}", previous_digest="", digest="6" * 64,
    )  # fmt: skip


def standing(
    left: Replay,
    *,
    event_at: float = 0,
    updated: float = 0,
    due: float | None = None,
    **intent: Any,
) -> Found:
    told = {
        "updated_at": after(updated), "next_action_at": None if due is None else after(due),
    } | intent  # fmt: skip
    made = line(intent=told, events=(_event(after(event_at)),))
    found = standing_findings(made, left)
    return [(finding.rule, finding.what) for finding in found]


def due(earliest: float | None, latest: float | None = None) -> NextAction:
    latest = earliest if latest is None else latest
    return NextAction(
        None if earliest is None else after(earliest), None if latest is None else after(latest)
    )


FINAL = EffectState.SUCCEEDED
NOT_DUE = (Rule.NEXT_ACTION, "the next action is not due when the last event says")
PARKED = (Rule.NEXT_ACTION, "the intent is parked, or not, unlike its last event")


def test_what_is_not_final_waits_or_is_parked() -> None:
    assert standing(ended(due(5)), due=5) == []
    assert standing(ended(due(None), parked=True), parked=True) == []
    assert standing(ended(due(None)), state=FINAL) == []
    assert standing(ended(due(5)), state=FINAL, due=5) == []  # it is counted at its target then
    nothing = (Rule.NEXT_ACTION, "it is not final, not parked, and nothing is to come")
    assert nothing in standing(ended(due(5)))
    assert standing(ended(None)) == [nothing]


def test_what_is_parked_is_neither_final_nor_due() -> None:
    both = (Rule.NEXT_ACTION, "it is parked, and final or due as well")
    assert standing(ended(None), parked=True) == []
    assert standing(ended(None), parked=True, due=5) == [both]
    assert standing(ended(None), parked=True, state=FINAL) == [both]


@pytest.mark.parametrize(
    ("at", "fits"), [(5 - TICK, False), (5, True), (7, True), (7 + TICK, False), (None, False)]
)
def test_the_next_action_is_due_when_the_last_event_says(at: float | None, fits: bool) -> None:
    found = standing(ended(due(5, 7)), due=at, state=FINAL)
    assert found == ([] if fits else [NOT_DUE])


def test_a_requeue_moves_the_next_action_by_a_quarter_of_an_hour_at_most() -> None:
    left = ended(due(5))
    for at, fits in ((5 - TICK, False), (5, True), (910, True), (910 + TICK, False)):
        found = standing(left, event_at=0, updated=10, due=at)
        assert found == ([] if fits else [NOT_DUE]), at
    # What the event had foreseen for later stays possible.
    assert standing(ended(due(5, 2000)), updated=10, due=2000) == []
    assert standing(ended(due(5, 2000)), updated=10, due=2000 + TICK) == [NOT_DUE]
    # Nothing has moved it: no write followed the event, or the row is older than it.
    for updated in (0, -1):
        assert standing(left, updated=updated, due=6) == [NOT_DUE]


def test_after_an_event_that_left_nothing_nothing_is_to_come() -> None:
    what = (Rule.NEXT_ACTION, "something is to come, and the last event left nothing")
    assert standing(ended(due(None)), state=FINAL, due=5) == [what]


@pytest.mark.parametrize("parked", [False, True])
def test_it_is_parked_as_its_last_event_has_left_it(parked: bool) -> None:
    rest = {"due": None, "state": EffectState.PREPARED} if not parked else {"due": 5.0}
    found = standing(ended(due(5), parked=parked), parked=not parked, **rest)
    assert PARKED in found
    assert NOT_DUE not in found


@pytest.mark.parametrize("hold", Hold)
def test_a_hold_that_was_lifted_leaves_the_effect_due_at_once(hold: Hold) -> None:
    """Nothing is written of that but the row; a changed target is never lifted."""
    left = ended(due(None), parked=True)
    lifted = hold is not Hold.TARGET_CHANGED
    for at in (9, 10):
        found = standing(left, updated=10, due=at, reason=hold.value)
        assert found == ([] if lifted else [PARKED])
    assert standing(left, updated=10, due=10 + TICK, reason=hold.value) == [PARKED]
    assert standing(left, updated=0, due=0, reason=hold.value) == [PARKED]
    assert standing(left, updated=10, due=9, reason="retryable") == [PARKED]
    assert standing(left, updated=10, due=None, parked=True, reason=hold.value) == []


def test_the_alert_is_the_one_that_was_raised() -> None:
    what = (Rule.HEAD, "the intent's alert is not the one that was raised")
    raised = ended(due(None), alert=Alert.LATE_CONTRADICTION)
    assert standing(raised, state=FINAL, alert=Alert.LATE_CONTRADICTION) == []
    assert standing(raised, state=FINAL, alert=None) == [what]
    assert standing(raised, state=FINAL, alert=Alert.DUPLICATE_DETECTED) == [what]
    assert standing(ended(due(None)), state=FINAL, alert=Alert.LATE_CONTRADICTION) == [what]


@pytest.mark.parametrize("next_action", [None, due(None)])
def test_an_alert_may_be_older_than_what_was_kept_and_none_may_go(
    next_action: NextAction | None,
) -> None:
    what = (Rule.HEAD, "the intent's alert is not the one that was raised")
    late, duplicate = Alert.LATE_CONTRADICTION, Alert.DUPLICATE_DETECTED
    for raised, borne, fits in (
        (None, None, True),
        (None, late, True),
        (None, duplicate, True),
        (late, late, True),
        (late, duplicate, True),  # it was raised before, and stays
        (late, None, False),
        (duplicate, duplicate, True),
        (duplicate, late, False),
        (duplicate, None, False),
    ):
        left = ended(next_action, alert=raised, pruned=True)
        found = standing(left, state=FINAL, alert=borne)
        assert found == ([] if fits else [what]), (raised, borne)
        whole = standing(ended(next_action, alert=raised), state=FINAL, alert=borne)
        assert whole == ([] if raised is borne else [what])


def test_where_no_event_is_left_nothing_tells_of_an_alert() -> None:
    made = line(intent={"state": FINAL, "alert": Alert.LATE_CONTRADICTION})
    assert list(standing_findings(made, ended(None))) == []


def test_the_times_of_these_tests_are_those_of_the_others() -> None:
    assert after(0) == BEGAN_AT
