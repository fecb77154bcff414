"""Of several rows it is the one that is meant, whatever stands before it."""

from __future__ import annotations

from uuid import UUID

import pytest

from effect_contracts.facts import Verdict
from trace_check.asked_alone import evidence
from trace_check.test_timeline import timeline


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
def test_evidence_is_found_by_its_own_id(order: tuple[int, ...]) -> None:
    rows = [
        evidence(Verdict.UNKNOWN).model_copy(update={"evidence_id": UUID(int=n)}) for n in order
    ]
    made = timeline(*rows)
    for row in rows:
        assert made.untold_evidence(row.evidence_id) is row
