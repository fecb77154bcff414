"""A lease is extended while it lasts, and never made shorter."""

from __future__ import annotations

from effect_contracts.election import extended_deadline
from effect_contracts.facts import Facts, SafetyClass

from .test_election import at, lease, policy


def test_a_lease_that_ran_out_long_ago_is_never_revived() -> None:
    rules = policy(SafetyClass.UNSAFE, lease_seconds_max=1000)
    mine = lease()
    assert extended_deadline(mine, Facts((mine,)), rules, at(9.5)) == at(19.5)
    for now in (10, 10.001, 11, 500):
        assert extended_deadline(mine, Facts((mine,)), rules, at(now)) is None


def test_an_extension_that_would_end_earlier_than_the_lease_is_none() -> None:
    """The key may be forgotten before the lease is over: that is no reason to shorten it."""
    mine = lease()
    rest = 1 + 2  # clock margin and transit
    for retention, until in ((10 + rest, None), (8 + rest, None), (12 + rest, at(12))):
        rules = policy(
            SafetyClass.IDEMPOTENT, lease_seconds_max=1000, key_retention_seconds=retention
        )
        assert extended_deadline(mine, Facts((mine,)), rules, at(5)) == until
