"""Hypothesis strategies for `decide`: contracts and histories that need make no sense.

Up to six attempts and eight pieces of evidence at any times within some minutes.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from effect_contracts.decide import Decision
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

T0 = datetime(2026, 1, 1, tzinfo=UTC)
# Whole seconds meet each other often, which is where a `<` that should be a `<=` shows.
MOMENTS = st.integers(0, 400).map(lambda s: T0 + timedelta(seconds=s)) | st.integers(
    0, 400_000_000
).map(lambda us: T0 + timedelta(microseconds=us))


def policies() -> st.SearchStrategy[Policy]:
    """Contracts of every class with small numbers that make rows meet."""
    made = st.builds(
        Policy,
        safety=st.sampled_from(SafetyClass),
        attempts_max=st.integers(1, 7),
        attempt_deadline_seconds=st.sampled_from([1.0, 10.0]),
        clock_margin_seconds=st.sampled_from([0.0, 1.0]),
        transit_seconds=st.sampled_from([0.0, 5.0]),
        key_retention_seconds=st.sampled_from([None, 20.0, 150.0, 1e6]),
        settlement_bound_seconds=st.sampled_from([None, 0.0, 5.0, 30.0, 120.0]),
        backoff_initial_seconds=st.sampled_from([0.0, 1.0, 20.0]),
        backoff_factor=st.sampled_from([1.0, 2.0, 3.0]),
        backoff_cap_seconds=st.sampled_from([1.0, 50.0]),
        retry_after_cap_seconds=st.sampled_from([0.0, 60.0]),
        in_progress_bound_seconds=st.sampled_from([0.0, 90.0, 600.0]),
        replayed_errors_max=st.integers(1, 3),
        probes=st.booleans(),
        polls_operations=st.booleans(),
        probe_initial_seconds=st.sampled_from([1.0, 10.0]),
        probe_factor=st.sampled_from([1.0, 2.0]),
        probe_cap_seconds=st.sampled_from([10.0, 60.0]),
        probe_horizon_seconds=st.sampled_from([3.0, 50.0, 1000.0]),
    )
    # A reconcilable contract without a look-up is refused before it is ever pinned.
    return made.map(lambda p: replace(p, probes=p.probes or p.safety is SafetyClass.RECONCILABLE))


# Doubt and denial are where the table is deep; a commit or a conflict ends it at once.
_DEEP = [Outcome.AMBIGUOUS, Outcome.NOT_SENT, Outcome.RETRYABLE, Outcome.IN_PROGRESS]
_OUTCOMES = [*_DEEP * 4, *Outcome]
_ENDINGS: list[Outcome | None] = [*_OUTCOMES, None, None, None]
_VERDICTS = [Verdict.NOT_COMMITTED] * 4 + [*Verdict]


@st.composite
def histories(draw: st.DrawFn) -> tuple[Attempt, ...]:
    starts = sorted(draw(st.lists(MOMENTS, max_size=6)))
    attempts = []
    for ordinal, started_at in enumerate(starts, start=1):
        last = ordinal == len(starts)
        outcome = draw(st.sampled_from(_ENDINGS if last else _OUTCOMES))
        own = outcome not in (None, Outcome.PRESUMED_AMBIGUOUS)
        takes, sends, code, external_id, asked, operation = draw(_ANSWERS)
        attempts.append(
            Attempt(
                ordinal,
                started_at,
                started_at + timedelta(seconds=sends),
                outcome,
                started_at + timedelta(seconds=takes) if own else None,
                code,
                external_id,
                asked,
                operation,
            )
        )
    return tuple(attempts)


_ANSWERS = st.tuples(
    st.sampled_from([0, 1, 9, 60]),
    st.sampled_from([1, 10]),
    st.sampled_from([None, None, None, CODE_ALREADY_EXISTS, CODE_REPLAYED_ERROR]),
    st.sampled_from([None, "x1", "x1", "x2"]),
    st.sampled_from([None, 0.0, 3.5, 1e9]),
    st.sampled_from([False, False, True]),
)


@st.composite
def everything_known(draw: st.DrawFn) -> Facts:
    attempts = draw(histories())
    found = st.builds(
        Evidence,
        st.just("e"),
        st.sampled_from(EvidenceSource),
        st.sampled_from(_VERDICTS),
        MOMENTS,
        st.integers(1, max(len(attempts), 1)),
        st.sampled_from([(), ("x1",), ("x1", "x2")]),
        st.sampled_from([None, CODE_OPERATION_GONE]),
    )
    known = tuple(draw(st.lists(found, max_size=8))) if attempts else ()
    # The latest look is often one whose finding is known.
    looks = MOMENTS | st.sampled_from([e.began_at for e in known]) if known else MOMENTS
    probes = draw(st.integers(0, 60)) if attempts else 0
    rarely = st.sampled_from([False] * 9 + [True])
    return Facts(
        attempts=attempts,
        evidence=known,
        probes_since_attempt=probes,
        probe_began_at=draw(looks) if probes else None,
        cancel_requested=draw(rarely),
        failed_by_operator=draw(rarely),
        holds=draw(st.just(frozenset[Hold]()) | st.frozensets(st.sampled_from(Hold))),
        send_before=draw(st.none() | MOMENTS),
        jitter_seed=draw(st.integers(0, 9)),
        bounds_restart_at=draw(MOMENTS) if draw(rarely) else None,
    )


def closed(facts: Facts, decision: Decision) -> Facts:
    """The facts after the writer of a decision has closed the lost attempts."""
    attempts = tuple(
        replace(a, outcome=Outcome.PRESUMED_AMBIGUOUS) if a.ordinal in decision.lost else a
        for a in facts.attempts
    )
    return replace(facts, attempts=attempts)
