"""What a poll has shown: gone is one code under one verdict, and nothing near it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from effect_contracts.facts import CODE_OPERATION_GONE, Facts, Outcome, Verdict
from effect_contracts.operations import forgotten_operations, is_gone

from .decide_cases import at, attempt, evidence


@pytest.mark.parametrize("verdict", list(Verdict))
@pytest.mark.parametrize("code", ["absent", CODE_OPERATION_GONE, "zzz"])
def test_an_operation_is_gone_by_one_word_only(verdict: Verdict, code: str) -> None:
    accepted = attempt(1, Outcome.IN_PROGRESS, operation=True)
    found = replace(evidence(verdict, 50), code=code)
    facts = Facts((accepted,), (found,), probes_since_attempt=1, probe_began_at=at(50))
    gone = verdict is Verdict.UNKNOWN and code == CODE_OPERATION_GONE
    assert is_gone(facts, accepted, None) is gone
    assert forgotten_operations(facts) == (1 if gone else 0)
