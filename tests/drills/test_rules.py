"""The rules of drills: what may be armed, how far one has come, and whether a promise was kept."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from effect_broker.drills import (
    POINTS,
    AttemptSeen,
    DrilledEffect,
    DrillRecord,
    DrillStatus,
    EvidenceSeen,
    SettledBy,
    checked_point,
    point_of_death,
)
from effect_broker.faultpoints import FaultPoint
from effect_contracts.errors import InvalidRequest
from effect_contracts.facts import Alert, EffectState, EvidenceSource, SafetyClass, Verdict

T0 = datetime(2026, 11, 29, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def effect(**changes: Any) -> DrilledEffect:
    """An unsafe effect, say, that was sent at 1 s and is at rest at 9 s."""
    made = DrilledEffect(
        effect_id=uuid4(),
        operation_key="k",
        tool="t",
        safety=SafetyClass.IDEMPOTENT,
        state=EffectState.SUCCEEDED,
        reason="committed",
        parked=False,
        alert=None,
        settled_at=at(9),
        downstream_key="dk",
        attempts=(AttemptSeen(1, at(1), "drill"),),
        evidence=(),
    )
    return replace(made, **changes)


def record(met: DrilledEffect | None = None, **changes: Any) -> DrillRecord:
    made = DrillRecord(
        drill_id=uuid4(),
        tenant_id=uuid4(),
        operation_key=None,
        tool="t",
        point=FaultPoint.AFTER_TARGET_ANSWER,
        takeover_seconds=30,
        armed_by="operator:x",
        reason="r",
        armed_at=T0,
        expires_at=at(600),
        cancelled_by=None,
        cancelled_at=None,
        matched_at=None if met is None else T0,
        executor_id="drill",
        worker_ready_at=T0,
        died_at=None if met is None else at(2),
        worker_lives=met is None,
        now=at(10),
        effect=met,
    )
    return replace(made, **changes)


def looked(verdict: Verdict, seconds: float, source: Any = EvidenceSource.PROBE) -> EvidenceSeen:
    return EvidenceSeen(source, verdict, at(seconds), at(seconds))


@pytest.mark.parametrize("point", FaultPoint)
def test_only_places_of_a_worker_with_one_effect_can_be_armed(point: FaultPoint) -> None:
    foreign = ("before_submit_commit", "after_submit_commit", "before_reap_commit",
               "after_reap_commit", "before_requeue_commit", "after_requeue_commit")  # fmt: skip
    if point.value not in foreign:
        assert checked_point(point.value) is point
        return
    with pytest.raises(InvalidRequest) as refused:
        checked_point(point.value)
    assert refused.value.field == "/fault_point"
    assert refused.value.extras["allowed"] == ", ".join(POINTS)


def test_a_transactional_effect_has_no_answer_without_its_receipt() -> None:
    point = FaultPoint.AFTER_TARGET_ANSWER
    behind = point_of_death(point, SafetyClass.TRANSACTIONAL)
    assert behind is FaultPoint.AFTER_OUTCOME_COMMIT
    for safety in (SafetyClass.IDEMPOTENT, SafetyClass.RECONCILABLE, SafetyClass.UNSAFE):
        assert point_of_death(point, safety) is point


OPEN = {"settled_at": None, "state": EffectState.DISPATCHING}


@pytest.mark.parametrize(
    ("drill", "status"),
    [
        (record(), DrillStatus.ARMED),
        (record(now=at(600)), DrillStatus.EXPIRED),
        (record(cancelled_at=T0, cancelled_by="x"), DrillStatus.CANCELLED),
        (record(effect(**OPEN), died_at=None, worker_lives=True), DrillStatus.MATCHED),
        (record(effect(**OPEN), died_at=None, executor_id=None), DrillStatus.MATCHED),
        (record(effect(**OPEN)), DrillStatus.DIED),
        (record(effect()), DrillStatus.SETTLED),
        # Its receipt stands, and nobody has seen yet that it is dead.
        (record(effect(), died_at=None, worker_lives=True), DrillStatus.MATCHED),
        (record(effect(), died_at=None), DrillStatus.MISSED),
        (record(effect(**OPEN), died_at=None), DrillStatus.MISSED),
        (record(effect(), died_at=None, executor_id=None), DrillStatus.MISSED),
    ],
)
def test_the_status_says_how_far_it_has_come(drill: DrillRecord, status: DrillStatus) -> None:
    assert drill.status is status


UNKNOWN = {
    "safety": SafetyClass.UNSAFE, "state": EffectState.OUTCOME_UNKNOWN, "parked": True,
}  # fmt: skip
TWICE = (AttemptSeen(1, at(1), "drill"), AttemptSeen(2, at(8), "peer"))


@pytest.mark.parametrize(
    ("met", "how"),
    [
        (effect(settled_at=at(1.5)), SettledBy.RECEIPT),
        (effect(attempts=TWICE), SettledBy.REDISPATCH),
        (effect(attempts=TWICE[1:]), SettledBy.DISPATCH),
        (effect(evidence=(looked(Verdict.COMMITTED, 8),)), SettledBy.PROBE),
        (
            effect(evidence=(looked(Verdict.NOT_COMMITTED, 7),), attempts=TWICE),
            SettledBy.REDISPATCH,
        ),
        (
            effect(evidence=(looked(Verdict.COMMITTED, 8, EvidenceSource.TRANSACTION),)),
            SettledBy.TRANSACTION,
        ),
        (
            effect(evidence=(looked(Verdict.COMMITTED, 8, EvidenceSource.OPERATOR),)),
            SettledBy.OPERATOR,
        ),
        (effect(evidence=(looked(Verdict.UNKNOWN, 8),)), SettledBy.RULE),
        (effect(**UNKNOWN), SettledBy.PERSON_NEEDED),
    ],
)
def test_what_has_settled_it_is_read_from_what_came_after_the_death(
    met: DrilledEffect, how: SettledBy
) -> None:
    assert record(met).settled_by is how


RECONCILABLE = {"safety": SafetyClass.RECONCILABLE, "attempts": TWICE}


@pytest.mark.parametrize(
    ("met", "kept"),
    [
        (effect(), True),
        (effect(attempts=TWICE), True),
        (effect(alert=Alert.DUPLICATE_DETECTED), False),
        (effect(**UNKNOWN), True),
        (effect(**{**UNKNOWN, "attempts": TWICE}), False),
        (effect(**RECONCILABLE), False),
        (effect(**RECONCILABLE, evidence=(looked(Verdict.NOT_COMMITTED, 0.5),)), False),
        (effect(**RECONCILABLE, evidence=(looked(Verdict.UNKNOWN, 7),)), False),
        (effect(**RECONCILABLE, evidence=(looked(Verdict.NOT_COMMITTED, 7),)), True),
    ],
)
def test_the_promise_is_judged_by_class(met: DrilledEffect, kept: bool) -> None:
    assert record(met).promise_kept is kept


def test_nothing_is_promised_of_an_effect_that_is_not_at_rest() -> None:
    assert record(effect(**OPEN)).promise_kept is None
    assert record(effect(), died_at=None).promise_kept is None
    assert record().promise_kept is None


def test_the_time_runs_from_the_death_and_never_backwards() -> None:
    assert record(effect()).settlement_seconds == 7
    assert record(effect(settled_at=at(1))).settlement_seconds == 0
    assert record(effect(**OPEN)).settlement_seconds is None
