"""Accepted operations: which one is polled next, and what its polls have shown.

A target may answer that it has taken a request as an operation, to be asked about later. These are
the words of `effect_contracts.decide` for that; the policy is there.
"""

from __future__ import annotations

from datetime import datetime

from effect_contracts.facts import (
    CODE_OPERATION_GONE,
    Attempt,
    Evidence,
    EvidenceSource,
    Facts,
    Verdict,
)


def open_operation(facts: Facts) -> Attempt | None:
    """Return the attempt whose accepted operation is the next to be polled, if there is one.

    An operation that has failed is not asked again: its old answer would be taken for that of a
    later attempt. Nor is one that stood when a later attempt was granted: it was cleared then, or
    the target no longer knew it.
    """
    latest_start = max((a.started_at for a in facts.attempts), default=None)
    for attempt in reversed(facts.attempts):
        recorded_at = attempt.recorded_at
        if not attempt.operation or has_failed(facts, attempt) or recorded_at is None:
            continue
        if attempt is facts.attempts[-1] or (latest_start and recorded_at >= latest_start):
            return attempt
    return None


def has_failed(facts: Facts, attempt: Attempt) -> bool:
    """Whether the target has said that the operation of this attempt failed."""
    return any(
        e.verdict is Verdict.REJECTED
        and e.covers_through == attempt.ordinal
        and e.source is not EvidenceSource.WEBHOOK  # it can prove a commit only
        for e in facts.evidence
    )


def forgotten_operations(facts: Facts) -> int:
    """Return how many operations the target has accepted and, at some look, not known."""
    return len({e.covers_through for e in facts.evidence if _finds_none(e)})


def is_gone(facts: Facts, attempt: Attempt, known_from: datetime | None) -> bool:
    """Whether the latest look found no such operation.

    A target may show what it has just accepted a little later, so a look counts only if it began
    after `known_from`; None lets an early one count.
    """
    return any(
        _finds_none(e)
        and e.covers_through == attempt.ordinal
        and e.began_at == facts.probe_began_at
        and (known_from is None or e.began_at > known_from)
        for e in facts.evidence
    )


def _finds_none(evidence: Evidence) -> bool:
    return evidence.verdict is Verdict.UNKNOWN and evidence.code == CODE_OPERATION_GONE
