"""The waits between attempts: they grow to a cap, spread many effects and repeat for one."""

from __future__ import annotations

from effect_contracts.backoff import exponential_seconds, jittered_seconds


def test_waits_grow_by_the_factor_up_to_the_cap_at_any_step() -> None:
    waits = [exponential_seconds(step, 1, 2, 300) for step in range(11)]
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert exponential_seconds(10**6, 1, 2, 300) == 300
    assert exponential_seconds(0, 900, 2, 300) == 300
    assert exponential_seconds(50, 7, 1, 300) == 7


def test_jitter_takes_at_most_half_is_repeatable_and_spreads_effects() -> None:
    spread = [jittered_seconds(100, seed, 1) for seed in range(500)]
    assert all(50 <= wait <= 100 for wait in spread)
    assert len(set(spread)) == 500
    assert min(spread) < 55 and max(spread) > 95  # noqa: PT018 - one promise: the whole range
    assert spread == [jittered_seconds(100, seed, 1) for seed in range(500)]
    assert jittered_seconds(100, 1, 1) != jittered_seconds(100, 1, 2)
    assert jittered_seconds(0, 1, 1) == 0
