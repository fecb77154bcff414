"""What the trace check says of a fault: a rule, a place, and words."""

from __future__ import annotations

from uuid import UUID

from effect_contracts.trace.findings import Finding, Rule, Violation


def test_a_finding_that_names_no_event_is_one_of_a_row() -> None:
    assert Finding(Rule.FACTS, "words").sequence is None
    assert Finding(Rule.FACTS, "words", 3) == Finding(Rule.FACTS, "words", sequence=3)
    assert Finding(Rule.FACTS, "words", 3) != Finding(Rule.FACTS, "words")


def test_a_violation_names_line_effect_event_and_rule() -> None:
    found = Violation(
        line=3, tenant_id=UUID(int=1), effect_id=None, sequence=2, rule=Rule.HEAD, what="words"
    )
    assert found == Violation(3, UUID(int=1), None, 2, Rule.HEAD, "words")
    assert found != Violation(4, UUID(int=1), None, 2, Rule.HEAD, "words")
