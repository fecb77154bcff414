"""Which certificate counts, at its edges: after its end, and where two are alike."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from effect_contracts.certified import standing_certificate
from effect_contracts.facts import CertificateDemand, Certified

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
ANY = CertificateDemand()


def certificate(name: str) -> Certified:
    return Certified(name, "target", frozenset(), NOW - HOUR, NOW + HOUR)


def test_one_that_has_ended_long_ago_counts_no_more() -> None:
    one = certificate("a")
    for passed in (HOUR, 2 * HOUR, 1000 * HOUR):
        assert standing_certificate((one,), ANY, NOW + passed) is None
    assert standing_certificate((one,), ANY, NOW) == (one, NOW + HOUR)


def test_of_two_alike_the_same_one_is_named_in_whatever_order_a_store_has_them() -> None:
    first, second = certificate("a"), certificate("b")
    for given in ((first, second), (second, first)):
        assert standing_certificate(given, ANY, NOW) == (second, NOW + HOUR)
