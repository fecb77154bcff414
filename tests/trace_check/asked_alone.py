"""Facts made for one rule: timelines that no store would let in, so that a rule is asked alone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from effect_contracts.facts import (
    EffectState,
    EvidenceSource,
    Outcome,
    Policy,
    SafetyClass,
    Verdict,
)
from effect_contracts.trace.findings import Broken, Rule
from effect_contracts.trace.log import AttemptRecord, EffectLine, EvidenceRecord, IntentRecord
from effect_contracts.trace.timeline import Timeline

BEGAN_AT = datetime(2026, 11, 30, 12, tzinfo=UTC)
DEADLINE, MARGIN, TRANSIT = 30.0, 0.5, 5.0
TICK = 0.000001


def after(seconds: float) -> datetime:
    return BEGAN_AT + timedelta(seconds=seconds)


def attempt(
    ordinal: int,
    outcome: Outcome | None,
    *,
    starts: float = 0.0,
    recorded: float | None = None,
    **members: Any,
) -> AttemptRecord:
    """An attempt that starts so many seconds after the beginning, and lasts half a minute."""
    usual: dict[str, Any] = {
        "attempt_id": uuid4(), "ordinal": ordinal, "executor_id": "w", "outcome": outcome,
        "started_at": after(starts), "deadline_at": after(starts + DEADLINE),
        "target_identity": "t", "code": None, "lost_at": None, "external_id": None,
        "retry_after_seconds": None, "operation": False, "result_digest": None,
        "recorded_at": None if recorded is None else after(recorded),
    }  # fmt: skip
    return AttemptRecord(**usual | members)


def evidence(
    verdict: Verdict,
    source: EvidenceSource = EvidenceSource.PROBE,
    *,
    began: float = 0.0,
    through: int = 1,
    ids: tuple[str, ...] = (),
) -> EvidenceRecord:
    return EvidenceRecord(
        evidence_id=uuid4(), source=source, verdict=verdict, code="c", began_at=after(began),
        recorded_at=after(began), covers_through=through, external_ids=ids,
        target_identity=None, result_digest=None,
    )  # fmt: skip


def nothing_known() -> EffectLine:
    """An effect of which nothing is known."""
    intent = IntentRecord(
        tenant_id=UUID(int=1), effect_id=UUID(int=2), operation_key="key", tool="charge",
        request_hash="1" * 64, contract_name="charge", contract_version="1",
        contract_digest="2" * 64, safety=SafetyClass.RECONCILABLE,
        downstream_key_digest="3" * 64, target_identity="t", wire_digest=None,
        requested_by="caller:c", send_before=None, cancel_requested_at=None,
        reconcile_asked_at=None, approved_at=None, failed_by_operator_at=None,
        created_at=BEGAN_AT, updated_at=BEGAN_AT, state=EffectState.PREPARED, reason="submitted",
        version=1, latest_ordinal=0, retention_stage=0, next_action_at=None, parked=False,
        alert=None, receipt_digest=None, event_digest="4" * 64,
    )  # fmt: skip
    return EffectLine(
        type="effect", intent=intent, attempts=(), evidence=(), mutations=(), resolutions=(),
        receipt=None, events=(),
    )  # fmt: skip


def known(
    *rows: AttemptRecord | EvidenceRecord,
    safety: SafetyClass = SafetyClass.RECONCILABLE,
    restarted: float | None = None,
    resolved: tuple[Any, ...] = (),
    cancel_asked: float | None = None,
    send_before: float | None = None,
    **policy: Any,
) -> Timeline:
    """A timeline of these facts, all of them known."""
    empty = nothing_known()
    intent = empty.intent.model_copy(
        update={
            "cancel_requested_at": None if cancel_asked is None else after(cancel_asked),
            "send_before": None if send_before is None else after(send_before),
        }
    )
    line = empty.model_copy(
        update={
            "intent": intent,
            "attempts": tuple(row for row in rows if isinstance(row, AttemptRecord)),
            "evidence": tuple(row for row in rows if isinstance(row, EvidenceRecord)),
            "resolutions": resolved,
        }
    )
    numbers = {
        "attempt_deadline_seconds": DEADLINE, "clock_margin_seconds": MARGIN,
        "transit_seconds": TRANSIT, "settlement_bound_seconds": 60.0,
    }  # fmt: skip
    since = None if restarted is None else after(restarted)
    timeline = Timeline(line, Policy(safety, **{**numbers, **policy}), since)
    for row in line.attempts:
        timeline.start(row)
        if row.outcome is not None:
            timeline.record(row)
    for seen in line.evidence:
        timeline.tell(seen)
    return timeline


def holds(rule: Rule, judge: Callable[..., None], *arguments: Any) -> bool:
    """Whether nothing is refused; a refusal has to be by that rule."""
    broken: list[Rule] = []
    try:
        judge(*arguments)
    except Broken as problem:
        broken.append(problem.rule)
    assert broken in ([], [rule])
    return not broken


def refused(rule: Rule, judge: Callable[..., object], *arguments: Any) -> str:
    """The words of a refusal, which has to be by that rule."""
    with pytest.raises(Broken) as broken:
        judge(*arguments)
    assert broken.value.rule is rule
    return broken.value.what
