"""Contracts, attempts and evidence for tests of `decide`, with times that a reader can add up.

The clock is seconds after `T0`. The target's answers arrive one second after an attempt started,
an attempt's deadline is ten seconds, the margin of the clocks one, the settlement bound thirty.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from effect_contracts.decide import Action, Decision, Reason
from effect_contracts.facts import (
    Attempt,
    Evidence,
    EvidenceSource,
    Outcome,
    Policy,
    SafetyClass,
    Verdict,
)
from effect_contracts.life import LifeEvent

T0 = datetime(2026, 1, 1, tzinfo=UTC)
EVERY_CLASS = pytest.mark.parametrize("safety", list(SafetyClass))
DENIALS = (Outcome.NOT_SENT, Outcome.RETRYABLE)
DOUBTS = (Outcome.AMBIGUOUS, Outcome.IN_PROGRESS, Outcome.PRESUMED_AMBIGUOUS)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def policy(safety: SafetyClass, **numbers: object) -> Policy:
    """A usable contract of each class; `numbers` replace its own."""
    base = Policy(
        safety=safety, attempt_deadline_seconds=10, clock_margin_seconds=1, transit_seconds=5
    )
    match safety:
        case SafetyClass.IDEMPOTENT:
            base = replace(base, key_retention_seconds=3600)
        case SafetyClass.RECONCILABLE:
            base = replace(base, probes=True, settlement_bound_seconds=30)
        case SafetyClass.TRANSACTIONAL | SafetyClass.UNSAFE:
            pass
    return replace(base, **numbers)  # type: ignore[arg-type]


IDEMPOTENT = policy(SafetyClass.IDEMPOTENT)
RECONCILABLE = policy(SafetyClass.RECONCILABLE)
TRANSACTIONAL = policy(SafetyClass.TRANSACTIONAL)
UNSAFE = policy(SafetyClass.UNSAFE)


def attempt(ordinal: int, outcome: Outcome | None, start: float = 0, **more: object) -> Attempt:
    unrecorded = outcome in (None, Outcome.PRESUMED_AMBIGUOUS)
    made = Attempt(
        ordinal=ordinal,
        started_at=at(start),
        deadline_at=at(start + 10),
        outcome=outcome,
        recorded_at=None if unrecorded else at(start + 1),
    )
    return replace(made, **more)  # type: ignore[arg-type]


def evidence(
    verdict: Verdict,
    began: float,
    covers: int = 1,
    source: EvidenceSource = EvidenceSource.PROBE,
    ids: tuple[str, ...] = (),
) -> Evidence:
    return Evidence(f"{verdict}@{began}", source, verdict, at(began), covers, ids)


def said(decision: Decision) -> tuple[Action, LifeEvent, Reason]:
    return decision.action, decision.event, decision.reason


def review(reason: Reason) -> tuple[Action, LifeEvent, Reason]:
    return Action.PARK, LifeEvent.REVIEW_NEEDED, reason


def failure(reason: Reason) -> tuple[Action, LifeEvent, Reason]:
    return Action.SETTLE, LifeEvent.FAILURE_PROVED, reason
