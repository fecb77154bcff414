"""`decide` against its oracle and its promises on every small set of facts.

Every sequence of up to three attempts is tried in every safety class. One attempt meets the
whole product of evidence, policies, holds and moments; two and three meet a fixed sample of it,
the same in every run (`_SAMPLE`). Some 530,000 cases in all; each test has a floor for the number
that it saw, so that a slip in the generator cannot empty it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import NamedTuple

import pytest

from effect_contracts.decide import Decision, decide
from effect_contracts.facts import (
    CODE_ALREADY_EXISTS,
    CODE_OPERATION_GONE,
    CODE_REPLAYED_ERROR,
    Attempt,
    Evidence,
    EvidenceSource,
    Facts,
    Hold,
    Outcome,
    Policy,
    SafetyClass,
    Verdict,
)

from .decide_oracle import ROWS, World, answer, row_name
from .decide_promises import broken_promises

T0 = datetime(2026, 1, 1, tzinfo=UTC)
APART_SECONDS = 100  # between the starts of two attempts
DEADLINE_SECONDS, MARGIN_SECONDS, BOUND_SECONDS = 10, 1, 30
HORIZON_SECONDS = 1000


def _at(amount: float) -> datetime:
    return T0 + timedelta(seconds=amount)


# Attempts -------------------------------------------------------------------------------------

# Each kind: outcome, seconds from start to record (None: nobody recorded), and what differs.
_KINDS: dict[str, tuple[Outcome | None, float | None, dict[str, object]]] = {
    "committed": (Outcome.COMMITTED, 2, {"external_id": "x1"}),
    "committed_elsewhere": (Outcome.COMMITTED, 2, {"external_id": "x2"}),
    "committed_unnamed": (Outcome.COMMITTED, 2, {}),
    "rejected": (Outcome.REJECTED, 2, {}),
    "already_exists": (Outcome.REJECTED, 2, {"code": CODE_ALREADY_EXISTS}),
    "not_sent": (Outcome.NOT_SENT, 2, {}),
    "retryable": (Outcome.RETRYABLE, 2, {}),
    "retryable_later": (Outcome.RETRYABLE, 2, {"retry_after_seconds": 20.0}),
    "in_progress": (Outcome.IN_PROGRESS, 2, {"retry_after_seconds": 5.0}),
    "key_conflict": (Outcome.KEY_CONFLICT, 2, {}),
    "partial": (Outcome.PARTIAL, 2, {}),
    "ambiguous": (Outcome.AMBIGUOUS, 2, {}),
    "ambiguous_late": (Outcome.AMBIGUOUS, 50, {}),
    "replayed_error": (Outcome.AMBIGUOUS, 2, {"code": CODE_REPLAYED_ERROR}),
    "accepted": (Outcome.AMBIGUOUS, 2, {"operation": True}),
    "presumed_ambiguous": (Outcome.PRESUMED_AMBIGUOUS, None, {}),
    "open": (None, None, {}),
}
_CLOSED = tuple(kind for kind in _KINDS if kind != "open")


def _attempt(ordinal: int, kind: str) -> Attempt:
    outcome, recorded, more = _KINDS[kind]
    start = APART_SECONDS * (ordinal - 1)
    return Attempt(
        ordinal=ordinal,
        started_at=_at(start),
        deadline_at=_at(start + DEADLINE_SECONDS),
        outcome=outcome,
        recorded_at=None if recorded is None else _at(start + recorded),
        **more,  # type: ignore[arg-type]
    )


_ATTEMPTS = {(n, kind): _attempt(n, kind) for n in (1, 2, 3) for kind in _KINDS}


def _sequences(length: int) -> Iterator[tuple[Attempt, ...]]:
    """Every sequence; only the last attempt can be open, since a successor closes the others."""
    if length == 0:
        yield ()
        return
    for earlier in product(_CLOSED, repeat=length - 1):
        for last in _KINDS:
            kinds = (*earlier, last)
            yield tuple(_ATTEMPTS[n, kind] for n, kind in enumerate(kinds, start=1))


# Evidence ---------------------------------------------------------------------------------------


class _Known(NamedTuple):
    """What was learned besides the attempts' answers, and the probes that were made for it."""

    evidence: tuple[Evidence, ...] = ()
    probes: int = 0
    probe_began_at: datetime | None = None


def _found(
    verdict: Verdict, source: EvidenceSource, began: float, covers: int, *ids: str
) -> Evidence:
    name = f"{source}:{verdict}:{covers}"
    return Evidence(name, source, verdict, _at(began), covers, ids)


def _known(attempts: int) -> tuple[_Known, ...]:
    """Every set of evidence for this number of attempts; times count from the last start."""
    if attempts == 0:
        return (_Known(),)
    probe, operator = EvidenceSource.PROBE, EvidenceSource.OPERATOR
    start = APART_SECONDS * (attempts - 1)
    early, late, before = start + 20, start + 90, start - 5
    absent, failed, n = Verdict.NOT_COMMITTED, Verdict.REJECTED, attempts
    committed = _found(Verdict.COMMITTED, probe, early, n, "x1")
    webhook = _found(Verdict.COMMITTED, EvidenceSource.WEBHOOK, late, n, "x2")
    absent_early = _found(absent, probe, early, n)
    absent_late = _found(absent, probe, late, n)
    mismatch = _found(Verdict.MISMATCH, probe, late, n, "x1", "x3")
    operation_failed = _found(failed, probe, late, n)
    gone_at_once, gone = (
        replace(_found(Verdict.UNKNOWN, probe, began, n), code=CODE_OPERATION_GONE)
        for began in (start + 4, late)
    )
    sets = [
        _Known(),
        _Known((), 1, _at(early)),
        _Known((), 4, _at(late)),
        _Known((committed,), 1, _at(early)),
        _Known((webhook,)),
        _Known((committed, webhook), 1, _at(early)),
        _Known((absent_early,), 1, _at(early)),
        _Known((absent_late,), 2, _at(late)),
        _Known((absent_late, webhook), 2, _at(late)),
        _Known((_found(absent, operator, start + 1, n),)),
        _Known((_found(absent, operator, late, n),)),
        _Known((_found(absent, EvidenceSource.WEBHOOK, late, n),)),
        _Known((_found(failed, EvidenceSource.WEBHOOK, late, n),)),
        _Known((_found(absent, EvidenceSource.TRANSACTION, early, n),), 1, _at(early)),
        _Known((mismatch,), 2, _at(late)),
        _Known((operation_failed,), 2, _at(late)),
        _Known((gone_at_once,), 1, _at(start + 4)),
        _Known((gone,), 2, _at(late)),
        _Known((gone, absent_late), 2, _at(late)),
        _Known((gone_at_once,), 2, _at(late)),
    ]
    if attempts > 1:
        earlier = _found(absent, probe, before, n - 1)
        first_failed = _found(failed, probe, early, 1)
        first_gone = replace(gone_at_once, began_at=_at(before), covers_through=1)
        sets += [
            _Known((first_gone,)),
            _Known((first_gone, gone), 2, _at(late)),
            _Known((earlier,)),
            _Known((earlier, mismatch), 2, _at(late)),
            _Known((earlier, operation_failed), 2, _at(late)),
            _Known((first_failed,), 1, _at(early)),
            _Known((first_failed, absent_late), 2, _at(late)),
            _Known((_found(absent, EvidenceSource.TRANSACTION, before, n - 1),)),
        ]
    return tuple(sets)


# The other dimensions ---------------------------------------------------------------------------


def _policies(safety: SafetyClass) -> tuple[Policy, ...]:
    def policy(attempts_max: int, **more: object) -> Policy:
        return Policy(
            safety=safety,
            attempts_max=attempts_max,
            attempt_deadline_seconds=DEADLINE_SECONDS,
            clock_margin_seconds=MARGIN_SECONDS,
            transit_seconds=3,
            in_progress_bound_seconds=250,
            probe_horizon_seconds=HORIZON_SECONDS,
            polls_operations=True,
            **more,  # type: ignore[arg-type]
        )

    match safety:
        case SafetyClass.IDEMPOTENT:
            return (
                policy(3, key_retention_seconds=1e6),
                policy(2, key_retention_seconds=1e6, probes=True),
                policy(4, key_retention_seconds=45),
                policy(
                    4, key_retention_seconds=45, probes=True, settlement_bound_seconds=BOUND_SECONDS
                ),
            )
        case SafetyClass.RECONCILABLE:
            bound = BOUND_SECONDS
            return tuple(policy(m, probes=True, settlement_bound_seconds=bound) for m in (2, 3))
        case SafetyClass.TRANSACTIONAL:
            return (policy(2), policy(3, settlement_bound_seconds=BOUND_SECONDS))
        case SafetyClass.UNSAFE:
            return (policy(2), policy(3))


_HOLDS: tuple[frozenset[Hold], ...] = (
    frozenset(),
    frozenset({Hold.FROZEN, Hold.AWAITING_APPROVAL}),
    frozenset({Hold.PAUSED, Hold.TARGET_CHANGED}),
)
# From the last start: recorded and backing off; the deadline plus the margin, to the second;
# settled but within the bound; after the bound; beyond the horizon.
_MOMENTS = (2.25, DEADLINE_SECONDS + MARGIN_SECONDS, 25, 95, 5000)
# Sequences of this length meet one in so many of the product. The start shifts from one sequence
# to the next, so that neighbours, which differ in their last attempt, share the product out.
_SAMPLE = {0: 1, 1: 1, 2: 2, 3: 29}


class _Case(NamedTuple):
    facts: Facts
    policy: Policy
    now: datetime


def _cases(safety: SafetyClass, length: int) -> Iterator[_Case]:
    start = APART_SECONDS * max(length - 1, 0)
    moments = [_at(start + moment) for moment in _MOMENTS]
    rest = [
        (known, policy, holds, now)
        for known in _known(length)
        for policy in _policies(safety)
        for holds in _HOLDS
        for now in moments
        if all(e.began_at <= now for e in known.evidence)
        and (known.probe_began_at is None or known.probe_began_at <= now)
    ]
    every = _SAMPLE[length]
    for index, attempts in enumerate(_sequences(length)):
        for known, policy, holds, now in rest[index % every :: every]:
            facts = Facts(
                attempts=attempts,
                evidence=known.evidence,
                probes_since_attempt=known.probes,
                probe_began_at=known.probe_began_at,
                holds=holds,
                jitter_seed=7,
            )
            yield _Case(facts, policy, now)


def _disagreement(case: _Case, decision: Decision) -> str | None:
    world = World(*case)
    expected = answer(world)
    parts = (
        decision.action,
        decision.event,
        decision.reason,
        decision.at,
        decision.ordinal,
        decision.freezes,
    )
    if parts == expected and decision.lost == world.lost:
        return None
    return f"the design says {expected} by row {row_name(world)!r}, lost {world.lost}"


@pytest.mark.parametrize("length", [0, 1, 2, 3])
@pytest.mark.parametrize("safety", list(SafetyClass))
def test_decide_is_total_and_says_what_the_design_says(safety: SafetyClass, length: int) -> None:
    seen = 0
    for case in _cases(safety, length):
        seen += 1
        decision = decide(*case)
        wrong = [*broken_promises(*case, decision)]
        disagreement = _disagreement(case, decision)
        if disagreement is not None:
            wrong.append(disagreement)
        assert not wrong, f"{wrong}\n{decision}\n{case}"
    floor = {0: 30, 1: 4_000, 2: 45_000, 3: 50_000}[length]
    assert seen >= floor, f"only {seen} cases were made"


def test_the_enumeration_reaches_every_row_but_those_of_recorded_wishes() -> None:
    rows: Counter[str] = Counter()
    for safety in SafetyClass:
        for length in (0, 1, 2):
            for index, case in enumerate(_cases(safety, length)):
                if index % 7 == 0:
                    rows[row_name(World(*case))] += 1
    # What a person says, a cancel and a time limit are facts of their own: `test_decide_table`.
    apart = {
        "1 two objects, and an attempt is open",  # takes three attempts
        "1 two objects, and a person ended it",
        "1 two objects, and a person said which one counts",
        "2b a person ended it",
        "5 cancelled",
        "7 too late for a first attempt",
    }
    assert {name for name, _, _ in ROWS} - apart == set(rows)
