"""What an attempt says of its certificate: all of it where one is demanded, nothing else."""

from __future__ import annotations

import pytest

from effect_contracts.facts import CertificateDemand, Policy, SafetyClass
from effect_contracts.receipts import receipt_time
from effect_contracts.trace.findings import Rule
from effect_contracts.trace.guards import check_certificate
from effect_contracts.trace.timeline import Timeline
from trace_check.asked_alone import BEGAN_AT, TICK, after, holds, nothing_known

LATER = receipt_time(after(TICK))


def timeline(demand: CertificateDemand | None) -> Timeline:
    policy = Policy(SafetyClass.IDEMPOTENT, certificate=demand)
    return Timeline(nothing_known(), policy, None)


@pytest.mark.parametrize(
    ("certificate_id", "until", "fits"),
    [(None, None, True), ("c", None, False), (None, LATER, False), ("c", LATER, False)],
)
def test_none_is_named_that_nobody_has_asked_for(
    certificate_id: str | None, until: str | None, fits: bool
) -> None:
    made = timeline(None)
    assert holds(Rule.KIND, check_certificate, made, BEGAN_AT, certificate_id, until) is fits


@pytest.mark.parametrize(
    ("certificate_id", "until", "fits"),
    [
        (None, None, False),
        ("c", None, False),
        (None, LATER, False),
        (7, LATER, False),
        ("c", 7, False),
        ("c", LATER, True),
        ("c", receipt_time(after(3600)), True),
        ("c", receipt_time(BEGAN_AT), False),
        ("c", receipt_time(after(-TICK)), False),
    ],
)
def test_one_that_is_demanded_is_named_and_was_in_force(
    certificate_id: object, until: object, fits: bool
) -> None:
    made = timeline(CertificateDemand())
    judged = holds(Rule.CERTIFICATE, check_certificate, made, BEGAN_AT, certificate_id, until)
    assert judged is fits
