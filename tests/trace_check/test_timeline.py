"""What was known at each moment, taken apart again from rows that show the last word only."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from effect_contracts.fact_digests import evidence_digest, outcome_digest
from effect_contracts.facts import (
    CODE_ALREADY_EXISTS,
    Attempt,
    CertificateDemand,
    Conclusion,
    Evidence,
    EvidenceSource,
    Facts,
    Hold,
    Outcome,
    Policy,
    SafetyClass,
    Verdict,
)
from effect_contracts.trace.findings import Rule
from effect_contracts.trace.log import AttemptRecord, EvidenceRecord, ResolutionRecord
from effect_contracts.trace.timeline import (
    Timeline,
    any_certificate,
    evidence_fact_digest,
    fact_of,
    outcome_fact_digest,
)
from trace_check.asked_alone import TICK, after, attempt, evidence, nothing_known, refused

POLICY = Policy(SafetyClass.RECONCILABLE)


def timeline(
    *rows: AttemptRecord | EvidenceRecord,
    resolutions: tuple[ResolutionRecord, ...] = (),
    restarted: float | None = None,
    policy: Policy = POLICY,
    **intent: Any,
) -> Timeline:
    """A timeline of these rows, of which nothing is known yet."""
    empty = nothing_known()
    line = empty.model_copy(
        update={
            "intent": empty.intent.model_copy(update=intent),
            "attempts": tuple(row for row in rows if isinstance(row, AttemptRecord)),
            "evidence": tuple(row for row in rows if isinstance(row, EvidenceRecord)),
            "resolutions": resolutions,
        }
    )
    return Timeline(line, policy, None if restarted is None else after(restarted))


def resolution(decision: str, conclusion: Conclusion, at: float = 1) -> ResolutionRecord:
    return ResolutionRecord(
        decision_id=decision, evidence_id=uuid4(), conclusion=conclusion, digest="5" * 64,
        actor="operator:o", recorded_at=after(at),
    )  # fmt: skip


def left(made: Timeline) -> list[str]:
    """What the rows hold and no event told; all of it is a matter of facts."""
    found = list(made.leftovers())
    assert {finding.rule for finding in found} <= {Rule.FACTS}
    return [finding.what for finding in found]


# Attempts ----------------------------------------------------------------------------------------


def test_an_attempt_is_open_then_lost_then_recorded() -> None:
    row = attempt(1, Outcome.COMMITTED, recorded=50, lost_at=after(40), external_id="x", code="ok")
    made = timeline(row)
    assert (made.attempts, made.latest_ordinal) == ((), 0)
    refused(Rule.FACTS, made.outcome, 1)
    made.start(row)
    assert made.attempts == (Attempt(1, row.started_at, row.deadline_at),)
    assert made.outcome(1) is None
    made.lose((1,), after(40))
    assert made.outcome(1) is Outcome.PRESUMED_AMBIGUOUS
    made.record(row)
    assert made.attempts == (
        Attempt(
            1, row.started_at, row.deadline_at, Outcome.COMMITTED, after(50), code="ok",
            external_id="x",
        ),
    )  # fmt: skip
    assert made.latest_ordinal == 1
    assert left(made) == []


def test_attempts_are_known_by_ordinal_whatever_came_first() -> None:
    rows = [attempt(n, Outcome.NOT_SENT, recorded=1) for n in (1, 2, 3)]
    made = timeline(*rows)
    for row in (rows[1], rows[0]):
        made.start(row)
    assert [one.ordinal for one in made.attempts] == [1, 2]
    assert made.latest_ordinal == 2


def test_only_what_is_there_is_asked_for() -> None:
    made = timeline(attempt(1, None))
    assert made.row(1).ordinal == 1
    for ordinal in (0, 2):
        assert refused(Rule.FACTS, made.row, ordinal) == f"there is no attempt {ordinal}"
    assert refused(Rule.FACTS, made.outcome, 1) == "attempt 1 has not started"


@pytest.mark.parametrize("at", [40 - TICK, 40 + TICK])
def test_an_attempt_is_lost_at_the_moment_that_its_row_names(at: float) -> None:
    made = timeline(attempt(1, None, lost_at=after(40)))
    made.start(made.row(1))
    assert "its row does not say so" in refused(Rule.FACTS, made.lose, (1,), after(at))


def test_a_lease_lasts_as_its_events_say_and_an_outcome_changes_nothing_of_it() -> None:
    row = attempt(1, Outcome.COMMITTED, recorded=50)
    made = timeline(row)
    made.start(row, after(10))
    assert made.attempts[0].deadline_at == after(10)
    made.record(row)
    assert made.attempts[0].deadline_at == after(10)
    assert left(made) == ["no event tells how long attempt 1 lasts"]
    made.extend(1, row.deadline_at)
    assert made.attempts[0].deadline_at == row.deadline_at
    assert made.outcome(1) is Outcome.COMMITTED
    assert left(made) == []


# Facts -------------------------------------------------------------------------------------------


def test_nothing_is_known_of_what_nothing_was_told() -> None:
    made = timeline(attempt(1, None), evidence(Verdict.COMMITTED))
    assert made.facts(after(5)) == Facts(jitter_seed=UUID(int=2).int)


def test_facts_hold_what_was_told_until_then() -> None:
    seen = evidence(Verdict.COMMITTED, EvidenceSource.OPERATOR, ids=("x",))
    row = attempt(1, Outcome.AMBIGUOUS, recorded=1)
    made = timeline(
        row, seen, send_before=after(99), approved_at=after(2), restarted=3,
    )  # fmt: skip
    made.start(row)
    made.record(row)
    made.tell(seen)
    made.look_up_asked_at = after(4)
    made.approve(after(2))
    facts = made.facts(after(5), Hold.PAUSED, after(6))
    assert facts == Facts(
        attempts=made.attempts,
        evidence=(fact_of(seen),),
        look_up_asked_at=after(4),
        holds=frozenset({Hold.PAUSED}),
        send_before=after(99),
        approved_at=after(2),
        turn_at=after(6),
        jitter_seed=UUID(int=2).int,
        bounds_restart_at=after(3),
    )


def test_evidence_that_decides_nothing_is_kept_and_not_decided_on() -> None:
    note = evidence(Verdict.COMMITTED, EvidenceSource.OPERATOR)
    unknown = evidence(Verdict.UNKNOWN)
    made = timeline(note, unknown)
    for row in (note, unknown):
        made.tell(row)
    assert made.evidence == (note, unknown)
    assert made.facts(after(1)).evidence == tuple(
        fact for fact in (fact_of(note), fact_of(unknown)) if fact.decisive
    )
    assert not fact_of(unknown).decisive


def test_look_ups_are_counted_from_the_latest_start() -> None:
    rows = [attempt(1, Outcome.AMBIGUOUS, starts=0, recorded=1), attempt(2, None, starts=100)]
    looks = [evidence(Verdict.UNKNOWN, began=at) for at in (50, 100, 100 + TICK, 130, 120)]
    webhook = evidence(Verdict.UNKNOWN, EvidenceSource.WEBHOOK, began=200)
    made = timeline(*rows, *looks, webhook)
    for seen in (*looks, webhook):
        made.tell(seen)
    before = made.facts(after(300))
    assert (before.probes_since_attempt, before.probe_began_at) == (0, None)
    made.start(rows[0])
    first = made.facts(after(300))
    assert (first.probes_since_attempt, first.probe_began_at) == (5, after(130))
    made.start(rows[1])
    second = made.facts(after(300))
    assert (second.probes_since_attempt, second.probe_began_at) == (3, after(130))


@pytest.mark.parametrize(("at", "known"), [(3 - TICK, False), (3, True), (4, True)])
def test_bounds_began_again_once_it_was_known(at: float, known: bool) -> None:
    made = timeline(restarted=3)
    assert made.restarted_at(after(at)) == (after(3) if known else None)
    assert timeline().restarted_at(after(at)) is None


@pytest.mark.parametrize(("at", "known"), [(3 - TICK, False), (3, False), (3 + TICK, True)])
def test_a_cancel_is_known_to_whoever_comes_after_it(at: float, known: bool) -> None:
    made = timeline(cancel_requested_at=after(3))
    assert made.facts(after(at)).cancel_requested is known
    made.cancelled = True
    assert made.facts(after(at)).cancel_requested
    assert not timeline().facts(after(at)).cancel_requested


def test_it_was_given_up_once_the_resolution_was_told() -> None:
    made = timeline(
        resolutions=(
            resolution("failed", Conclusion.FAILED),
            resolution("other", Conclusion.NOT_COMMITTED),
        )
    )
    for told, given_up in ((set(), False), ({"other"}, False), ({"failed"}, True)):
        made.resolved = told
        assert made.given_up is given_up
        assert made.facts(after(5)).failed_by_operator is given_up


@pytest.mark.parametrize(("at", "holds"), [(2, True), (2 - TICK, True), (2 + TICK, False)])
def test_an_approval_is_that_of_the_intent_or_an_earlier_one(at: float, holds: bool) -> None:
    made = timeline(approved_at=after(2))
    if holds:
        made.approve(after(at))
        assert made.facts(after(5)).approved_at == after(at)
    else:
        refused(Rule.FACTS, made.approve, after(at))
    refused(Rule.FACTS, timeline().approve, after(at))


def test_a_certificate_that_fits_is_taken_for_there_and_judged_by_the_attempts_event() -> None:
    demand = CertificateDemand(trials=frozenset({"ten_at_once"}))
    asks = Policy(SafetyClass.UNSAFE, certificate=demand)
    (one,) = any_certificate(asks, after(5))
    assert (one.trials, one.ended_at, one.expires_at) == (demand.trials, after(5), after(6))
    assert timeline(policy=asks).facts(after(5)).certificates == (one,)
    assert any_certificate(POLICY, after(5)) == ()


# Pruned beginnings -------------------------------------------------------------------------------


def _story() -> Timeline:
    return timeline(
        attempt(1, Outcome.AMBIGUOUS, starts=0, recorded=10, lost_at=after(5)),
        attempt(2, Outcome.COMMITTED, starts=20, recorded=30),
        attempt(3, Outcome.PRESUMED_AMBIGUOUS, starts=40, lost_at=after(80)),
        evidence(Verdict.UNKNOWN, began=15),
        evidence(Verdict.UNKNOWN, began=35),
        resolutions=(
            resolution("d-1", Conclusion.NOT_COMMITTED, 12),
            resolution("d-2", Conclusion.NOT_COMMITTED, 32),
        ),
        reconcile_asked_at=after(14),
        approved_at=after(16),
    )


AMBIGUOUS, COMMITTED = Outcome.AMBIGUOUS, Outcome.COMMITTED
PRESUMED = Outcome.PRESUMED_AMBIGUOUS


@pytest.mark.parametrize(
    ("at", "outcomes", "told", "resolved", "asked", "approved"),
    [
        (0, [], 0, set(), False, False),
        (1, [None], 0, set(), False, False),
        (5, [None], 0, set(), False, False),
        (6, [PRESUMED], 0, set(), False, False),
        (10, [PRESUMED], 0, set(), False, False),
        (11, [AMBIGUOUS], 0, set(), False, False),
        (12, [AMBIGUOUS], 0, set(), False, False),
        (14, [AMBIGUOUS], 0, {"d-1"}, False, False),
        (15, [AMBIGUOUS], 0, {"d-1"}, True, False),
        (16, [AMBIGUOUS], 1, {"d-1"}, True, False),
        (17, [AMBIGUOUS], 1, {"d-1"}, True, True),
        (31, [AMBIGUOUS, COMMITTED], 1, {"d-1"}, True, True),
        (33, [AMBIGUOUS, COMMITTED], 1, {"d-1", "d-2"}, True, True),
        (41, [AMBIGUOUS, COMMITTED, None], 2, {"d-1", "d-2"}, True, True),
        (81, [AMBIGUOUS, COMMITTED, PRESUMED], 2, {"d-1", "d-2"}, True, True),
    ],
)
def test_what_is_older_than_the_first_kept_event_is_taken_for_known(
    at: float,
    outcomes: list[Outcome | None],
    told: int,
    resolved: set[str],
    asked: bool,
    approved: bool,
) -> None:
    made = _story()
    made.begin_before(after(at))
    assert [one.outcome for one in made.attempts] == outcomes
    assert (len(made.evidence), len(made.untold())) == (told, 2 - told)
    assert made.resolved == resolved
    assert made.look_up_asked_at == (after(14) if asked else None)
    assert made.approved_at == (after(16) if approved else None)


def test_where_no_event_is_left_what_was_there_at_the_export_is_known() -> None:
    made = _story()
    made.begin_through(after(40))
    assert [one.outcome for one in made.attempts] == [AMBIGUOUS, COMMITTED, None]
    assert len(made.evidence) == 2
    made = _story()
    made.begin_through(after(40 - TICK))
    assert [one.outcome for one in made.attempts] == [AMBIGUOUS, COMMITTED]
    made = _story()
    made.begin_through(after(80))
    assert left(made) == []


# Evidence ----------------------------------------------------------------------------------------


def test_evidence_is_told_once() -> None:
    seen = evidence(Verdict.UNKNOWN)
    made = timeline(seen)
    assert made.untold() == (seen,)
    assert made.untold_evidence(seen.evidence_id) == seen
    what = "there is no such evidence, or it was told before"
    assert refused(Rule.FACTS, made.untold_evidence, uuid4()) == what
    made.tell(seen)
    assert (made.untold(), made.evidence) == ((), (seen,))
    assert refused(Rule.FACTS, made.untold_evidence, seen.evidence_id) == what


def test_evidence_is_read_as_decide_reads_it() -> None:
    seen = evidence(Verdict.COMMITTED, began=7, through=2, ids=("x", "y"))
    assert fact_of(seen) == Evidence(
        evidence_id=str(seen.evidence_id),
        source=EvidenceSource.PROBE,
        verdict=Verdict.COMMITTED,
        began_at=after(7),
        covers_through=2,
        external_ids=("x", "y"),
        code="c",
    )


# What nobody told --------------------------------------------------------------------------------


def test_rows_of_which_no_event_told_are_named() -> None:
    row = attempt(1, Outcome.COMMITTED, recorded=50, lost_at=after(40))
    seen = evidence(Verdict.UNKNOWN)
    made = timeline(
        row, seen, resolutions=(resolution("d-1", Conclusion.COMMITTED),),
        approved_at=after(1), reconcile_asked_at=after(1),
    )  # fmt: skip
    rest = [
        f"no event tells of evidence {seen.evidence_id}",
        "no event tells when it was last approved",
        "no event tells when a look-up was last asked for",
        "no event tells of the resolution of operator:o",
    ]
    assert left(made) == ["no event tells that attempt 1 started", *rest]
    made.start(row)
    assert left(made) == [
        "no event tells the outcome of attempt 1",
        "no event tells that attempt 1 was lost",
        *rest,
    ]
    made.lose((1,), after(40))
    assert left(made) == ["no event tells the outcome of attempt 1", *rest]
    made.record(row)
    assert left(made) == rest
    made.tell(seen)
    made.approve(after(1))
    made.look_up_asked_at = after(1)
    made.resolved = {"d-1"}
    assert left(made) == []


def test_an_attempt_that_was_lost_by_an_event_is_lost_in_its_row() -> None:
    row = attempt(1, None, lost_at=after(40))
    made = timeline(row)
    made.start(row)
    made.lose((1,), after(40))
    assert left(made) == ["no event tells the outcome of attempt 1"]
    presumed = attempt(1, PRESUMED, lost_at=after(40))
    made = timeline(presumed)
    made.start(presumed)
    made.lose((1,), after(40))
    assert left(made) == []


def _known(row: AttemptRecord) -> Timeline:
    made = timeline(row)
    made.start(row)
    if row.outcome is not None:
        made.record(row)
    return made


@pytest.mark.parametrize("outcome", [None, *Outcome])
@pytest.mark.parametrize("recorded", [None, 5.0])
def test_an_outcome_is_recorded_by_the_sender_and_a_presumed_one_by_nobody(
    outcome: Outcome | None, recorded: float | None
) -> None:
    by_sender = outcome not in {None, PRESUMED}
    found = left(_known(attempt(1, outcome, recorded=recorded)))
    fits = by_sender == (recorded is not None)
    assert found == ([] if fits else ["attempt 1 is recorded, or not, by nobody"])


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("code", "x"),
        ("external_id", "x"),
        ("retry_after_seconds", 0.0),
        ("result_digest", "7" * 64),
        ("operation", True),
    ],
)
@pytest.mark.parametrize("outcome", [None, PRESUMED])
def test_an_attempt_that_nobody_recorded_has_no_answer(
    outcome: Outcome | None, member: str, value: Any
) -> None:
    found = left(_known(attempt(1, outcome, **{member: value})))
    assert found[0] == "attempt 1 has an answer and nobody recorded it"


@pytest.mark.parametrize("outcome", [one for one in Outcome if one is not PRESUMED])
def test_an_outcome_has_what_outcomes_of_its_kind_have(outcome: Outcome) -> None:
    def odd(**members: Any) -> list[str]:
        return left(_known(attempt(1, outcome, recorded=5, **members)))

    def named(name: str) -> list[str]:
        return [f"no outcome as that of attempt 1 has its {name}"]

    assert odd(code="x", retry_after_seconds=1.0) == []
    assert odd(external_id="x", code=CODE_ALREADY_EXISTS) == []
    identified = outcome is COMMITTED
    assert odd(external_id="x") == ([] if identified else named("external id"))
    answered = outcome in {COMMITTED, Outcome.PARTIAL}
    assert odd(result_digest="7" * 64) == ([] if answered else named("result"))
    polled = outcome is Outcome.IN_PROGRESS
    assert odd(operation=True) == ([] if polled else named("operation"))


@pytest.mark.parametrize("verdict", Verdict)
def test_evidence_holds_what_such_a_look_can_show(verdict: Verdict) -> None:
    def odd(**members: Any) -> list[str]:
        seen = evidence(verdict).model_copy(update=members)
        made = timeline(seen)
        made.tell(seen)
        return [what.replace(str(seen.evidence_id), "E") for what in left(made)]

    assert odd() == []
    named = verdict in {Verdict.COMMITTED, Verdict.MISMATCH}
    nameless = [] if named else ["evidence E names an object, and saw none"]
    assert odd(external_ids=("x",)) == nameless
    committed = verdict is Verdict.COMMITTED
    resultless = [] if committed else ["evidence E has a result, and saw no commit"]
    assert odd(result_digest="7" * 64) == resultless


# Digests -----------------------------------------------------------------------------------------


def test_the_digest_of_a_fact_is_that_of_its_row() -> None:
    row = attempt(
        2, COMMITTED, recorded=5, code="ok", external_id="x", retry_after_seconds=1.5,
        result_digest="7" * 64,
    )  # fmt: skip
    recorded_at: datetime = after(5)
    assert outcome_fact_digest(row) == outcome_digest(
        attempt_id=row.attempt_id, ordinal=2, outcome=COMMITTED, code="ok",
        recorded_at=recorded_at, external_id="x", retry_after_seconds=1.5, operation=False,
        result_digest="7" * 64,
    )  # fmt: skip
    seen = evidence(Verdict.COMMITTED, began=7, through=2, ids=("x",)).model_copy(
        update={"target_identity": "t", "result_digest": "7" * 64}
    )
    assert evidence_fact_digest(seen) == evidence_digest(
        evidence_id=seen.evidence_id, source=EvidenceSource.PROBE, verdict=Verdict.COMMITTED,
        code="c", began_at=after(7), covers_through=2, external_ids=("x",), target_identity="t",
        result_digest="7" * 64,
    )  # fmt: skip
