"""Thousands of seeded schedules over one effect; the target says whether a promise was broken."""

from __future__ import annotations

from collections import Counter

import pytest

from effect_contracts.facts import EffectState
from protocol.walk import DOCUMENTS, Walk

SCHEDULES = 600


@pytest.mark.parametrize("safety", DOCUMENTS)
def test_no_schedule_breaks_a_promise(safety: str) -> None:
    """A failure names its seed: `Walk(safety, seed).run()` is the same walk again."""
    ends: Counter[str] = Counter()
    attempts: Counter[int] = Counter()
    late = 0
    for seed in range(SCHEDULES):
        walk = Walk(safety, seed)
        try:
            walk.run()
        except Exception as problem:
            raise AssertionError(f"{safety}, seed {seed}: {problem!r}") from problem
        snapshot = walk.memory.snapshot(walk.effect_id)
        ends[snapshot.intent.state] += 1
        attempts[len(snapshot.attempts)] += 1
        late += any(e.advance.kind == "late_fact" for e in walk.memory.events(walk.effect_id))
    # The walk must go where it hurts, or it proves nothing.
    assert ends[EffectState.SUCCEEDED] > SCHEDULES / 5
    assert ends[EffectState.FAILED_FINAL] > 0
    assert sum(n for count, n in attempts.items() if count > 1) > SCHEDULES / 10
    if safety == "unsafe":
        assert ends[EffectState.OUTCOME_UNKNOWN] > 0
    if safety in {"idempotent", "reconcilable"}:
        assert late > 0


def test_one_seed_is_one_schedule() -> None:
    def events(seed: int) -> list[str]:
        walk = Walk("reconcilable", seed)
        walk.run()
        return [str(e) for e in walk.memory.events(walk.effect_id)]

    assert events(3) == events(3)
    assert events(3) != events(4)
