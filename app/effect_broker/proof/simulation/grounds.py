"""What a further attempt must not rest on, told from the rows of an effect alone.

The judge asks this at every grant. It is said here a second time and in other words than in
`decide`, since a rule that is judged by itself cannot be found missing.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from effect_broker.protocol.ports import Snapshot
from effect_contracts.facts import (
    CODE_ALREADY_EXISTS,
    PROVES_NO_COMMIT,
    Attempt,
    Evidence,
    EvidenceSource,
    Outcome,
    SafetyClass,
    Verdict,
)

_UNCLEAR = frozenset({Outcome.KEY_CONFLICT, Outcome.PARTIAL})


def left_to_a_person(snapshot: Snapshot) -> str | None:
    """Say why no answer of these permits a resend or a refusal; None where nothing stands there."""
    doubtful = False
    for row in snapshot.attempts:
        if row.fact.outcome in _UNCLEAR:
            return f"attempt {row.fact.ordinal} was answered with {row.fact.outcome}"
        if doubtful and row.fact.code == CODE_ALREADY_EXISTS:
            return f"attempt {row.fact.ordinal} met an object after one that may have made it"
        doubtful = doubtful or row.fact.outcome not in PROVES_NO_COMMIT
    return None


def unsettled_absence(snapshot: Snapshot) -> str | None:
    """Say which attempt nobody has found absent after all had settled; None if there is none.

    Only for a class in which nothing but a look-up, a person or the target's own word permits a
    further attempt.
    """
    policy = snapshot.document.policy()
    if policy.safety is not SafetyClass.RECONCILABLE:
        return None
    bound = timedelta(seconds=policy.settlement_bound_seconds or 0.0)
    margin = timedelta(seconds=policy.clock_margin_seconds)
    rows = [row.fact for row in snapshot.attempts]
    absences = [row.fact for row in snapshot.evidence if row.fact.verdict is Verdict.NOT_COMMITTED]
    failed = {
        row.fact.covers_through for row in snapshot.evidence if row.fact.verdict is Verdict.REJECTED
    }
    for attempt in rows:
        if attempt.outcome in PROVES_NO_COMMIT or attempt.ordinal in failed:
            continue
        if not any(_came_after(absence, attempt, rows, bound, margin) for absence in absences):
            return f"attempt {attempt.ordinal}"
    return None


def _came_after(
    absence: Evidence,
    attempt: Attempt,
    attempts: list[Attempt],
    bound: timedelta,
    margin: timedelta,
) -> bool:
    """Whether the look speaks of this attempt and began when all that it speaks of had settled."""
    if absence.source is EvidenceSource.WEBHOOK or absence.covers_through < attempt.ordinal:
        return False
    covered = [a for a in attempts if a.ordinal <= absence.covers_through]
    return all(
        absence.began_at > _ended_at(a, margin) + bound
        for a in covered
        if a.outcome is not Outcome.NOT_SENT
    )


def _ended_at(attempt: Attempt, margin: timedelta) -> datetime:
    """When the last byte of an attempt may have left, as far as its row tells."""
    if attempt.recorded_at is not None:
        return attempt.recorded_at
    return attempt.deadline_at + margin
