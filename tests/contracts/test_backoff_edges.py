"""The edges of the waits: the first step, the cap itself, and values that must never change."""

from __future__ import annotations

import pytest

from effect_contracts.backoff import exponential_seconds, jittered_seconds


def test_a_step_before_the_first_is_a_mistake_of_ours() -> None:
    assert exponential_seconds(0, 1, 2, 300) == 1
    with pytest.raises(AssertionError):
        exponential_seconds(-1, 1, 2, 300)


def test_jitter_is_the_same_in_every_release() -> None:
    """`decide` is asked again about old effects: another wait for the same facts moves them."""
    waits = [jittered_seconds(100, seed, step) for seed, step in ((0, 1), (1, 1), (1, 2), (7, 3))]
    assert waits == pytest.approx([53.305581, 58.064600, 79.837850, 96.658180], abs=1e-5)
